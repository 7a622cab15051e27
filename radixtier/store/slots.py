"""Every slot of the store: whose it is, what moves there, and which are free.

Owns the extents of all drives and the state of their slots. Slots are numbered through over the drives, equally many
on each. Invariant: ``free_slots + used_slots + quarantined == n_slots``. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixtier.store.extents import ExtentMap
from radixtier.store.jobs import Flags, Ints, Job, cut
from radixtier.store.stripes import spread


class SlotTable:
    """Slots of ``len(taken)`` drives.

    Parameters
    ----------
    taken : sequence of bool arrays, each of shape (slots per drive,)
        Slots of each drive that are in use from the start, since rows of an earlier run name them.
    stripe
        Pages that go to one drive before the next one's turn.
    """

    def __init__(self, taken: Sequence[Flags], stripe: int) -> None:
        self.each = len(taken[0])
        """Slots per drive."""
        self.n_slots = self.each * len(taken)
        self.quarantined = 0
        self._freeing = [0] * len(taken)
        self._quarantined = [0] * len(taken)
        self._maps = [ExtentMap(self.each, used) for used in taken]
        self._stripe = stripe
        self._turn = 0
        self._used = np.concatenate(taken)
        self._suspect = np.zeros(self.n_slots, dtype=np.bool_)
        self._gone = np.zeros(self.n_slots, dtype=np.bool_)
        self._any_gone = False
        self._writing = np.zeros(self.n_slots, dtype=np.bool_)
        self._reading = np.zeros(self.n_slots, dtype=np.int16)

    @property
    def free_slots(self) -> int:
        """Slots that can be handed out."""
        return sum(free.free_slots for free in self._maps)

    @property
    def used_slots(self) -> int:
        """Slots that are neither free nor quarantined."""
        return self.n_slots - self.free_slots - self.quarantined

    @property
    def owned(self) -> Ints:
        """The slots that somebody owns."""
        return np.flatnonzero(self._used)

    def drive(self, d: int) -> tuple[ExtentMap, int]:
        """Return the free extents of a drive, and how many of its slots are quarantined."""
        return self._maps[d], self._quarantined[d]

    def room(self, usable: Sequence[bool]) -> tuple[int, int]:
        """Return how many slots of usable drives are free, and how many are disowned and not settled yet."""
        free = sum(m.free_slots for m, ok in zip(self._maps, usable, strict=True) if ok)
        return free, sum(n for n, ok in zip(self._freeing, usable, strict=True) if ok)

    def alloc(self, n: int, usable: Sequence[bool]) -> Ints | None:
        """Take ``n`` slots of usable drives, in filling order; None if fewer are free."""
        free = [m.free_slots if ok else 0 for m, ok in zip(self._maps, usable, strict=True)]
        pieces = spread(n, free, self._stripe, self._turn)
        if not pieces:
            return None if pieces is None else np.empty(0, dtype=np.int64)
        self._turn = (pieces[-1].drive + 1) % len(free)
        share = dict.fromkeys((piece.drive for piece in pieces), 0)
        for piece in pieces:
            share[piece.drive] += piece.pages
        taken = {d: self._take(d, pages) for d, pages in share.items()}
        at = dict.fromkeys(share, 0)
        parts: list[Ints] = []
        for d, pages in pieces:
            parts.append(taken[d][at[d] : at[d] + pages])
            at[d] += pages
        slots = np.concatenate(parts)
        self._used[slots] = True
        return slots

    def _take(self, d: int, n: int) -> Ints:
        extents = self._maps[d].alloc(n)
        assert extents is not None
        base = d * self.each
        return np.concatenate([np.arange(base + e.start, base + e.start + e.length) for e in extents])

    # Owners

    def disown(self, slots: Ints) -> None:
        """Take slots from their owner; they are in use until `settle`."""
        assert self._used[slots].all(), "a slot is freed that is not in use"
        self._assert_quiet(slots)
        self._used[slots] = False
        self._add(self._freeing, slots, 1)

    def settle(self, slots: Ints) -> Ints:
        """Let disowned slots be free, or quarantine them; return the quarantined ones."""
        suspect = self._suspect[slots] & ~self._gone[slots]
        bad = slots[suspect]
        self._add(self._freeing, slots, -1)
        self._gone[slots] = False
        self.give(slots[~suspect])
        self._quarantine(bad, 1)
        return bad

    def quarantine(self, slots: Ints) -> None:
        """Keep slots from use that are not free, and that nobody is to own."""
        self._used[slots] = False
        self._suspect[slots] = True
        self._quarantine(slots, 1)

    def release(self, slots: Ints) -> None:
        """Let quarantined slots be free: they work."""
        self._quarantine(slots, -1)
        self.give(slots)

    def _quarantine(self, slots: Ints, sign: int) -> None:
        self.quarantined += sign * len(slots)
        self._add(self._quarantined, slots, sign)

    def _add(self, counts: list[int], slots: Ints, sign: int) -> None:
        """Count slots per drive."""
        for d, n in enumerate(np.bincount(slots // self.each, minlength=len(counts)).tolist()):
            counts[d] += sign * n

    def give(self, slots: Ints) -> None:
        """Put slots back into the free extents."""
        self._suspect[slots] = False
        ordered = np.sort(slots)
        for lo, hi in cut(ordered, max(1, len(ordered)), ordered // self.each):
            d, start = divmod(int(ordered[lo]), self.each)
            self._maps[d].free(start, hi - lo)

    def lose(self, d: int) -> None:
        """Note that what the owned slots of a drive held is gone for good; they are as good as new once freed."""
        part = slice(d * self.each, (d + 1) * self.each)
        self._gone[part] = self._used[part]
        self._suspect[part] = False
        self._any_gone = True

    # Transfers

    def begin(self, job: Job) -> None:
        """Note that a job's transfers start."""
        slots = job.slots
        assert self._used[slots].all(), f"{job.kind} of a slot that is not in use"
        if job.kind == "write":
            self._assert_quiet(slots)
            self._writing[slots] = True
        else:
            assert not self._writing[slots].any(), "a slot is read before it is written"
            np.add.at(self._reading, slots, 1)

    def end(self, job: Job) -> None:
        """Note that a job is over, and which slots are not to be trusted."""
        if job.kind == "write":
            self._writing[job.slots] = False
        else:
            np.subtract.at(self._reading, job.slots, 1)
        self._suspect[job.slots[job.ok]] = False
        self._suspect[job.slots[job.bad]] = True

    def lanes(self, slots: Ints) -> Ints | None:
        """Return the drive of each slot, -1 if its bytes are gone; None when all are on the only drive."""
        if len(self._maps) == 1 and not self._any_gone:
            return None
        lanes: Ints = slots // self.each
        lanes[self._gone[slots]] = -1
        return lanes

    def alive(self, slots: Ints) -> Flags:
        """Whether what each slot held can still be there."""
        return ~self._gone[slots]

    def _assert_quiet(self, slots: Ints) -> None:
        assert not self._writing[slots].any(), "a slot is being written"
        assert not self._reading[slots].any(), "a slot is being read"
