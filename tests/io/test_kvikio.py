"""The kvikio engine over a stand-in for the library: futures, counts, errors, and what it sets up."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_contract import SIZE, EngineContract, buffers_of, pattern

from radixtier.footprint import BLOCK
from radixtier.io import kvikio as engine_module
from radixtier.io.engine import Engine, transfer
from radixtier.io.frames import aligned_memory
from radixtier.io.kvikio import KvikioEngine

Say = Callable[[str], None]


class TestKvikio(EngineContract):
    @pytest.fixture(autouse=True)
    def library(self, kvikio: Any) -> None:
        pass

    def make(self, directory: Path) -> Engine:
        return KvikioEngine()


class TestKvikioLate(TestKvikio):
    """Nothing is done before somebody waits for it."""

    @pytest.fixture(autouse=True)
    def late(self, say: Say) -> None:
        say("late")


class DeviceBuffer:
    """Memory that only says where it is, as arrays on a GPU do."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.frombuffer(aligned_memory(nbytes), dtype=np.uint8)
        self.nbytes = nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        pointer = self.memory.ctypes.data
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(pattern(SIZE, 0))
    return path


@pytest.fixture
def engine(kvikio: Any, path: Path) -> Iterator[KvikioEngine]:
    engine = KvikioEngine()
    engine.open(path, SIZE)
    yield engine
    engine.close()


def test_a_future_per_buffer(kvikio: Any, engine: KvikioEngine, path: Path) -> None:
    data = pattern(6 * BLOCK, 1)
    assert engine.writev(buffers_of(data, BLOCK, 3 * BLOCK, 2 * BLOCK), 0) == 6 * BLOCK
    assert kvikio.CALLS["pwrite"] == 3
    assert path.read_bytes()[: 6 * BLOCK] == data


def test_device_buffers(engine: KvikioEngine, path: Path) -> None:
    buffers: Any = [DeviceBuffer(2 * BLOCK), DeviceBuffer(BLOCK)]
    assert engine.readv(buffers, 4 * BLOCK) == 3 * BLOCK
    got = b"".join(b.memory.tobytes() for b in buffers)
    assert got == pattern(SIZE, 0)[4 * BLOCK : 7 * BLOCK]
    assert engine.writev(buffers, 0) == 3 * BLOCK
    assert path.read_bytes()[: 3 * BLOCK] == got


def test_device_reads_are_short_past_the_end(engine: KvikioEngine) -> None:
    buffers: Any = [DeviceBuffer(BLOCK), DeviceBuffer(2 * BLOCK), DeviceBuffer(BLOCK)]
    assert engine.readv(buffers, SIZE - 2 * BLOCK) == 2 * BLOCK
    assert engine.readv(buffers, SIZE) == 0


def test_host_reads_past_the_end_raise_if_nothing_was_moved(engine: KvikioEngine) -> None:
    buffers = [aligned_memory(BLOCK) for _ in range(3)]
    assert engine.readv(buffers, SIZE - 2 * BLOCK) == 2 * BLOCK
    with pytest.raises(OSError, match="EOF") as failure:
        engine.readv(buffers, SIZE)
    assert failure.value.errno == errno.EIO
    assert "posix_io.hpp" not in str(failure.value)


@pytest.mark.parametrize(
    ("words", "blocks"), [("late fail-at-read", 0), ("late refuse-pread-1", 0), ("late refuse-pread-3", 4)]
)
def test_nothing_is_in_flight_after_an_error(
    kvikio: Any, engine: KvikioEngine, say: Say, words: str, blocks: int
) -> None:
    """What fails in the middle does not give back the buffers around it before they are at rest."""
    say(words)
    moved = transfer(engine.readv, [aligned_memory(BLOCK) for _ in range(4)], 0)
    assert set() == kvikio.UNFINISHED
    assert moved.nbytes == blocks * BLOCK
    assert (moved.error is None) == (blocks == 4)


def test_a_refusal_at_the_first_buffer_is_an_error(engine: KvikioEngine, say: Say) -> None:
    say("refuse-pread-1")
    with pytest.raises(OSError, match="not taken"):
        engine.readv([aligned_memory(BLOCK)], 0)
    assert engine.readv([aligned_memory(BLOCK)], 0) == BLOCK


def test_errors_have_their_text_and_one_number(engine: KvikioEngine, say: Say) -> None:
    say("fail-at-write")
    with pytest.raises(OSError, match="no write today") as failure:
        engine.writev([aligned_memory(BLOCK)], 0)
    assert failure.value.errno == errno.EIO
    assert "fake.cpp" not in str(failure.value)


def test_a_failing_open_leaves_nothing_open(kvikio: Any, path: Path, say: Say) -> None:
    say("fail-at-open")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="cannot open it: no open today"):
        KvikioEngine().open(path, SIZE)
    assert set(os.listdir("/proc/self/fd")) == before


def test_without_the_library(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(OSError, match="kvikio cannot be used"):
        KvikioEngine().open(path, SIZE)


def test_a_failing_close_is_told_and_closes(
    kvikio: Any, path: Path, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    engine = KvikioEngine()
    engine.open(path, SIZE)
    say("fail-at-close")
    engine.close()
    assert [r.message for r in caplog.records] == ["radixtier: kvikio could not close a file: no close today"]
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_library_is_set_up_once(kvikio: Any, path: Path) -> None:
    for _ in range(3):
        engine = KvikioEngine()
        engine.open(path, SIZE)
        engine.close()
    assert kvikio.CALLS["set"] == 1
    assert kvikio.CALLS["open"] == 3
    assert kvikio.defaults.get("num_threads") == engine_module.THREADS
    assert kvikio.defaults.get("auto_direct_io_read") is True


def test_a_library_without_our_settings_is_not_used(kvikio: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kvikio.defaults

    monkeypatch.delitem(kvikio.defaults._VALUES, "auto_direct_io_read")
    with pytest.raises(OSError, match="cannot be used: KeyError: 'auto_direct_io_read'"):
        KvikioEngine().open(path, SIZE)


@pytest.mark.parametrize("given", ["", "/var/log/mine.log"])
def test_the_log_of_cufile_is_not_in_the_working_directory(
    kvikio: Any, path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(engine_module.LOG_VARIABLE, given)
    engine = KvikioEngine()
    engine.open(path, SIZE)
    engine.close()
    log = Path(os.environ[engine_module.LOG_VARIABLE])
    assert log.is_absolute()
    if given:
        assert str(log) == given
    else:
        assert log.parent != Path.cwd()
        assert log.parent.stat().st_mode & 0o077 == 0
