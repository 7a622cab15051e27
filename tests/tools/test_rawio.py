"""The raw loop moves the very bytes it is asked for; fio is believed only when it has done the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixtier.io.frames import aligned_memory
from radixtier.tools.rawio import Fio, Loop, Plan, find_raw, random_memory

BLOCK = 8192
PLAN = Plan(start=4096, nbytes=6 * BLOCK, block=BLOCK, depth=3, direct=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "raw"
    path.write_bytes(bytes(PLAN.start + PLAN.nbytes + 4096))
    return path


def test_blocks_go_where_they_belong_and_come_back(file: Path) -> None:
    memory = random_memory(6 * BLOCK)
    assert len(set(memory[::4096])) > 1
    assert Loop(memory).rate("write", file, PLAN) > 0
    content = file.read_bytes()
    assert content[PLAN.start :] == bytes(memory) + bytes(4096)
    assert content[: PLAN.start] == bytes(PLAN.start)
    back = aligned_memory(6 * BLOCK)
    assert Loop(back).rate("read", file, PLAN) > 0
    assert back == memory


def test_a_file_that_ends_early_is_an_error(file: Path) -> None:
    with pytest.raises(OSError, match="moved 4096"):
        Loop(aligned_memory(6 * BLOCK)).rate("read", file, PLAN._replace(nbytes=7 * BLOCK))


def _program(directory: Path, text: str) -> Path:
    path = directory / "fio"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _answer(kind: str, **figures: object) -> str:
    return json.dumps({"jobs": [{"error": 0, kind: {"io_bytes": PLAN.nbytes, "bw_bytes": 1e15, **figures}}]})


def test_the_faster_of_fio_and_loop_counts(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, f"case $1 in --version) echo fio-9;; *) echo '{_answer('read')}';; esac")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    raw = find_raw(aligned_memory(6 * BLOCK))
    assert raw.name == "fio-9 or loop"
    assert raw.rate("read", file, PLAN) == 1e15


@pytest.mark.parametrize("text", ["exit 1", None])
def test_without_a_working_fio_the_loop_measures(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text:
        _program(tmp_path, text)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_raw(aligned_memory(4096)).name == "loop"


@pytest.mark.parametrize("answer", ["no JSON", "{}", _answer("read", io_bytes=1)])
def test_what_fio_did_not_do_is_not_counted(tmp_path: Path, file: Path, answer: str) -> None:
    fio = Fio(str(_program(tmp_path, f"echo '{answer}'")), "fio-9")
    with pytest.raises(OSError, match="fio failed"):
        fio.rate("read", file, PLAN)


def test_fio_is_asked_for_the_plan(tmp_path: Path, file: Path) -> None:
    asked = tmp_path / "asked"
    fio = Fio(str(_program(tmp_path, f"echo \"$@\" >{asked}; echo '{_answer('write')}'")), "fio-9")
    fio.rate("write", file, PLAN._replace(direct=True))
    words = asked.read_text().split()
    expected = {"--rw=write", f"--bs={BLOCK}", "--offset=4096", f"--size={PLAN.nbytes}", "--iodepth=3", "--direct=1"}
    assert expected | {f"--filename={file}"} <= set(words)
