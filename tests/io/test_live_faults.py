"""Faults of a running server: the grammar is strict, and a file changes them while transfers go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_contract import SIZE

from radixtier.io.engine import Engine, transfer
from radixtier.io.faults import FaultEngine
from radixtier.io.frames import BLOCK, aligned_memory
from radixtier.io.live_faults import VARIABLE, LiveFaults, Wanted, parse_faults, with_faults
from radixtier.io.posix import PosixEngine


def fails(engine: Engine) -> bool:
    return transfer(engine.readv, [aligned_memory(BLOCK)], 0).error is not None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "slab"
    path.write_bytes(bytes(SIZE))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "faults"
    file.write_text("")
    return file


@pytest.fixture
def faults(file: Path) -> Iterator[LiveFaults]:
    faults = LiveFaults(f"@{file}")
    yield faults
    faults.close()


@pytest.fixture
def engine(faults: LiveFaults, path: Path) -> Iterator[FaultEngine]:
    engine = faults.wrap(PosixEngine(direct=False))
    engine.open(path, SIZE)
    yield engine
    engine.close()


def test_grammar() -> None:
    assert parse_faults("  ") == []
    assert parse_faults("slow=100, error_write=0.01,flip=1") == [
        Wanted("error", ("write",), 0.01),
        Wanted("flip", ("read", "write"), 1.0),
        Wanted("slow", ("read", "write"), 100.0),
    ]
    assert parse_faults("slow_sync=2,error=0") == [
        Wanted("error", ("read", "write", "sync"), 0.0),
        Wanted("slow", ("sync",), 2.0),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slow", "is no fault"),
        ("slow=", "is no number"),
        ("slow=0.5", "1 or more"),
        ("slow=nan", "1 or more"),
        ("slow=inf", "1 or more"),
        ("error=2", "0 to 1"),
        ("error=nan", "0 to 1"),
        ("fast=2", "is no fault"),
        ("slow_down=2", "slow knows slow_read, slow_write, slow_sync"),
        ("slow_=2", "slow knows"),
        ("flip_sync=1", "flip knows"),
        ("slow=2,,", "is no fault"),
        ("slow=2,slow_read=3", "second slow for reads"),
    ],
)
def test_grammar_is_strict(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_faults(text)


def test_a_file_changes_them(faults: LiveFaults, engine: FaultEngine, file: Path) -> None:
    assert not fails(engine)
    file.write_text("error_read=1\n")
    assert faults.look()
    assert not faults.look()
    assert fails(engine)
    file.write_text("slow=1.5")
    assert faults.look()
    assert not fails(engine)


def test_what_is_not_understood_changes_nothing(
    faults: LiveFaults, engine: FaultEngine, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("error=1")
    assert faults.look()
    caplog.clear()
    file.write_text("eror=1")
    assert [faults.look() for _ in range(3)] == [False] * 3
    file.unlink()
    assert [faults.look() for _ in range(3)] == [False] * 3
    assert fails(engine)
    assert ["changes nothing" in record.message for record in caplog.records] == [True, True]
    file.write_text("error=0")
    assert faults.look()
    assert not fails(engine)


def test_without_the_variable_nothing_is_wrapped() -> None:
    def make(directory: Path) -> Engine:
        return PosixEngine(direct=False)

    assert with_faults(make, {}) is make
    assert with_faults(make, {VARIABLE: " "}) is make


def test_the_variable_wraps_and_warns(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make = with_faults(lambda directory: PosixEngine(direct=False), {VARIABLE: "error_read=1"})
    assert "ON PURPOSE" in caplog.text
    engine = make(path.parent)
    engine.open(path, SIZE)
    assert fails(engine)
    assert engine.name == "posix buffered with faults"
    engine.close()


@pytest.mark.parametrize("source", ["slow=fast", "@/nowhere/faults"])
def test_a_bad_variable_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        with_faults(lambda directory: PosixEngine(direct=False), {VARIABLE: source})
