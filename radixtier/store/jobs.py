"""Jobs, the chunks they are cut into, and the queue in which chunks wait.

Owns what is waiting. Invariant: a chunk is in the queue, with exactly one worker, or over; a job is over when
all its chunks are. The queue may be called from any thread; a job's result arrays are written by the workers,
each its own pages, and read by others only when the job is over.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Kind = Literal["read", "write", "verify"]
Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class Priority(IntEnum):
    """Lower goes first: somebody waits for it, somebody may, nobody does, it only looks for bad pages."""

    DEMANDED = 0
    SPECULATIVE = 1
    WRITE = 2
    SCRUB = 3


@dataclass(slots=True)
class Job:
    """One call of `PageStore.read`, `write` or `verify`; arrays are ``[pages]``."""

    tag: Hashable
    kind: Kind
    frames: Ints
    slots: Ints
    seeds: Sums
    checksums: Sums
    """Of a read: what the pages must have, replaced by what they had. Of a write: the result."""
    ok: Flags
    corrupt: Flags
    bad: Flags
    """The drive was asked for the page and failed, or gave wrong bytes: its slot is not to be trusted."""
    weighted: Sums | None = None
    """Of a write for a store with a landing zone: the result's second checksums."""
    order: Ints | None = None
    """Where the caller has each page, if pages were put into another order."""
    chunks_left: int = 0
    nbytes: int = 0
    cancelled: bool = False
    error: str | None = None
    queued_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None

    def done(self) -> JobDone:
        """Return the result, once no chunk is left."""
        now = time.perf_counter()
        started = now if self.started_at is None else self.started_at
        back = slice(None) if self.order is None else np.argsort(self.order)
        return JobDone(
            self.tag, self.kind, self.slots[back], self.ok[back], self.corrupt[back], self.checksums[back], self.nbytes,
            self.cancelled, self.error, queue_seconds=started - self.queued_at, service_seconds=now - started,
            weighted=self.weighted,
        )  # fmt: skip


class JobDone(NamedTuple):
    """What became of a job; arrays are ``[pages]`` in the order of the call."""

    tag: Hashable
    kind: Kind
    slots: Ints
    ok: Flags
    """Transferred completely and, for a read, verified."""
    corrupt: Flags
    """Read completely, but with another checksum; never `ok`."""
    checksums: Sums
    """Checksums of the bytes that went by; meaningless where neither `ok` nor `corrupt`."""
    nbytes: int
    """Bytes moved, padding of the slots included."""
    cancelled: bool
    """Part or all of it was dropped by `cancel` or `close`."""
    error: str | None
    """The first failure, as text."""
    queue_seconds: float
    """From the call to the first transfer."""
    service_seconds: float
    """From the first transfer to the last."""
    weighted: Sums | None = None
    """Weighted sums of what a write wrote, where the store has a landing zone."""


class Chunk(NamedTuple):
    """Pages ``lo .. hi - 1`` of a job, in consecutive slots; sorts by priority, then age."""

    priority: int
    number: int
    job: Job
    lo: int
    hi: int


def new_job(kind: Kind, frames: Ints, slots: Ints, seeds: Sums, checksums: Sums, tag: Hashable) -> Job:
    """Return a job with copies of what the caller gave."""
    n = len(slots)
    return Job(
        tag=tag,
        kind=kind,
        frames=np.array(frames, dtype=np.int64),
        slots=np.array(slots, dtype=np.int64),
        seeds=np.array(seeds, dtype=np.uint64),
        checksums=np.array(checksums, dtype=np.uint64),
        ok=np.zeros(n, dtype=np.bool_),
        corrupt=np.zeros(n, dtype=np.bool_),
        bad=np.zeros(n, dtype=np.bool_),
    )


def cut(slots: Ints, pages_per_chunk: int, lanes: Ints | None = None) -> list[tuple[int, int]]:
    """Return ``(lo, hi)`` of the runs of consecutive slots, none longer than ``pages_per_chunk``.

    Where ``lanes``, of the same shape, changes, a run ends.
    """
    if not len(slots):
        return []
    breaks = np.diff(slots) != 1
    if lanes is not None:
        breaks |= np.diff(lanes) != 0
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), len(slots)]
    ranges: list[tuple[int, int]] = []
    lo = 0
    for end in ends:
        for start in range(lo, end, pages_per_chunk):
            ranges.append((start, min(start + pages_per_chunk, end)))
        lo = end
    return ranges


def expand(runs: Ints) -> Ints:
    """Return the slots of runs, given as ``(first slot, slots)``, shape ``[runs, 2]``, one after the other."""
    first, n = runs[:, 0], runs[:, 1]
    ends = np.cumsum(n)
    slots: Ints = np.repeat(first - (ends - n), n) + np.arange(int(n.sum()))
    return slots


class ChunkQueue:
    """Chunks that wait for a worker, of which at most ``most`` may be writing or verifying, one of them verifying.

    The limit keeps a read that arrives amid write-behind from queueing behind a drive full of writes.
    """

    def __init__(self, most: int) -> None:
        self._ready = threading.Condition()
        self._heap: list[Chunk] = []
        self._pushed = 0
        self._left = most
        self._verifying = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, job: Job, ranges: list[tuple[int, int]], priority: Priority) -> bool:
        """Queue the chunks of a job; False, with nothing queued, once the queue is closed."""
        with self._ready:
            if self._closed:
                return False
            for lo, hi in ranges:
                heapq.heappush(self._heap, Chunk(priority, self._pushed, job, lo, hi))
                self._pushed += 1
            self._ready.notify(len(ranges))
        return True

    def pop(self) -> Chunk | None:
        """Wait for the next chunk; None once the queue is closed. The worker reports back by `finished`."""
        with self._ready:
            self._ready.wait_for(lambda: self._closed or self._head_may_run())
            if self._closed:
                return None
            chunk = heapq.heappop(self._heap)
            self._left -= chunk.job.kind != "read"
            self._verifying |= chunk.job.kind == "verify"
        return chunk

    def _head_may_run(self) -> bool:
        # Priorities put reads before writes before verifying, so what waits at the head hides nothing that may run.
        if not self._heap:
            return False
        kind = self._heap[0].job.kind
        return kind == "read" or (self._left > 0 and not (kind == "verify" and self._verifying))

    def finished(self, chunk: Chunk) -> None:
        """Note that a popped chunk is over; the same worker has to `pop` next, so that nobody else need be woken."""
        if chunk.job.kind != "read":
            with self._ready:
                self._left += 1
                self._verifying &= chunk.job.kind != "verify"

    def remove(self, tag: Hashable) -> list[Chunk]:
        """Take out the waiting chunks of every job with this tag."""
        with self._ready:
            removed = [c for c in self._heap if c.job.tag == tag]
            if removed:
                self._heap = [c for c in self._heap if c.job.tag != tag]
                heapq.heapify(self._heap)
        return removed

    def clear(self) -> list[Chunk]:
        """Take out all chunks."""
        with self._ready:
            left, self._heap = self._heap, []
        return left

    def close(self) -> list[Chunk]:
        """Send the workers home; return the chunks that were still waiting."""
        with self._ready:
            self._closed = True
            left, self._heap = self._heap, []
            self._ready.notify_all()
        return left
