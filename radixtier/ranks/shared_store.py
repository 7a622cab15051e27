"""The store of one rank among several that have the same bytes: the first one writes, and all read what it wrote.

Owns what the ranks know of the first one's store: which slots it chose, which checksums its pages have, and which of
its slabs are new. The latent of MLA is such bytes: every rank computes all of it. The laws:

- slots, room and the record are the first rank's affair. Until a write is over, the others have `NOWHERE` for its
  slots; with its end all know slots and checksums, and have the same from then on;
- a page may be read, and its slot used again, when that is agreed: so no rank reads what is not written yet, or what is
  being written over;
- a rank that cannot read a page has lost it for all.

Scheduler thread only, but for what the store itself allows.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from radixtier.ranks.agreed_store import AgreedStore, over_at_once
from radixtier.ranks.agreement import Agreement, Longs
from radixtier.ranks.completions import CANCELLED, UNTOLD, Completion
from radixtier.store.borrowed import BorrowedStore
from radixtier.store.jobs import Ints, JobDone, Priority, Sums
from radixtier.store.store import PageStore


class SharedStore(AgreedStore):
    """What a mover has in the place of its store where one rank stores for all.

    Parameters
    ----------
    store
        The pages themselves on the first rank, what is borrowed of them on each other one.
    agreement
        With the others.
    """

    _tells = 3
    """Its slot, its checksum and its weighted sum."""

    def __init__(self, store: PageStore | BorrowedStore, agreement: Agreement) -> None:
        self._borrower = store if isinstance(store, BorrowedStore) else None
        # Of what is borrowed, less is asked than a page store has.
        super().__init__(cast(PageStore, store), agreement)

    # ---- what is agreed ------------------------------------------------------------------------------

    def offer(self) -> Longs:
        """Return how often each slab was made anew, then what every agreed store offers."""
        rest = super().offer()
        return np.concatenate([np.array(self._store.renewals, np.int64), rest])

    def learn(self, agreed: Longs) -> None:
        """Take what the first rank has, and follow it to a new slab."""
        n = len(self._store.renewals)
        if self._borrower is not None:
            self._borrower.follow(agreed[:n].tolist())
        super().learn(agreed[n:])

    def _room_here(self) -> tuple[int, int, bool]:
        return super()._room_here() if self._borrower is None else (UNTOLD, UNTOLD, True)

    # ---- transfers -----------------------------------------------------------------------------------

    def _write(self, frames: Ints, slots: Ints, seeds: Sums, tag: int) -> None:
        if self._borrower is None:
            super()._write(frames, slots, seeds, tag)
        else:
            self._ended(over_at_once(tag, "write", slots))

    def verify(self, slots: Ints, seeds: Sums, checksums: Sums, tag: int) -> None:
        """Queue a check, which the first rank does for all."""
        if self._borrower is None:
            super().verify(slots, seeds, checksums, tag)
        else:
            self._begin(tag, "verify", slots, Priority.SCRUB)
            self._ended(over_at_once(tag, "verify", slots))

    def _told(self, done: JobDone) -> Longs | None:
        if done.kind != "write" or self._borrower is not None:
            return None
        weighted = np.zeros_like(done.checksums) if done.weighted is None else done.weighted
        return np.column_stack([done.slots, done.checksums.view(np.int64), weighted.view(np.int64)])

    def _done(self, over: Completion) -> JobDone:
        if over.told is None:
            return super()._done(over)
        slots, checksums, weighted = np.ascontiguousarray(over.told.T)
        if len(slots) and slots[0] == UNTOLD:
            # The ranks agree on nothing any more, and where the first one wrote this nobody will say.
            return super()._done(over._replace(codes=np.full_like(over.codes, CANCELLED)))
        sums = {"checksums": checksums.view(np.uint64), "weighted": weighted.view(np.uint64)}
        return super()._done(over)._replace(slots=slots, **sums)
