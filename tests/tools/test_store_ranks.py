"""``radixtier store`` and ``radixtier doctor`` on a directory in which several ranks keep their stores."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import IDENTITY, WAIT, Rig, path_of

from radixtier.cli.store import main
from radixtier.identity import StoreIdentity
from radixtier.store.header import read_header
from radixtier.store.paths import find_stores
from radixtier.tools.drive import check_contents

Serve = Callable[..., list[Rig]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Have a server of so many ranks write a path of two pages on each, and end."""

    def serve(ranks: int, n_slots: int = 96) -> list[Rig]:
        rigs = []
        for rank in range(ranks):
            identity = dataclasses.replace(IDENTITY, tp_rank=rank, tp_size=ranks)
            rig = Rig(tmp_path, rank=rank, ranks=ranks, identity=identity, n_slots=n_slots, keep_others=True)
            rig.put(path_of(2))
            rigs.append(rig)
        for rig in rigs:
            assert rig.store.close(WAIT)
        return rigs

    return serve


def run(capsys: pytest.CaptureFixture[str], command: str, directory: Path, *more: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main([command, str(directory), "--json", *more])
    text = capsys.readouterr().out
    return status, json.loads(text) if text else None


def test_every_rank_is_shown_and_checked(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(2)
    _, listings = run(capsys, "ls", tmp_path)
    assert [(each["rank"], each["pages"]) for each in listings] == [(0, 2), (1, 2)]
    _, figures = run(capsys, "stat", tmp_path)
    assert [each["identity"]["tp_rank"] for each in figures] == [0, 1]
    assert [each["server"] for each in figures] == [None, None]
    status, checked = run(capsys, "verify", tmp_path)
    assert status == 0
    assert [(each["rank"], each["pages"], each["bad"]) for each in checked] == [(0, 2, []), (1, 2, [])]


def test_the_server_of_every_rank_is_told(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = serve(2)
    second.open(96)
    try:
        _, figures = run(capsys, "stat", tmp_path)
        assert [each["server"] for each in figures] == [None, str(os.getpid())]
        assert main(["clear", str(tmp_path), "--yes"]) == 1, "rank 1 is in use"
        assert "(rank 1)" in capsys.readouterr().err
        assert first.slab.exists()
    finally:
        second.close()


def test_doctor_names_every_rank(serve: Serve, tmp_path: Path) -> None:
    _, second = serve(2)
    second.open(96)
    try:
        found = [finding.found for finding in check_contents(tmp_path)]
    finally:
        second.close()
    assert [text for text in found if "serves from it" in text] == [f"process {os.getpid()} serves from it (rank 1)"]
    stores = [text for text in found if "tp_size 2" in text]
    assert [f"(rank {rank})" in text and f"tp_rank {rank}" in text for rank, text in enumerate(stores)] == [True, True]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2), (2, 2)])
def test_gc_keeps_the_ranks_of_the_last_server_only(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: int, after: int
) -> None:
    serve(before)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    serve(after, n_slots=960)
    assert run(capsys, "gc", tmp_path, "--yes")[0] == 0
    left = find_stores(tmp_path)
    assert [files.rank for files in left] == list(range(after))
    assert {StoreIdentity.from_json(read_header(files.slab).identity).tp_size for files in left} == {after}


def test_clear_empties_every_rank(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(3)
    assert run(capsys, "clear", tmp_path, "--yes")[0] == 0
    assert find_stores(tmp_path) == []
