"""The order in which subtrees leave DRAM."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.eviction import SCAN_LIMIT, SubtreeLru


def test_the_least_recently_used_comes_first_and_a_parent_after_its_child() -> None:
    order = SubtreeLru()
    order.use([3, 1])
    order.use([4, 2, 1])
    assert list(order.coldest()) == [3, 4, 2, 1]
    order.use([3, 1])
    assert list(order.coldest()) == [4, 2, 3, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_in_a_tree_no_run_comes_before_its_descendants(steps: list[tuple[bool, int]]) -> None:
    """Run ``n`` hangs from ``n // 2``; uses name whole paths, removals any run."""
    order = SubtreeLru()
    for use, run in steps:
        if use:
            order.use([run >> i for i in range(run.bit_length() + 1)])
        else:
            order.remove(run)
    place = {run: i for i, run in enumerate(order.coldest())}
    assert len(place) == len(order)
    for run in place:
        up = run
        while up:
            up //= 2
            assert place.get(up, len(place)) > place[run]


def test_the_caller_may_remove_while_it_looks() -> None:
    order = SubtreeLru()
    for run in range(5):
        order.use([run])
    seen = []
    for run in order.coldest():
        seen.append(run)
        order.remove(run)
        order.remove(run)
    assert seen == [0, 1, 2, 3, 4] and len(order) == 0


def test_one_demand_looks_at_a_bounded_number_of_runs() -> None:
    order = SubtreeLru()
    for run in range(3 * SCAN_LIMIT):
        order.use([run])
    assert list(order.coldest()) == list(range(SCAN_LIMIT))


def test_clear_forgets_every_run() -> None:
    order = SubtreeLru()
    order.use([2, 1])
    order.clear()
    assert len(order) == 0 and list(order.coldest()) == []
