"""The transfers of pages on one drive: the chunks that wait, and the threads that move them.

Owns the drive's queue and I/O threads. Invariant: no transfer starts while the drive is stopped, and whatever the
device does ends in a chunk that is over; a thread that hangs hangs alone. `push`, `cancel` and `look` are the
scheduler's; `stop` is the keeper's; `resume` is for whoever knows that the slots of queued chunks are right.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Protocol

from radixtier.footprint import HEADER_BYTES, slot_bytes
from radixtier.io.engine import Engine, Moved
from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.store.board import Board
from radixtier.store.chunks import ChunkMover, SpareBuffer
from radixtier.store.health import Health, Trouble
from radixtier.store.jobs import Chunk, ChunkQueue, Job, Priority

logger = logging.getLogger(__name__)

WRITES = 2
"""Writes in flight on a drive: two large ones keep it busy, more would only get into the way of reads and of the
threads that hash."""


class OpenSlab(Protocol):
    """Pages behind an engine."""

    engine: Engine

    @property
    def path(self) -> Path:
        """The file."""


class Transfers:
    """Transfers of one slab, whose first slot is ``base`` of the store, on ``threads`` threads."""

    def __init__(
        self,
        slab: OpenSlab,
        frames: FrameBuffer,
        board: Board,
        health: Health,
        *,
        base: int,
        pages_per_chunk: int,
        threads: int,
        landing: LandingZone | None = None,
    ) -> None:
        self._slab = slab
        self._board = board
        self._health = health
        self._base = base
        self._slot_bytes = slot_bytes(frames.page_bytes)
        self._queue = ChunkQueue(most=min(WRITES, max(1, threads // 2)))
        self._serving = True
        self._since = [0.0] * threads
        """When the transfer of each thread began; 0.0 while it has none."""
        spare = SpareBuffer(pages_per_chunk * self._slot_bytes)
        hashing = threading.Lock()
        movers = [ChunkMover(frames, pages_per_chunk, spare, hashing, landing) for _ in range(threads)]
        self._workers = [
            threading.Thread(target=self._work, args=(i, mover), name=f"radixtier-io-{base}-{i}", daemon=True)
            for i, mover in enumerate(movers)
        ]

    def start(self) -> None:
        """Start the threads."""
        for worker in self._workers:
            worker.start()

    @property
    def serving(self) -> bool:
        """Whether transfers may start."""
        return self._serving

    @property
    def waiting(self) -> int:
        """Chunks that wait."""
        return len(self._queue)

    def push(self, job: Job, ranges: list[tuple[int, int]], priority: Priority) -> None:
        """Queue chunks of a job, or end them at once when the drive hangs or is closed."""
        why = "the drive hangs" if self._health.kind == "stalled" else None
        if why or not self._queue.push(job, ranges, priority):
            chunks = [Chunk(priority, 0, job, lo, hi) for lo, hi in ranges]
            self._board.over(chunks, why or "the store is closed")

    def cancel(self, tag: Hashable) -> None:
        """Drop the waiting chunks of the jobs with this tag."""
        self._board.over(self._queue.remove(tag), None, cancelled=True)

    def longest(self) -> float:
        """Return for how many seconds the oldest transfer has been running; 0.0 when none is."""
        begun = [since for since in self._since if since]
        return time.monotonic() - min(begun) if begun else 0.0

    def abandon(self, why: str) -> None:
        """End all chunks that wait."""
        self._board.over(self._queue.clear(), why)

    def stop(self) -> bool:
        """Let no transfer start until `resume`; return whether none is running."""
        self._serving = False
        self.abandon("the slab is gone")
        return not any(self._since)

    def resume(self) -> None:
        """Let transfers start again."""
        self._serving = True

    def close(self) -> None:
        """Cancel what waits and send the threads home."""
        self._board.over(self._queue.close(), None, cancelled=True)

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the threads to end; return whether they have."""
        end = time.monotonic() + timeout
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
        return not any(worker.is_alive() for worker in self._workers)

    def _work(self, i: int, mover: ChunkMover) -> None:
        while (chunk := self._queue.pop()) is not None:
            # In this order: `stop` looks the other way round, so one of the two sees the other.
            self._since[i] = time.monotonic()
            if self._serving:
                self._run(mover, chunk)
            else:
                self._board.over([chunk], "the slab is gone")
            self._since[i] = 0.0
            self._queue.finished(chunk)

    def _run(self, mover: ChunkMover, chunk: Chunk) -> None:
        begin = time.perf_counter()
        self._board.begin(chunk, begin)
        offset = HEADER_BYTES + (int(chunk.job.slots[chunk.lo]) - self._base) * self._slot_bytes
        try:
            moved = mover.run(chunk, self._slab.engine, offset)
        except Exception as e:  # a worker outlives whatever a chunk does to it
            logger.exception("radixtier: transfer failed on %s", self._slab.path)
            moved = Moved(0, f"{type(e).__name__}: {e}")
        lands = mover.lands(chunk)
        # It may be the way to the GPU that fails: the same pages through DRAM will tell whether it is the drive.
        if moved.error is not None and not lands:
            self._health.fail(Trouble("io", f"{chunk.job.kind} on {self._slab.path} failed: {moved.error}"))
        self._board.end(chunk, begin, time.perf_counter(), moved, blame=not lands)
