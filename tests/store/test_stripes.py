"""How allocations are spread over drives, alone and through the slots of several drives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixtier.store.jobs import cut
from radixtier.store.slots import SlotTable
from radixtier.store.stripes import spread

FREE = st.lists(st.integers(0, 40), min_size=1, max_size=4)


@given(n=st.integers(0, 100), free=FREE, stripe=st.integers(1, 7), first=st.integers(0, 3))
def test_pages_are_shared_out_as_far_as_they_go(n: int, free: list[int], stripe: int, first: int) -> None:
    pieces = spread(n, free, stripe, first % len(free))
    if n > sum(free):
        assert pieces is None
        return
    assert pieces is not None
    assert sum(piece.pages for piece in pieces) == n
    assert all(piece.pages > 0 for piece in pieces)
    assert all(a.drive != b.drive for a, b in pairwise(pieces))
    share = [sum(p.pages for p in pieces if p.drive == d) for d in range(len(free))]
    assert all(taken <= there for taken, there in zip(share, free, strict=True))
    if n <= stripe and any(n <= there for there in free):
        assert len(pieces) == (n > 0)
    else:
        # No drive lags behind another by more than a stripe unless it is full.
        assert all(max(share) - mine <= stripe for mine, there in zip(share, free, strict=True) if mine < there)


def test_small_ones_take_turns() -> None:
    table = SlotTable([np.zeros(8, np.bool_)] * 3, stripe=4)
    taken = [table.alloc(2, [True, True, True]) for _ in range(6)]
    assert [int(slots[0]) // 8 for slots in taken if slots is not None] == [0, 1, 2, 0, 1, 2]
    after = table.alloc(3, [True, False, True])
    assert after is not None and after.tolist() == [4, 5, 6]
    assert table.alloc(5, [False, True, False]) is None


@given(n=st.integers(1, 120), stripe=st.integers(1, 8), drives=st.integers(1, 4), each=st.integers(1, 40))
def test_a_long_extent_lies_on_all_drives(n: int, stripe: int, drives: int, each: int) -> None:
    table = SlotTable([np.zeros(each, np.bool_)] * drives, stripe)
    slots = table.alloc(n, [True] * drives)
    if slots is None:
        assert n > drives * each
        return
    assert len(set(slots.tolist())) == n and table.free_slots + table.used_slots == table.n_slots
    assert table.used_slots == n
    lanes = slots // each
    for d in range(drives):
        assert (np.diff(slots[lanes == d]) == 1).all(), "the pages of a drive are consecutive there"
    if n > stripe:
        assert len(set(lanes.tolist())) == min(drives, -(-n // stripe))
        full = n // stripe * stripe
        expected = np.arange(full) // stripe % drives
        assert n > drives * (each // stripe * stripe) or (lanes[:full] == expected).all()


def test_chunks_end_where_a_drive_does() -> None:
    table = SlotTable([np.zeros(4, np.bool_)] * 2, stripe=8)
    slots = np.arange(8)
    assert cut(slots, 8, table.lanes(slots)) == [(0, 4), (4, 8)]


def test_what_is_taken_from_the_start_is_not_handed_out() -> None:
    taken = np.zeros(8, np.bool_)
    taken[[0, 1, 5]] = True
    table = SlotTable([taken, ~taken], stripe=8)
    assert table.owned.tolist() == [0, 1, 5, 10, 11, 12, 14, 15]
    assert table.used_slots == 8
    slots = table.alloc(8, [True, True])
    assert slots is not None and sorted(slots.tolist()) == [2, 3, 4, 6, 7, 8, 9, 13]
