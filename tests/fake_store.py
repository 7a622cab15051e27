"""A page store without threads: the test says when a job ends, and how.

Adversarial where the contract leaves room: a write copies its frames only when it ends, a read scribbles over its
frames as soon as it is queued, and a page that failed leaves garbage. The frames of the landing zone are the last ones
of its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from radixtier.store.checksum import page_checksum
from radixtier.store.jobs import JobDone, Priority
from radixtier.store.weighted import weighted_sum

PAGE_BYTES = 32

OK, ERROR, CORRUPT = "ok", "error", "corrupt"
"""What may become of a page. A corrupt write is claimed to be good and found out by the read."""


@dataclass
class FakeJob:
    kind: str
    frames: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any]
    seeds: list[int]
    sums: list[int]
    started: int = 0
    """Leading pages that are moving: these can no longer be cancelled."""
    cancelled: bool = False
    before: np.ndarray[Any, Any] | None = None
    """Frames as they were when a write was queued."""
    landing: bool = False
    """Reads to landing frames, whose pages are checked by their weighted sums."""


class FakeStore:
    """The contract of :class:`PageStore`; every breach of it by the caller is an assertion."""

    def __init__(self, n_slots: int, memory: np.ndarray[Any, Any], n_landing: int = 0) -> None:
        self.n_slots = n_slots
        self.memory = memory
        self.n_landing = n_landing
        self.landed: list[list[int]] = []
        """Slots of the reads to landing frames."""
        self.jobs: dict[Any, FakeJob] = {}
        self.disk: dict[int, bytes] = {}
        self.rotten: set[int] = set()
        self.rows: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        """Slot -> key and tokens of what a restart would find."""
        self.suspect: set[int] = set()
        """Slots with a transfer that failed; these go aside when they are freed."""
        self.aside: set[int] = set()
        self.touched: list[int] = []
        self.writable = True
        self.elsewhere = False
        """The free slots are all on a drive that takes no pages, another one is writable and full."""
        self.used: set[int] = set()
        self.reads: list[list[int]] = []
        self.writes: list[list[int]] = []
        self.stuck = False
        self.closed = False
        self._free = list(range(n_slots))
        self._done: list[JobDone] = []
        self._unreported: Counter[int] = Counter()
        self.unreported_reads: dict[Any, tuple[Priority, int]] = {}
        """Reads that :meth:`poll` has not reported, and how many pages they are of."""
        self.on_read: Callable[[Priority], None] = lambda priority: None

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def room(self) -> tuple[int, int]:
        return 0 if self.elsewhere else len(self._free), 0

    @property
    def used_slots(self) -> int:
        return len(self.used)

    def alloc(self, n: int) -> np.ndarray[Any, Any] | None:
        assert self.writable, "nobody asks for slots of a drive that is not writable"
        if n > len(self._free) or self.elsewhere:
            return None
        taken, self._free = self._free[:n], self._free[n:]
        self.used.update(taken)
        return np.array(taken, np.int64)

    def free(self, slots: np.ndarray[Any, Any]) -> None:
        assert slots.dtype == np.int64
        for slot in slots.tolist():
            assert slot in self.used, "a slot is freed that is not in use"
            assert not self._unreported[slot], "a slot is freed while a transfer uses it"
            self.used.remove(slot)
            self.disk.pop(slot, None)
            self.rotten.discard(slot)
            self.rows.pop(slot, None)
            if slot in self.suspect:
                self.suspect.remove(slot)
                self.aside.add(slot)
            else:
                self._free.append(slot)  # oldest first: wrong reuse shows late, but on everybody

    def record(self, stretch: Any, slots: Any, checksums: Any, used: float, weighted: Any = None) -> None:
        assert (weighted is not None) == bool(self.n_landing)
        for i, slot in enumerate([] if weighted is None else slots.tolist()):
            seed = int(stretch.keys[i].view("<u8")[0])
            known = slot in self.rotten or weighted[i] == weighted_sum([memoryview(self.disk[slot])], seed)
            assert known, "the weighted sum on record is not that of the page"
        assert slots.dtype == np.int64 and checksums.dtype == np.uint64 and used > 0
        assert 0 < len(stretch) == len(slots) == len(checksums) and stretch.intact()
        for i, slot in enumerate(slots.tolist()):
            assert slot in self.used and slot not in self.rows and slot in self.disk
            self.rows[slot] = stretch.keys[i].tobytes(), tuple(stretch.tokens[i].tolist())

    def touch(self, slots: Any, used: float) -> None:
        assert slots.dtype == np.int64 and set(slots.tolist()) <= self.used
        self.touched += slots.tolist()

    def clear(self, timeout: float = 5.0) -> bool:
        self.rows.clear()
        return True

    def write(self, frames: Any, slots: Any, seeds: Any, tag: Any) -> None:
        assert (frames < len(self.memory) - self.n_landing).all(), "a landing frame is written to NVMe"
        self._submit("write", frames, slots, seeds, np.zeros(len(slots), np.uint64), tag)
        self.jobs[tag].before = self.memory[frames].copy()
        self.writes.append(slots.tolist())

    def read(
        self, frames: Any, slots: Any, seeds: Any, checksums: Any, tag: Any, priority: Priority = Priority.DEMANDED
    ) -> None:
        self.on_read(priority)
        self._submit("read", frames, slots, seeds, checksums, tag)
        landing = frames >= len(self.memory) - self.n_landing
        assert landing.all() or not landing.any(), "frames of both kinds"
        if landing.all():
            assert priority is Priority.DEMANDED, "nobody waits for what lands"
            self.jobs[tag].landing = True
            self.landed.append(slots.tolist())
        self.unreported_reads[tag] = priority, len(slots)
        self.memory[frames] = 0xEE
        self.reads.append(slots.tolist())

    def verify(self, slots: Any, seeds: Any, checksums: Any, tag: Any) -> None:
        assert tag not in self.jobs and 0 < len(slots) == len(seeds) == len(checksums)
        for slot in slots.tolist():
            assert slot in self.used and not self._unreported[slot], "a slot has two transfers, or no owner"
            self._unreported[slot] += 1
        none = np.empty(0, np.int64)
        self.jobs[tag] = FakeJob("verify", none, slots.copy(), seeds.tolist(), checksums.tolist())

    def _submit(self, kind: str, frames: Any, slots: Any, seeds: Any, sums: Any, tag: Any) -> None:
        assert not self.closed, "I/O after close"
        assert tag not in self.jobs, "two jobs with one tag"
        assert 0 < len(frames) == len(slots) == len(seeds) == len(sums)
        assert frames.dtype == slots.dtype == np.int64 and seeds.dtype == sums.dtype == np.uint64
        assert ((frames >= 0) & (frames < len(self.memory))).all()
        moving = {f for job in self.jobs.values() for f in job.frames.tolist()}
        assert not moving & set(frames.tolist()), "a frame has two transfers"
        for slot in slots.tolist():
            assert slot in self.used and not self._unreported[slot], "a slot has two transfers, or no owner"
            self._unreported[slot] += 1
        self.jobs[tag] = FakeJob(kind, frames.copy(), slots.copy(), seeds.tolist(), sums.tolist())

    def start(self, tag: Any, pages: int) -> None:
        """Let the leading pages of a job move: no cancel reaches them any more."""
        job = self.jobs[tag]
        if not job.cancelled:
            job.started = max(job.started, min(pages, len(job.slots)))

    def finish(self, tag: Any, outcomes: Iterable[str] = ()) -> None:
        """End a job; pages without an outcome end well, those behind a cancel do not move."""
        job = self.jobs.pop(tag)
        n = len(job.slots)
        fate = (list(outcomes) + [OK] * n)[:n]
        moved = job.started if job.cancelled else n
        ok, corrupt = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        sums = np.zeros(n, np.uint64)
        weighted = np.zeros(n, np.uint64) if self.n_landing and job.kind == "write" else None
        for i in range(moved):
            if weighted is not None:
                weighted[i] = weighted_sum([memoryview(self.memory[job.frames[i]])], job.seeds[i])
            move = {"write": self._write_page, "read": self._read_page, "verify": self._verify_page}[job.kind]
            ok[i], corrupt[i], sums[i] = move(job, i, fate[i])
        failed = not (ok | corrupt)[:moved].all()
        self.suspect.update(job.slots[:moved][~ok[:moved]].tolist())
        self._done.append(
            JobDone(
                tag, job.kind, job.slots, ok, corrupt, sums, int(ok.sum()) * PAGE_BYTES,  # type: ignore[arg-type]
                job.cancelled, "broken" if failed else None, 0.0, 0.0, weighted,
            )
        )  # fmt: skip

    def _write_page(self, job: FakeJob, i: int, fate: str) -> tuple[bool, bool, int]:
        frame, slot = int(job.frames[i]), int(job.slots[i])
        assert job.before is not None
        assert (self.memory[frame] == job.before[i]).all(), "a frame changed while it was being written"
        data = self.memory[frame].tobytes()
        self.disk[slot] = data if fate == OK else bytes(PAGE_BYTES)
        if fate == ERROR:
            return False, False, 0
        if fate == CORRUPT:
            self.rotten.add(slot)
        return True, False, page_checksum([memoryview(data)], job.seeds[i])

    def _read_page(self, job: FakeJob, i: int, fate: str) -> tuple[bool, bool, int]:
        ok, corrupt, found = self._verify_page(job, i, fate)
        if ok:
            self.memory[job.frames[i]] = np.frombuffer(self.disk[int(job.slots[i])], np.uint8)
        return ok, corrupt, found

    def _verify_page(self, job: FakeJob, i: int, fate: str) -> tuple[bool, bool, int]:
        slot = int(job.slots[i])
        data = self.disk[slot]
        found = (weighted_sum if job.landing else page_checksum)([memoryview(data)], job.seeds[i])
        good = found == job.sums[i]
        assert good == (slot not in self.rotten), "the checksum or seed of a page is not that of its write"
        if fate == ERROR:
            return False, False, 0
        if fate == CORRUPT or not good:
            return False, True, found ^ 1
        return True, False, found

    def finish_all(self, *outcomes: str) -> None:
        for tag in list(self.jobs):
            self.finish(tag, outcomes)

    def cancel(self, tag: Any) -> None:
        job = self.jobs.get(tag)
        if job is not None and not job.cancelled and job.started < len(job.slots):
            job.cancelled = True
            if not job.started:
                self.finish(tag)

    def poll(self) -> list[JobDone]:
        done, self._done = self._done, []
        if len(self.aside) > self.n_slots // 4:  # tested and found good
            self._free += sorted(self.aside)
            self.aside.clear()
        for job in done:
            self._unreported.subtract(job.slots.tolist())
            self.unreported_reads.pop(job.tag, None)
        return done

    def drain(self, timeout: float) -> bool:
        if not self.stuck:
            self.finish_all()
        return not self.jobs

    def close(self, timeout: float = 10.0) -> bool:
        for tag in list(self.jobs):
            self.cancel(tag)
        self.closed = not self.jobs
        return self.closed

    def in_flight(self) -> list[int]:
        """Slots of jobs that :meth:`poll` has not reported, sorted."""
        return sorted(self._unreported.elements())
