"""The store of one rank among several: transfers end, and there is room, when all ranks say so.

Owns what the ranks know of each other's stores. Which slots hold a page is each rank's own affair (but see
:mod:`radixtier.ranks.shared_store`); whether there are any, whether pages are taken, and what became of a transfer is
agreed. Invariants: a slot number below zero stands for a
place that this rank could not have after all, and nothing is ever moved there; what this rank could not do counts as
failed on all. Scheduler thread only, but for what the store itself allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixtier.ranks.agreement import Agreement, Longs
from radixtier.ranks.completions import CANCELLED, CORRUPT, FAILED, OK, Codes, Completion, Completions
from radixtier.store.jobs import Ints, JobDone, Kind, Priority, Sums
from radixtier.store.store import PageStore

NOWHERE = -2
"""A slot that there is not; -1 is no slot."""


class AgreedStore:
    """What a mover has in the place of its store; whatever is not named here, the store itself answers.

    Parameters
    ----------
    store
        Of this rank.
    agreement
        With the others. Until it has reduced once, there is no room.
    """

    _tells = 0
    """Numbers of a written page that one rank alone knows, see :class:`Completions`."""

    def __init__(self, store: PageStore, agreement: Agreement) -> None:
        self._store = store
        self._agreement = agreement
        self._jobs = Completions()
        self._kinds: dict[int, str] = {}
        self._room = 0, 0
        self._writable = True
        agreement.join(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # ---- what is agreed ------------------------------------------------------------------------------

    def offer(self) -> Longs:
        """Return the room and whether pages are taken, then the jobs."""
        for done in self._store.poll():
            self._ended(done)
        return np.concatenate([np.array(self._room_here(), np.int64), self._jobs.offer()])

    def learn(self, agreed: Longs) -> None:
        """Take what all ranks have."""
        self._room = int(agreed[0]), int(agreed[1])
        self._writable = bool(agreed[2])
        self._jobs.learn(agreed[3:])

    def _room_here(self) -> tuple[int, int, bool]:
        """Return the room of this rank's store, and whether it takes pages."""
        return *self._store.room(), self._store.writable

    # ---- slots ---------------------------------------------------------------------------------------

    def room(self) -> tuple[int, int]:
        """Return the slots that every rank can hand out, and those on their way there on every rank."""
        return self._store.room() if self._agreement.left else self._room

    @property
    def writable(self) -> bool:
        """Whether every rank has a drive that takes pages."""
        return self._store.writable if self._agreement.left else self._writable

    def alloc(self, n: int) -> Ints | None:
        """Return ``n`` slots of this rank, None where some rank has fewer; :data:`NOWHERE` for those it has not now."""
        if self._agreement.left:
            return self._store.alloc(n)
        now, soon = self._room
        if n > now:
            self._store.hurry()
            return None
        self._room = now - n, soon
        slots = self._store.alloc(n)
        return np.full(n, NOWHERE, np.int64) if slots is None else slots

    def free(self, slots: Ints) -> None:
        """Give slots back."""
        self._store.free(slots[slots >= 0])

    def touch(self, slots: Ints, used: float) -> None:
        """Note that the pages in these slots were used at ``used`` (Unix seconds)."""
        self._store.touch(slots[slots >= 0], used)

    # ---- transfers -----------------------------------------------------------------------------------

    def write(self, frames: Ints, slots: Ints, seeds: Sums, tag: int) -> None:
        """Queue a write."""
        self._begin(tag, "write", slots, Priority.WRITE, self._tells)
        self._write(frames, slots, seeds, tag)

    def _write(self, frames: Ints, slots: Ints, seeds: Sums, tag: int) -> None:
        if (slots < 0).any():
            self._ended(_impossible(tag, "write", slots))
        else:
            self._store.write(frames, slots, seeds, tag)

    def read(
        self,
        frames: Ints,
        slots: Ints,
        seeds: Sums,
        checksums: Sums,
        tag: int,
        priority: Priority = Priority.DEMANDED,
    ) -> None:
        """Queue a read."""
        self._begin(tag, "read", slots, priority)
        self._store.read(frames, slots, seeds, checksums, tag, priority)

    def verify(self, slots: Ints, seeds: Sums, checksums: Sums, tag: int) -> None:
        """Queue a check."""
        self._begin(tag, "verify", slots, Priority.SCRUB)
        self._store.verify(slots, seeds, checksums, tag)

    def poll(self) -> list[JobDone]:
        """Return what ended on all ranks as of the last reduction, in the same order on each."""
        if self._agreement.left:
            for done in self._store.poll():
                self._ended(done)
            return [self._done(each) for each in self._jobs.take_local()]
        return [self._done(each) for each in self._jobs.take()]

    def _begin(self, tag: int, kind: str, slots: Ints, urgency: int, tells: int = 0) -> None:
        self._kinds[tag] = kind
        self._jobs.begin(tag, len(slots), urgency, tells)

    def _ended(self, done: JobDone) -> None:
        assert isinstance(done.tag, int)
        seconds = done.queue_seconds, done.service_seconds
        self._jobs.end(done.tag, _codes(done), seconds, done, self._told(done))

    def _told(self, done: JobDone) -> Longs | None:
        """Return what this rank alone knows of the pages of a job, None for nothing."""
        return None

    def _done(self, over: Completion) -> JobDone:
        """Return this rank's result with what became of the pages everywhere."""
        local: JobDone = over.local
        ok, corrupt = over.codes == OK, over.codes == CORRUPT
        error = local.error
        if error is None and (over.codes < CANCELLED).any() and not (_codes(local) < CANCELLED).any():
            error = "another rank could not"
        del self._kinds[over.tag]
        return local._replace(
            ok=ok, corrupt=corrupt, nbytes=int(ok.sum()) * self._store.slot_bytes, error=error,
            cancelled=bool((over.codes == CANCELLED).any()), queue_seconds=over.seconds[0],
            service_seconds=over.seconds[1],
        )  # fmt: skip


def _codes(done: JobDone) -> Codes:
    codes = np.full(len(done.ok), CANCELLED if done.cancelled else FAILED, np.int8)
    codes[done.corrupt] = CORRUPT
    codes[done.ok] = OK
    return codes


def _impossible(tag: int, kind: Kind, slots: Ints) -> JobDone:
    return over_at_once(tag, kind, slots, "no slot is free on this rank")


def over_at_once(tag: int, kind: Kind, slots: Ints, error: str | None = None) -> JobDone:
    """Return the end of a job for which this rank has nothing to do, or which it cannot do."""
    n = len(slots)
    return JobDone(
        tag, kind, slots, np.full(n, error is None), np.zeros(n, np.bool_), np.zeros(n, np.uint64), 0, False, error,
        queue_seconds=0.0, service_seconds=0.0,
    )  # fmt: skip
