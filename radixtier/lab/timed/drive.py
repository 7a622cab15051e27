"""An NVMe tier in virtual time, behind the same calls as :class:`radixtier.store.store.PageStore`.

Owns the slots and the jobs on their way. The law: one drive does one job at a time, ``latency + bytes / rate`` each;
of those that wait, reads that somebody waits for go first, then other reads, then writes, each in the order they
came. A job that has begun is finished. Nothing fails, and a slot that is given back is free at once. Where it is
wrong: a real drive overlaps jobs and slows reads beside writes; a real store frees a slot once its journal knows.
One thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from radixtier.identity import Stretch
from radixtier.lab.rates import Rates
from radixtier.store.jobs import Flags, Ints, JobDone, Kind, Priority, Sums
from radixtier.store.slots import SlotTable


class _Job(NamedTuple):
    priority: Priority
    number: int
    queued: float
    kind: Kind
    slots: Ints
    checksums: Sums
    tag: Hashable


class Drive:
    """The drive.

    Parameters
    ----------
    n_slots
        Pages that it holds.
    page_bytes
        Of one page.
    rates
        How fast it is.
    clock
        Seconds.
    """

    writable = True

    def __init__(self, n_slots: int, page_bytes: int, rates: Rates, clock: Callable[[], float]) -> None:
        self.n_slots = n_slots
        self.bytes_read = self.bytes_written = 0
        self.busy_s = 0.0
        """Seconds of work given to it."""
        self._slots = SlotTable([np.zeros(n_slots, np.bool_)], stripe=n_slots)
        self._page_bytes = page_bytes
        self._rates = rates
        self._clock = clock
        self._waiting: list[_Job] = []
        self._running: tuple[float, float, _Job] | None = None
        """When it began and will end."""
        self._over: list[JobDone] = []
        self._jobs = 0
        self._free_at = 0.0

    # ---- slots --------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Slots that can be handed out."""
        return self._slots.free_slots

    def room(self) -> tuple[int, int]:
        """Return how many slots are free, and how many will be: none."""
        return self._slots.free_slots, 0

    def alloc(self, n: int) -> Ints | None:
        """Take ``n`` slots, None if fewer are free."""
        return self._slots.alloc(n, [True])

    def free(self, slots: Ints) -> None:
        """Give slots back."""
        self._slots.disown(slots)
        self._slots.settle(slots)

    # ---- what a journal would be told ---------------------------------------------------------------

    def record(self, stretch: Stretch, slots: Ints, checksums: Sums, used: float, weighted: Sums | None) -> None:
        """Need not remember."""

    def touch(self, slots: Ints, used: float) -> None:
        """Need not remember."""

    # ---- jobs ---------------------------------------------------------------------------------------

    def read(self, frames: Ints, slots: Ints, seeds: Sums, checksums: Sums, tag: Hashable, priority: Priority) -> None:
        """Queue a read of pages."""
        self._queue(priority, "read", slots, checksums, tag)

    def write(self, frames: Ints, slots: Ints, seeds: Sums, tag: Hashable) -> None:
        """Queue a write of pages."""
        self._queue(Priority.WRITE, "write", slots, np.zeros(len(slots), np.uint64), tag)

    def _queue(self, priority: Priority, kind: Kind, slots: Ints, checksums: Sums, tag: Hashable) -> None:
        self._advance()
        self._jobs += 1
        heapq.heappush(self._waiting, _Job(priority, self._jobs, self._clock(), kind, slots, checksums, tag))
        self._free_at = max(self._free_at, self._clock())
        self._advance()

    def cancel(self, tag: Hashable) -> None:
        """Drop a job that has not begun; it is reported as cancelled."""
        self._advance()
        for place, job in enumerate(self._waiting):
            if job.tag == tag:
                del self._waiting[place]
                heapq.heapify(self._waiting)
                nothing = np.zeros(len(job.slots), np.bool_)
                self._report(job, nothing, 0, self._clock() - job.queued, 0.0)
                return

    def poll(self) -> list[JobDone]:
        """Return the jobs that ended since the last call."""
        self._advance()
        done, self._over = self._over, []
        return done

    def drain(self, timeout: float) -> bool:
        """Not for a clock that nobody turns."""
        return not (self._waiting or self._running)

    @property
    def next_end(self) -> float:
        """When the next job will be over, infinity when none runs."""
        self._advance()
        return float("inf") if self._running is None else self._running[1]

    def _advance(self) -> None:
        now = self._clock()
        while True:
            if self._running is None:
                if not self._waiting or self._free_at > now:
                    return
                job = heapq.heappop(self._waiting)
                nbytes = len(job.slots) * self._page_bytes
                rate = self._rates.read if job.kind == "read" else self._rates.write
                seconds = self._rates.read_latency_s + nbytes / rate
                self.busy_s += seconds
                self._running = (self._free_at, self._free_at + seconds, job)
            began, ends, job = self._running
            if ends > now:
                return
            self._running, self._free_at = None, ends
            nbytes = len(job.slots) * self._page_bytes
            if job.kind == "read":
                self.bytes_read += nbytes
            else:
                self.bytes_written += nbytes
            self._report(job, np.ones(len(job.slots), np.bool_), nbytes, began - job.queued, ends - began)

    def _report(self, job: _Job, ok: Flags, nbytes: int, queue_s: float, service_s: float) -> None:
        bad = np.zeros(len(job.slots), np.bool_)
        self._over.append(
            JobDone(
                job.tag, job.kind, job.slots, ok, bad, job.checksums, nbytes, not ok.all(), None,
                queue_seconds=queue_s, service_seconds=service_s,
            )
        )  # fmt: skip
