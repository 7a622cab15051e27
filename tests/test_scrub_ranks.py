"""Scrubbing on several ranks: each has its own slots and drives, and yet they lose the same pages."""

from __future__ import annotations

import numpy as np
import pytest
from fake_store import PAGE_BYTES, FakeStore
from mover_fakes import NAMESPACE, SPACE, Clock, contents

from radixtier.identity import Stretch
from radixtier.mover import Mover
from radixtier.ranks import AgreedStore, Agreement
from radixtier.ranks.agreement import Longs
from radixtier.store.checksum import page_checksum
from radixtier.tree.residency import Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree

PAGES = 6
TOKENS = np.arange(4 * PAGES, dtype=np.int32)


class Alike:
    """A group whose ranks say the same at the start; afterwards the test reduces."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def minimum(self, values: Longs) -> Longs:
        return values


class Rank:
    """A rank that an earlier run left pages to, in slots of its own."""

    def __init__(self, rank: int, slots: list[int], clock: Clock) -> None:
        self.agreement = Agreement(Alike(rank), clock=clock)
        self.drive = FakeStore(2 * PAGES, np.zeros((4, PAGE_BYTES), np.uint8))
        self.drive.slot_bytes = PAGE_BYTES  # type: ignore[attr-defined]
        table = ResidencyTable(4 + 2 * PAGES, 4)
        now = self.agreement.now
        self.mover = Mover(
            table, TierTree(table, clock=now), None, page_bytes=PAGE_BYTES, scrub_rate=PAGE_BYTES * PAGES, clock=now
        )
        self.mover.store = AgreedStore(self.drive, self.agreement)  # type: ignore[assignment, arg-type]
        stretch = Stretch.chained(SPACE, NAMESPACE, TOKENS, 4)
        assert self.drive.alloc(2 * PAGES) is not None
        sums = np.zeros(PAGES, np.uint64)
        for at, slot in enumerate(slots):
            key = stretch.keys[at]
            self.drive.disk[slot] = contents(key.tobytes(), PAGE_BYTES).tobytes()
            sums[at] = page_checksum([memoryview(self.drive.disk[slot])], int(key.view("<u8")[0]))
        pages = self.mover.restore(stretch, np.array(slots), sums, None)
        assert pages is not None
        self.pages: Pages = pages


def step(*ranks: Rank) -> None:
    """One step of the scheduler, on every rank."""
    least = np.minimum.reduce([rank.agreement.offer() for rank in ranks])
    for rank in ranks:
        rank.agreement.learn(least)
        rank.mover.tick()


@pytest.mark.parametrize("bad", range(PAGES))
def test_what_one_rank_finds_bad_is_lost_on_all(bad: int) -> None:
    clock = Clock()
    one, other = Rank(0, [0, 1, 2, 3, 4, 5], clock), Rank(1, [9, 3, 7, 1, 11, 5], clock)
    one.drive.rotten.add(int(one.mover.table.slot[one.pages[bad]]))
    one.drive.disk[int(one.mover.table.slot[one.pages[bad]])] = bytes(PAGE_BYTES)
    for _ in range(3):
        clock.now += 1.0
        step(one, other)
    for rank in (one, other):
        rank.drive.finish_all()
    # The first reduction says that not all is well, the second which page it is.
    for _ in range(2):
        step(one, other)
    for rank in (one, other):
        lost = rank.mover.table.state[rank.pages] == State.LOST
        assert np.flatnonzero(lost).tolist() == [bad], rank.agreement.rank
        assert rank.mover.stats.scrubbed_bad == 1
