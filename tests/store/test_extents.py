"""The extent allocator against a plain set of free slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from radixtier.store.extents import Extent, ExtentMap

N = 64


class ExtentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.map = ExtentMap(N)
        self.free = set(range(N))

    def runs(self) -> list[Extent]:
        """The free extents that the plain set implies."""
        runs: list[Extent] = []
        for slot in sorted(self.free):
            if runs and sum(runs[-1]) == slot:
                runs[-1] = Extent(runs[-1].start, runs[-1].length + 1)
            else:
                runs.append(Extent(slot, 1))
        return runs

    @rule(n=st.integers(0, N + 1))
    def alloc(self, n: int) -> None:
        before = self.runs()
        taken = self.map.alloc(n)
        if n > len(self.free):
            assert taken is None
            return
        assert taken is not None
        slots = [slot for e in taken for slot in range(e.start, e.start + e.length)]
        assert len(slots) == len(set(slots)) == n
        assert set(slots) <= self.free
        self.free -= set(slots)
        fitting = [run.length for run in before if run.length >= n]
        if n and fitting:
            [extent] = taken
            assert min(fitting) in {run.length for run in before if run.start == extent.start}
        elif n:
            largest = sorted((run.length for run in before), reverse=True)
            needed = next(k for k in range(1, len(largest) + 1) if sum(largest[:k]) >= n)
            assert len(taken) == needed

    @precondition(lambda self: len(self.free) < N)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(set(range(N)) - self.free)))
        longest = next(k for k in range(1, N + 1) if start + k == N or start + k in self.free)
        length = data.draw(st.integers(1, longest))
        self.map.free(start, length)
        self.free |= set(range(start, start + length))

    @rule(start=st.integers(-2, N + 1), length=st.integers(0, 5))
    def wrong_release_changes_nothing(self, start: int, length: int) -> None:
        slots = set(range(start, start + length))
        if length and start >= 0 and start + length <= N and not slots & self.free:
            return
        with pytest.raises(ValueError, match="slots"):
            self.map.free(start, length)

    @invariant()
    def extents_are_the_free_slots(self) -> None:
        assert self.map.extents() == self.runs()
        assert self.map.free_slots == len(self.free)


TestExtentMachine = ExtentMachine.TestCase


def test_empty_map_gives_nothing() -> None:
    assert ExtentMap(0).alloc(1) is None
    assert ExtentMap(0).alloc(0) == []


def test_best_fit_leaves_large_extents_whole() -> None:
    free = ExtentMap(100)
    assert free.alloc(100) == [(0, 100)]
    free.free(0, 50)
    free.free(60, 10)
    free.free(80, 5)
    assert free.alloc(4) == [(80, 4)]
    assert free.alloc(10) == [(60, 10)]
    assert free.alloc(51) == [(0, 50), (84, 1)]


@given(st.permutations(range(20)))
def test_freeing_in_any_order_merges_to_one(order: list[int]) -> None:
    free = ExtentMap(20)
    free.alloc(20)
    for slot in order:
        free.free(slot, 1)
    assert free.extents() == [(0, 20)]
