"""CASES C14: the first engine fails once, and everything is served all the same."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_contract import SIZE, EngineContract, buffers_of, pattern

from radixtier.footprint import BLOCK
from radixtier.io.engine import Engine, transfer
from radixtier.io.fallback import FallbackEngine
from radixtier.io.faults import FaultEngine
from radixtier.io.frames import aligned_memory
from radixtier.io.kvikio import KvikioEngine
from radixtier.io.posix import PosixEngine

Say = Callable[[str], None]


class TestBefore(EngineContract):
    @pytest.fixture(autouse=True)
    def library(self, kvikio: Any) -> None:
        pass

    def make(self, directory: Path) -> Engine:
        return FallbackEngine(KvikioEngine(), PosixEngine(direct=True))


class TestFailingOpen(TestBefore):
    @pytest.fixture(autouse=True)
    def fault(self, library: None, say: Say) -> None:
        say("fail-at-open")


class TestFailingWrite(TestBefore):
    @pytest.fixture(autouse=True)
    def fault(self, library: None, say: Say) -> None:
        say("fail-at-write")


class TestBehindFaults(EngineContract):
    """The first transfer fails, whatever it is."""

    def make(self, directory: Path) -> Engine:
        first = FaultEngine(PosixEngine(direct=False))
        first.error("read")
        first.error("write")
        return FallbackEngine(first, PosixEngine(direct=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(pattern(SIZE, 0))
    return path


def opened(path: Path) -> tuple[FallbackEngine, FaultEngine, FaultEngine]:
    first, second = FaultEngine(PosixEngine(direct=False)), FaultEngine(PosixEngine(direct=False))
    engine = FallbackEngine(first, second)
    engine.open(path, SIZE)
    return engine, first, second


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("words", ["fail-at-open", "fail-at-write", "fail-at-read"])
def test_one_warning_and_all_data_served(
    kvikio: Any, path: Path, say: Say, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    say(words)
    engine = FallbackEngine(KvikioEngine(), PosixEngine(direct=False))
    engine.open(path, SIZE)
    data = pattern(8 * BLOCK, 1)
    for i in range(3):
        assert transfer(engine.writev, buffers_of(data, 3 * BLOCK, 5 * BLOCK), 8 * i * BLOCK) == (8 * BLOCK, None)
        back = aligned_memory(8 * BLOCK)
        assert transfer(engine.readv, [back], 8 * i * BLOCK) == (8 * BLOCK, None)
        assert back == data
    engine.sync()
    say("")  # it would work again, but is not asked
    calls = dict(kvikio.CALLS)
    assert transfer(engine.readv, [aligned_memory(BLOCK)], 0) == (BLOCK, None)
    engine.close()
    assert dict(kvikio.CALLS) == calls
    [line] = warnings(caplog)
    assert f"kvikio failed on {path}" in line
    assert words.rpartition("-")[2] in line
    assert "posix buffered from now on" in line
    assert engine.name == "posix buffered"


def test_sync_falls_back_too(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, first, second = opened(path)
    first.error("sync")
    engine.sync()
    engine.sync()
    assert (first.calls["sync"], second.calls["sync"]) == (1, 2)
    assert len(warnings(caplog)) == 1
    engine.close()


def test_moving_nothing_is_a_failure(path: Path) -> None:
    engine, first, second = opened(path)
    first.short("read")
    assert engine.readv([aligned_memory(BLOCK)], 0) == BLOCK
    assert (first.calls["read"], second.calls["read"]) == (1, 1)
    engine.close()


def test_a_short_count_is_none(path: Path) -> None:
    engine, first, second = opened(path)
    first.short("read", BLOCK)
    assert engine.readv([aligned_memory(4 * BLOCK)], 0) == BLOCK
    assert second.calls["read"] == 0
    engine.close()


def test_where_both_fail_the_error_is_the_seconds(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, first, second = opened(path)
    first.error("write", errno.EIO)
    full = second.full(at=0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as failure:
            engine.writev([aligned_memory(BLOCK)], 0)
        assert failure.value.errno == errno.ENOSPC
    second.error("sync", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        engine.sync()
    assert first.calls == {"write": 1}
    assert full.hits == 2
    assert len(warnings(caplog)) == 1
    engine.close()


def test_an_open_that_fails_on_both_leaves_nothing_open(kvikio: Any, path: Path, say: Say) -> None:
    say("fail-at-open")
    with pytest.raises(FileNotFoundError):
        FallbackEngine(KvikioEngine(), PosixEngine(direct=False)).open(path.with_name("absent"), SIZE)


def test_many_threads_fall_back_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, first, second = opened(path)
    held = first.hold("read")
    first.error("read")
    got: list[bytes] = []

    def read(i: int) -> None:
        buffer = aligned_memory(BLOCK)
        assert transfer(engine.readv, [buffer], i * BLOCK) == (BLOCK, None)
        got.append(bytes(buffer))

    threads = [threading.Thread(target=read, args=(i,), daemon=True) for i in range(6)]
    for thread in threads:
        thread.start()
    assert held.wait(6)
    held.release()
    for thread in threads:
        thread.join(10)
    assert sorted(got) == sorted(pattern(SIZE, 0)[i * BLOCK : (i + 1) * BLOCK] for i in range(6))
    assert (first.calls["read"], second.calls["read"]) == (6, 6)
    assert len(warnings(caplog)) == 1
    engine.close()


def test_alignment_only_falls(path: Path) -> None:
    first = FaultEngine(PosixEngine(direct=False))
    engine = FallbackEngine(first, PosixEngine(direct=True))
    engine.open(path, SIZE)
    before = engine.alignment
    first.error("read")
    engine.readv([aligned_memory(BLOCK)], 0)
    assert engine.alignment <= before
    engine.close()
