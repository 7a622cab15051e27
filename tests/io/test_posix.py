"""The posix engine, direct and buffered, and its fallback."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from engine_contract import SIZE, EngineContract, buffers_of, pattern

from radixtier.footprint import BLOCK
from radixtier.io import posix
from radixtier.io.engine import Engine, transfer
from radixtier.io.faults import FaultEngine
from radixtier.io.files import reopen
from radixtier.io.frames import aligned_memory
from radixtier.io.posix import PosixEngine, try_direct


class TestDirect(EngineContract):
    def make(self, directory: Path) -> Engine:
        if why_not := try_direct(directory):
            pytest.skip(f"O_DIRECT {why_not} in {directory}")
        return PosixEngine(direct=True)


class TestBuffered(EngineContract):
    def make(self, directory: Path) -> Engine:
        return PosixEngine(direct=False)


class TestWithoutFaults(EngineContract):
    """A fault engine without faults is an engine like any other."""

    def make(self, directory: Path) -> Engine:
        return FaultEngine(PosixEngine(direct=True))


class TestAfterFallback(EngineContract):
    """An engine whose O_DIRECT was refused at the first transfer still does everything."""

    @pytest.fixture(autouse=True)
    def refusing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_direct(monkeypatch)

    def make(self, directory: Path) -> Engine:
        return PosixEngine(direct=True)


def refuse_direct(monkeypatch: pytest.MonkeyPatch, what: tuple[str, ...] = ("preadv", "pwritev")) -> None:
    """Act like a file system that opens with O_DIRECT and then refuses transfers."""

    def refusing(call: Any) -> Any:
        def inner(fd: int, buffers: Any, offset: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return int(call(fd, buffers, offset))

        return inner

    for name in what:
        monkeypatch.setattr(posix.os, name, refusing(getattr(os, name)))


def open_direct(tmp_path: Path) -> tuple[PosixEngine, Path]:
    path = tmp_path / "file"
    path.write_bytes(pattern(SIZE, 0))
    engine = PosixEngine(direct=True)
    engine.open(path, SIZE)
    return engine, path


def test_refused_write_falls_back_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES C31."""
    refuse_direct(monkeypatch, ("pwritev",))
    engine, path = open_direct(tmp_path)
    data = pattern(4 * BLOCK, 3)
    with caplog.at_level(logging.WARNING):
        for offset in (0, 8 * BLOCK):
            assert transfer(engine.writev, buffers_of(data, 4 * BLOCK), offset) == (4 * BLOCK, None)
    engine.close()
    assert path.read_bytes()[: 4 * BLOCK] == data
    assert path.read_bytes()[8 * BLOCK : 12 * BLOCK] == data
    assert [r.message for r in caplog.records if "O_DIRECT was refused" in r.message] == [caplog.records[0].message]
    assert engine.name == "posix buffered"
    assert engine.alignment == 1


def test_other_errors_do_not_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = open_direct(tmp_path)

    def broken(fd: int, buffers: Any, offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(posix.os, "preadv", broken)
    moved = transfer(engine.readv, [aligned_memory(BLOCK)], 0)
    assert moved.nbytes == 0
    assert "Input/output error" in (moved.error or "")
    assert engine.name == "posix O_DIRECT"
    engine.close()


def test_invalid_argument_when_buffered_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(pattern(SIZE, 0))
    engine = PosixEngine(direct=False)
    engine.open(path, SIZE)
    with pytest.raises(OSError, match="Invalid argument"):
        engine.readv([aligned_memory(BLOCK)], -BLOCK)
    engine.close()


def test_the_fallback_stays_on_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file under the same name by then is not touched."""
    refuse_direct(monkeypatch)
    engine, path = open_direct(tmp_path)
    moved_away = path.rename(path.with_name("moved"))
    path.write_bytes(bytes(SIZE))
    data = pattern(BLOCK, 3)
    assert transfer(engine.writev, buffers_of(data, BLOCK), 0) == (BLOCK, None)
    engine.close()
    assert path.read_bytes() == bytes(SIZE)
    assert moved_away.read_bytes()[:BLOCK] == data


def test_open_falls_back_where_open_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(fd: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return reopen(fd, flags)

    monkeypatch.setattr(posix, "reopen", refusing)
    before = set(os.listdir("/proc/self/fd"))
    engine, _ = open_direct(tmp_path)
    assert engine.name == "posix buffered"
    assert transfer(engine.readv, [aligned_memory(BLOCK)], 0) == (BLOCK, None)
    engine.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_trial_says_why_direct_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_direct(monkeypatch)
    assert try_direct(tmp_path) == "is refused (Invalid argument)"
    monkeypatch.setattr(posix, "O_DIRECT", 0)
    assert "unknown" in (try_direct(tmp_path) or "")
    assert list(tmp_path.iterdir()) == []


def test_a_trial_checks_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix.os, "preadv", lambda fd, buffers, offset: BLOCK)
    assert try_direct(tmp_path) == "does not give back what was written"


def test_other_errors_are_no_verdict_on_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, buffers: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(posix.os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        try_direct(tmp_path)
    with pytest.raises(FileNotFoundError):
        try_direct(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []
