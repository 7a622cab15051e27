"""Which jobs are open, what became of their chunks, and the figures of all transfers.

Owns the progress of jobs and the counters. Invariant: every chunk is accounted for once, and a job is published when
its last chunk is. Any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from radixtier.io.engine import Moved
from radixtier.store.jobs import Chunk, Job, JobDone
from radixtier.store.latency import Latencies
from radixtier.store.meter import BandwidthMeter

logger = logging.getLogger(__name__)

KINDS = ("read", "write", "verify")

COUNTERS = (*(f"{kind}_{what}" for kind in KINDS for what in ("pages", "bytes", "errors")), "corrupt", "cancelled")


class Board:
    """Accounts of the jobs of one store; ``wake`` is called whenever :meth:`take` has something new."""

    def __init__(self, slot_bytes: int, wake: Callable[[], None] | None) -> None:
        self._slot_bytes = slot_bytes
        self._wake = wake
        self._lock = threading.Lock()  # guards everything below, and the jobs' progress
        self._idle = threading.Condition(self._lock)
        self._open_jobs = 0
        self._running = 0
        self._finished: deque[tuple[Job, JobDone]] = deque()
        self._meter = BandwidthMeter()
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._busy = dict.fromkeys(KINDS, 0.0)
        self.latencies = Latencies()

    def open(self, job: Job) -> None:
        """Count a job that starts; its number of chunks is set."""
        with self._lock:
            self._open_jobs += 1

    def begin(self, chunk: Chunk, now: float) -> None:
        """Count a transfer that starts."""
        job = chunk.job
        with self._lock:
            self._running += 1
            if job.started_at is None:
                job.started_at = now
            if job.kind == "read":
                self._meter.begin(now)

    def end(self, chunk: Chunk, begin: float, end: float, moved: Moved, *, blame: bool = True) -> None:
        """Count a transfer that is over; without ``blame`` its slots are still trusted where nothing arrived."""
        job = chunk.job
        if moved.error is None:
            self.latencies.add(job.kind, end - begin, moved.nbytes)
        with self._lock:
            self._running -= 1
            self._busy[job.kind] += end - begin
            job.nbytes += moved.nbytes
            if job.kind == "read":
                self._meter.end(end, moved.nbytes)
            job.bad[chunk.lo : chunk.hi] = (~job.ok if blame else job.corrupt)[chunk.lo : chunk.hi]
        self.over([chunk], moved.error)

    def over(self, chunks: list[Chunk], error: str | None, *, cancelled: bool = False) -> None:
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
                    self._finished.append((job, job.done()))
                    self._open_jobs -= 1
                    published = True
            if published and not self._open_jobs:
                self._idle.notify_all()
        if published:
            self.wake()

    def _count(self, job: Job, lo: int, hi: int, cancelled: bool) -> None:
        good = int(job.ok[lo:hi].sum())
        corrupt = int(job.corrupt[lo:hi].sum())
        bad = hi - lo - good - corrupt
        self._counters[f"{job.kind}_pages"] += good
        self._counters[f"{job.kind}_bytes"] += good * self._slot_bytes
        self._counters["corrupt"] += corrupt
        self._counters["cancelled" if cancelled else f"{job.kind}_errors"] += bad

    def wake(self) -> None:
        """Tell the owner that there is something new."""
        if self._wake is None:
            return
        try:
            self._wake()
        except Exception:  # on an I/O thread nobody else would ever know
            logger.exception("radixtier: the wake callback failed")

    def take(self) -> list[tuple[Job, JobDone]]:
        """Return what ended since the last call, in the order in which it ended."""
        with self._lock:
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def wait_idle(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until no job is open; return whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open_jobs == 0, timeout)

    def read_bandwidth(self) -> float:
        """Return a running estimate in bytes per second while reads are active; 0.0 before the first."""
        with self._lock:
            return self._meter.rate

    def stats(self) -> dict[str, float]:
        """Return the counters, busy seconds per kind, and the transfers that run."""
        with self._lock:
            busy = {f"{kind}_busy_seconds": seconds for kind, seconds in self._busy.items()}
            return {**self._counters, **busy, "running": self._running}
