"""The page store: slots on NVMe and the threads that move pages to and from them.

Owns the slab file, its slots and the I/O threads. Invariants: ``free_slots + used_slots == n_slots``; a slot
with a transfer in flight is neither freed nor written by another; nothing on the data path raises for what
the device does. The scheduler thread calls everything but `stats` and `read_bandwidth`, which any thread may
call; the I/O threads touch only frames, file and the arrays of the job at hand, and what they find out goes
through `poll`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np

from radixtier.io.engine import Engine, Moved
from radixtier.io.frames import FrameBuffer
from radixtier.store.chunks import ChunkMover
from radixtier.store.extents import ExtentMap
from radixtier.store.jobs import Chunk, ChunkQueue, Ints, Job, JobDone, Kind, Priority, Sums, cut
from radixtier.store.meter import BandwidthMeter
from radixtier.store.slab import PATH_FLAG, StoreError, open_slab, slot_bytes

logger = logging.getLogger(__name__)

THREADS = 8
"""Transfers in flight. A few keep a drive busy; the others stand in for threads that wait for the GIL."""

IO_BYTES = 4 << 20
"""Bytes per transfer: large, so that threads meet rarely; small, so that a read waits little for writes."""

COUNTERS = (
    *("read_pages", "read_bytes", "read_errors"),
    *("write_pages", "write_bytes", "write_errors"),
    *("corrupt", "cancelled"),
)


class PageStore:
    """Stores page images in slots and brings them back, checked.

    A slot belongs to the caller from `alloc` to `free`. `write` and `read` return at once; results come from
    `poll`. Between the call and its `JobDone` the caller keeps the frames leased and does not free the slots.

    Parameters
    ----------
    directory
        Directory for the slab file; created with mode 0700 if absent, locked while the store is open.
    capacity_bytes
        Hard cap on the bytes in ``directory``.
    frames
        The DRAM pool that pages are written from and read into.
    engine
        An engine that is not open yet; the store opens and closes it.
    threads
        I/O threads, hence transfers in flight; writes use at most half of them.
    io_bytes
        Largest transfer in bytes; at least one page goes per transfer.
    wake
        Called on an I/O thread whenever `poll` has something new; must be quick.

    Raises
    ------
    StoreError
        When the directory cannot be used; the message names the flag and the fix.
    """

    def __init__(
        self,
        directory: Path,
        capacity_bytes: int,
        frames: FrameBuffer,
        *,
        engine: Engine,
        threads: int = THREADS,
        io_bytes: int = IO_BYTES,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._n_frames = frames.n_frames
        self._slab = open_slab(directory, capacity_bytes, frames.page_bytes)
        try:
            engine.open(self._slab.path, self._slab.nbytes)
        except OSError as e:
            self._slab.close()
            raise StoreError(f"{PATH_FLAG} {directory}: cannot open the slab with {engine.name}: {e}") from e
        self.slot_bytes = slot_bytes(frames.page_bytes)
        self.n_slots = self._slab.nbytes // self.slot_bytes
        self._extents = ExtentMap(self.n_slots)
        self._used = np.zeros(self.n_slots, dtype=np.bool_)
        self._writing = np.zeros(self.n_slots, dtype=np.bool_)
        self._reading = np.zeros(self.n_slots, dtype=np.int16)

        self._pages_per_chunk = max(1, io_bytes // self.slot_bytes)
        self._queue = ChunkQueue(max_writes=max(1, threads // 2))
        self._wake = wake
        self._lock = threading.Lock()  # guards everything below, and the jobs' progress
        self._idle = threading.Condition(self._lock)
        self._open_jobs = 0
        self._running = 0
        self._finished: deque[JobDone] = deque()
        self._meter = BandwidthMeter()
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._busy = {"read": 0.0, "write": 0.0}
        self._workers = [
            threading.Thread(target=self._work, args=(frames,), name=f"radixtier-io-{i}", daemon=True)
            for i in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    # Slots

    @property
    def free_slots(self) -> int:
        """Slots that `alloc` can hand out."""
        return self._extents.free_slots

    @property
    def used_slots(self) -> int:
        """Slots handed out and not freed, transfers in flight or not."""
        return self.n_slots - self._extents.free_slots

    def alloc(self, n: int) -> Ints | None:
        """Return ``n`` slots in filling order, consecutive as far as possible; None if fewer are free."""
        extents = self._extents.alloc(n)
        if extents is None:
            return None
        runs = [np.arange(e.start, e.start + e.length, dtype=np.int64) for e in extents]
        slots = np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
        self._used[slots] = True
        return slots

    def free(self, slots: Ints) -> None:
        """Give slots back, in any order; none may have a transfer that `poll` has not reported yet."""
        assert self._used[slots].all(), "a slot is freed that is not in use"
        self._assert_quiet(slots)
        ordered = np.sort(slots)
        for lo, hi in cut(ordered, max(1, len(ordered))):
            self._extents.free(int(ordered[lo]), hi - lo)
        self._used[slots] = False

    def _assert_quiet(self, slots: Ints) -> None:
        assert not self._writing[slots].any(), "a slot is being written"
        assert not self._reading[slots].any(), "a slot is being read"

    # Transfers

    def write(self, frames: Ints, slots: Ints, seeds: Sums, tag: Hashable) -> None:
        """Queue the writing of ``frames[i]`` to ``slots[i]``; `poll` brings checksums seeded by ``seeds[i]``.

        The frames must not change until the result is polled: their very bytes are hashed and written.
        """
        self._assert_quiet(slots)
        self._writing[slots] = True
        sums = np.zeros(len(slots), dtype=np.uint64)
        self._submit("write", frames, slots, seeds, sums, tag, Priority.WRITE)

    def read(
        self,
        frames: Ints,
        slots: Ints,
        seeds: Sums,
        checksums: Sums,
        tag: Hashable,
        priority: Priority = Priority.DEMANDED,
    ) -> None:
        """Queue the reading of ``slots[i]`` into ``frames[i]`` and its check against ``checksums[i]``.

        What a frame holds after a page that failed is undefined.
        """
        assert not self._writing[slots].any(), "a slot is read before it is written"
        np.add.at(self._reading, slots, 1)
        self._submit("read", frames, slots, seeds, np.array(checksums, dtype=np.uint64), tag, priority)

    def _submit(
        self,
        kind: Kind,
        frames: Ints,
        slots: Ints,
        seeds: Sums,
        sums: Sums,
        tag: Hashable,
        priority: Priority,
    ) -> None:
        assert len(frames) == len(slots) == len(seeds) == len(sums)
        assert ((frames >= 0) & (frames < self._n_frames)).all(), f"{kind} of a frame outside the pool"
        assert self._used[slots].all(), f"{kind} of a slot that is not in use"
        n = len(slots)
        job = Job(
            tag=tag,
            kind=kind,
            frames=np.array(frames, dtype=np.int64),
            slots=np.array(slots, dtype=np.int64),
            seeds=np.array(seeds, dtype=np.uint64),
            checksums=sums,
            ok=np.zeros(n, dtype=np.bool_),
            corrupt=np.zeros(n, dtype=np.bool_),
        )
        ranges = cut(job.slots, self._pages_per_chunk)
        job.chunks_left = max(1, len(ranges))
        with self._lock:
            self._open_jobs += 1
        if not ranges:
            self._over([Chunk(priority, 0, job, 0, 0)], None)
        elif not self._queue.push(job, ranges, priority):
            job.chunks_left = 1
            self._over([Chunk(priority, 0, job, 0, n)], "the store is closed")

    def poll(self) -> list[JobDone]:
        """Return the jobs that ended since the last call, in the order in which they ended."""
        with self._lock:
            finished, self._finished = list(self._finished), deque()
        for job in finished:
            if job.kind == "write":
                self._writing[job.slots] = False
            else:
                np.subtract.at(self._reading, job.slots, 1)
        return finished

    def cancel(self, tag: Hashable) -> None:
        """Drop what has not started of the jobs with this tag; they end as `cancelled` once the rest has."""
        self._over(self._queue.remove(tag), None, cancelled=True)

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until every job has ended; return whether they have."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open_jobs == 0, timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Cancel what waits, wait up to ``timeout`` seconds for what runs, give the directory up.

        Returns
        -------
        bool
            False if a transfer is stuck: file and lock are then kept, since it may still move bytes.
        """
        self._over(self._queue.close(), None, cancelled=True)
        deadline = time.monotonic() + timeout
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        if any(worker.is_alive() for worker in self._workers):
            logger.error("a transfer on %s is stuck: it stays open until the process ends", self._slab.path)
            return False
        self._engine.close()
        self._slab.close()
        return True

    # Figures

    def read_bandwidth(self) -> float:
        """Return a running estimate in bytes per second while reads are active; 0.0 before the first."""
        with self._lock:
            return self._meter.rate

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and the chunks that wait and run now.

        ``{read,write}_{pages,bytes}`` count what arrived and is right, ``{read,write}_errors`` pages that the
        device failed, ``corrupt`` pages with a wrong checksum, ``cancelled`` pages dropped before they
        started; ``{read,write}_busy_seconds`` add up over threads.
        """
        with self._lock:
            busy = {f"{kind}_busy_seconds": seconds for kind, seconds in self._busy.items()}
            return {**self._counters, **busy, "queue_depth": len(self._queue), "running": self._running}

    # I/O threads

    def _work(self, frames: FrameBuffer) -> None:
        mover = ChunkMover(self._engine, frames, self._pages_per_chunk)
        while (chunk := self._queue.pop()) is not None:
            self._run(mover, chunk)
            self._queue.finished(chunk)

    def _run(self, mover: ChunkMover, chunk: Chunk) -> None:
        job = chunk.job
        begin = time.perf_counter()
        with self._lock:
            self._running += 1
            if job.started_at is None:
                job.started_at = begin
            if job.kind == "read":
                self._meter.begin(begin)
        try:
            moved = mover.run(chunk)
        except Exception as e:  # a worker outlives whatever a chunk does to it
            logger.exception("transfer failed on %s", self._slab.path)
            moved = Moved(0, f"{type(e).__name__}: {e}")
        end = time.perf_counter()
        with self._lock:
            self._running -= 1
            self._busy[job.kind] += end - begin
            job.nbytes += moved.nbytes
            if job.kind == "read":
                self._meter.end(end, moved.nbytes)
        self._over([chunk], moved.error)

    def _over(self, chunks: list[Chunk], error: str | None, *, cancelled: bool = False) -> None:
        """Account for chunks that ended, and publish the jobs that this completes."""
        published = False
        with self._lock:
            for chunk in chunks:
                job = chunk.job
                self._count(job, chunk.lo, chunk.hi, cancelled)
                job.error = job.error or error
                job.cancelled |= cancelled
                job.chunks_left -= 1
                if not job.chunks_left:
                    self._finished.append(job.done())
                    self._open_jobs -= 1
                    published = True
            if published and not self._open_jobs:
                self._idle.notify_all()
        if published and self._wake is not None:
            try:
                self._wake()
            except Exception:  # on an I/O thread nobody else would ever know
                logger.exception("the wake callback failed")

    def _count(self, job: Job, lo: int, hi: int, cancelled: bool) -> None:
        good = int(job.ok[lo:hi].sum())
        corrupt = int(job.corrupt[lo:hi].sum())
        bad = hi - lo - good - corrupt
        self._counters[f"{job.kind}_pages"] += good
        self._counters[f"{job.kind}_bytes"] += good * self.slot_bytes
        self._counters["corrupt"] += corrupt
        self._counters["cancelled" if cancelled else f"{job.kind}_errors"] += bad
