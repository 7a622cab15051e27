"""The fault engine does exactly the damage it was asked for."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_contract import SIZE, buffers_of, pattern

from radixtier.io.engine import transfer
from radixtier.io.faults import FASTEST_BYTES_PER_S, FaultEngine, Lane
from radixtier.io.frames import BLOCK, aligned_memory
from radixtier.io.posix import PosixEngine

N = 8 * BLOCK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[FaultEngine]:
    engine = FaultEngine(PosixEngine(direct=False), seed=1)
    engine.open(path, SIZE)
    yield engine
    engine.close()


def write(engine: FaultEngine, salt: int = 1, offset: int = 0) -> tuple[int, str | None]:
    return transfer(engine.writev, buffers_of(pattern(N, salt), N // 2, N // 2), offset)


def read(engine: FaultEngine, offset: int = 0) -> bytes:
    buffer = aligned_memory(N)
    assert transfer(engine.readv, [buffer], offset) == (N, None)
    return bytes(buffer)


def differing(a: bytes, b: bytes) -> list[int]:
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]


def test_error_hits_the_calls_it_was_told_to(engine: FaultEngine) -> None:
    fault = engine.error("write", errno.EIO, skip=1, times=2)
    results = [write(engine)[0] for _ in range(5)]
    assert results == [N, 0, 0, N, N]
    assert fault.hits == 2
    assert engine.calls == {"write": 5}


def test_error_in_a_range_lets_the_bytes_before_through(engine: FaultEngine, path: Path) -> None:
    engine.error("write", errno.EIO, within=(3 * BLOCK, 4 * BLOCK))
    nbytes, error = write(engine)
    assert nbytes == 3 * BLOCK
    assert error is not None
    assert "Input/output error" in error
    assert path.read_bytes()[:N] == pattern(N, 1)[: 3 * BLOCK] + bytes(5 * BLOCK)
    assert write(engine, offset=4 * BLOCK) == (N, None)


def test_full_disk_ends_at_an_offset(engine: FaultEngine) -> None:
    engine.full(at=10 * BLOCK)
    assert write(engine, offset=0) == (N, None)
    nbytes, error = write(engine, offset=8 * BLOCK)
    assert nbytes == 2 * BLOCK
    assert error is not None
    assert "No space left" in error
    assert write(engine, offset=16 * BLOCK)[0] == 0
    assert read(engine) == pattern(N, 1)


def test_short_counts(engine: FaultEngine) -> None:
    engine.short("read", 2 * BLOCK)
    assert engine.readv([aligned_memory(N)], 0) == 2 * BLOCK
    assert read(engine) == bytes(N)  # continued until complete
    engine.clear()
    engine.short("write")
    assert write(engine)[0] == 0


@pytest.mark.parametrize("op", ["read", "write"])
def test_flip_changes_one_bit(engine: FaultEngine, path: Path, op: str) -> None:
    fault = engine.flip("read" if op == "read" else "write", times=1)
    assert write(engine) == (N, None)
    got = read(engine)
    [at] = differing(got, pattern(N, 1))
    assert bin(got[at] ^ pattern(N, 1)[at]).count("1") == 1
    assert fault.hits == 1
    assert read(engine) == (pattern(N, 1) if op == "read" else got)


def test_tear_claims_success(engine: FaultEngine) -> None:
    engine.tear("write")
    assert write(engine) == (N, None)
    engine.clear()
    assert read(engine) == pattern(N, 1)[: N // 2] + bytes(N // 2)


def test_hold_stops_until_released(engine: FaultEngine) -> None:
    held = engine.hold("write")
    done: list[tuple[int, str | None]] = []
    threads = [threading.Thread(target=lambda: done.append(write(engine)), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert held.wait(2)
    assert done == []
    assert read(engine) == bytes(N)
    held.release()
    for thread in threads:
        thread.join(10)
    assert done == [(N, None)] * 2


def test_delay_then_another_fault(engine: FaultEngine) -> None:
    engine.delay("read", 0.02)
    engine.flip("read")
    start = time.monotonic()
    assert len(differing(read(engine), bytes(N))) == 1
    assert time.monotonic() - start >= 0.02


def test_clear_releases_and_heals(engine: FaultEngine) -> None:
    held = engine.hold("write")
    engine.error("write")
    thread = threading.Thread(target=write, args=(engine,), daemon=True)
    thread.start()
    assert held.wait()
    engine.clear()
    thread.join(10)
    assert not thread.is_alive()
    assert write(engine) == (N, None)


def test_chance_depends_on_seed_and_offset_not_on_order(path: Path) -> None:
    def failures(seed: int, order: list[int]) -> set[int]:
        engine = FaultEngine(PosixEngine(direct=False), seed=seed)
        engine.open(path, SIZE)
        engine.error("read", chance=0.5)
        failed = {i for i in order if transfer(engine.readv, [aligned_memory(BLOCK)], i * BLOCK).error}
        engine.close()
        return failed

    order = list(range(200))
    assert failures(1, order) == failures(1, order[::-1])
    assert failures(1, order) != failures(2, order)
    assert 50 < len(failures(1, order)) < 150


def test_sync_fails_and_waits_as_transfers_do(engine: FaultEngine) -> None:
    fault = engine.error("sync", errno.EIO, skip=1, times=1)
    engine.sync()
    with pytest.raises(OSError, match="Input/output error"):
        engine.sync()
    engine.sync()
    assert (fault.hits, engine.calls["sync"]) == (1, 3)
    held = engine.hold("sync")
    thread = threading.Thread(target=engine.sync, daemon=True)
    thread.start()
    assert held.wait()
    assert write(engine) == (N, None)
    held.release()
    thread.join(10)
    assert not thread.is_alive()


def test_slow_transfers_queue_for_what_is_left_of_the_bandwidth(engine: FaultEngine) -> None:
    fault = engine.slow("read", 10.0)
    begun = time.monotonic()
    assert read(engine) == bytes(N)
    assert fault.lane.free_at - begun >= 10 * N / FASTEST_BYTES_PER_S
    assert time.monotonic() >= fault.lane.free_at
    assert write(engine) == (N, None)
    assert (fault.hits, engine.calls) == (1, {"read": 1, "write": 1})


def test_a_lane_gives_its_time_once() -> None:
    lane = Lane()
    assert lane.take(1.0, 2.0) == 3.0
    assert lane.take(1.5, 2.0) == 5.0
    assert lane.take(9.0, 1.0) == 10.0


def test_clear_ends_what_is_slow(engine: FaultEngine) -> None:
    lane = Lane()
    for op in ("read", "write"):
        engine.slow(op, 1e9, lane)  # type: ignore[arg-type]
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: done.append(read(engine)), daemon=True)
    thread.start()
    while lane.free_at == 0.0:
        thread.join(0.001)
    assert done == []
    engine.clear()
    thread.join(10)
    assert done == [bytes(N)]
