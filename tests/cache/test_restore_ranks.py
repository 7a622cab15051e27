"""A restart of several ranks that do not have the same on record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from radixtier.ranks import Agreement
from radixtier.sglang.restore_ranks import RankedRestoration

STEPS = 10


class Alike:
    """A group whose ranks say the same at the start; afterwards the test reduces."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def minimum(self, values: Any) -> Any:
        return values


class Finder:
    """Has found nothing, since it was asked for nothing."""

    def __init__(self, slots: list[int]) -> None:
        self._slots = np.array(slots, np.int64)
        self.over = False

    def take(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.over = True

    def rest(self) -> Any:
        return self._slots


class Store:
    """Of a rank that has these slots on record."""

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots
        self.freed: list[int] = []

    def restorer(self) -> None:
        assert not self.slots, "the first rank has nothing"

    def finder(self) -> Finder:
        return Finder(self.slots)

    def free(self, slots: Any) -> None:
        self.freed += slots.tolist()


def rank(number: int, slots: list[int]) -> SimpleNamespace:
    agreement = Agreement(Alike(number))
    store = Store(slots)
    mover = SimpleNamespace(store=store, stats=SimpleNamespace(restored=0), table=SimpleNamespace(n_landing=0))
    restoration = RankedRestoration(SimpleNamespace(mover=mover, page_size=4), agreement)
    return SimpleNamespace(agreement=agreement, store=store, restoration=restoration)


@pytest.mark.parametrize("cancelled", [False, True])
def test_it_ends_where_the_first_rank_has_nothing_on_record(cancelled: bool) -> None:
    """As after a kill in the second before the first rank's first row went on record."""
    ranks = [rank(0, []), rank(1, [3, 5])]
    for step in range(STEPS):
        least = np.minimum.reduce([each.agreement.offer() for each in ranks])
        for each in ranks:
            each.agreement.learn(least)
            each.restoration.step()
            if cancelled and step == 0:
                each.restoration.cancel()
        assert len({each.restoration.over for each in ranks}) == 1
        if ranks[0].restoration.over:
            break
    assert [each.restoration.finished for each in ranks] == [True, True]
    assert [each.store.freed for each in ranks] == [[], [3, 5]]
