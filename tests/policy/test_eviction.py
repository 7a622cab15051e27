"""What every eviction order keeps to, whatever it ranks by."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from radixtier.policy.eviction import NAMES, SCAN_LIMIT, Lru, Shape, make_order

NODES = st.integers(1, 63)


def path_of(node: int) -> list[int]:
    """Node ``n`` hangs from ``n // 2``."""
    return [node >> i for i in range(node.bit_length())]


def shape_of(node: int) -> Shape:
    return Shape(1 + node % 3, node.bit_length())


class AnyOrder(RuleBasedStateMachine):
    """Random uses, predictions and removals of a binary tree: the tier's nodes are known, and offered leaf-first."""

    @initialize(name=st.sampled_from(NAMES), capacity=st.integers(1, 60))
    def start(self, name: str, capacity: int) -> None:
        self.order = make_order(name, shape_of, capacity)
        self.there: set[int] = set()
        self.now = 0.0

    @rule(node=NODES, request=st.booleans(), pause=st.floats(0, 100))
    def use(self, node: int, request: bool, pause: float) -> None:
        self.now += pause
        self.order.use(path_of(node), self.now, request=request)
        self.there.update(path_of(node))

    @rule(node=NODES)
    def touch_alone(self, node: int) -> None:
        self.order.use([node], self.now, request=False)
        self.there.add(node)

    @rule(node=NODES, ahead=st.none() | st.floats(-100, 1000))
    def expect(self, node: int, ahead: float | None) -> None:
        self.order.expect(node, None if ahead is None else self.now + ahead)

    @rule(node=NODES)
    def sink(self, node: int) -> None:
        self.order.sink(node)

    @rule(node=NODES)
    def remove(self, node: int) -> None:
        self.order.remove(node)
        self.there.discard(node)

    @rule(node=NODES)
    def forget(self, node: int) -> None:
        self.order.forget(node)
        self.there.discard(node)

    @rule(need=st.integers(1, 40), kept=st.sets(NODES, max_size=5))
    def evict(self, need: int, kept: set[int]) -> None:
        for node in self.order.coldest():
            if node not in kept:
                self.order.remove(node)
                self.there.discard(node)
                need -= 1
            if not need:
                break

    @rule()
    def clear(self) -> None:
        self.order.clear()
        self.there.clear()

    @invariant()
    def offers_all_leaf_first(self) -> None:
        offered = list(self.order.coldest())
        assert len(offered) == len(self.order) == len(self.there) and set(offered) == self.there
        if getattr(self.order, "_active", self.order).name != "s3fifo":  # whose queues move on when they are looked at
            assert offered == list(self.order.coldest()), "looking changes nothing"
        place = {node: i for i, node in enumerate(offered)}
        for node, i in place.items():
            # A parent that was never seen in front of its child is not known to be one.
            assert all(place.get(up, i + 1) > i for up in self.known_above(node))

    def known_above(self, node: int) -> list[int]:
        above = []
        order = getattr(self.order, "_active", self.order)
        entry = order._nodes[node].parent
        while entry is not None:
            if order._nodes.get(entry.number) is entry:  # else forgotten, and its number used again
                above.append(entry.number)
            entry = entry.parent
        return above


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 31)), max_size=80))
def test_lru_is_the_brute_force_order(steps: list[tuple[bool, int]]) -> None:
    order, last = make_order("lru", shape_of, 8), {}
    for step, (use, node) in enumerate(steps):
        if use:
            order.use(path_of(node), float(step))
            last.update({up: (step, i) for i, up in enumerate(path_of(node))})
        elif not any(path_of(other)[1:].count(node) for other in last):
            order.remove(node)
            last.pop(node, None)
    assert list(order.coldest()) == sorted(last, key=last.__getitem__)


@pytest.mark.parametrize("name", NAMES)
def test_the_caller_may_remove_while_it_looks(name: str) -> None:
    order = make_order(name, shape_of, 8)
    order.use([3, 1], 0.0)
    order.use([4, 2, 1], 1.0)
    seen = []
    for node in order.coldest():
        seen.append(node)
        order.remove(node)
        order.remove(node)
    assert sorted(seen) == [1, 2, 3, 4] and len(order) == 0
    assert seen.index(1) == 3 and seen.index(4) < seen.index(2)


@pytest.mark.parametrize("name", NAMES)
def test_a_scan_left_early_changes_nothing(name: str) -> None:
    order = make_order(name, shape_of, 64)
    for node in (8, 9, 10, 11):
        order.use(path_of(node), float(node))
    before = list(order.coldest())
    for end in range(len(before)):
        scan = order.coldest()
        assert [next(scan) for _ in range(end)] == before[:end]
        assert list(order.coldest()) == before
        scan.close()  # type: ignore[attr-defined]
    assert list(order.coldest()) == before


@pytest.mark.parametrize("name", NAMES)
def test_one_demand_looks_at_a_bounded_number_of_nodes(name: str) -> None:
    order = make_order(name, lambda node: Shape(1, 0), 4 * SCAN_LIMIT)
    for node in range(SCAN_LIMIT + 100):
        order.use([node], float(node))
    assert len(list(order.coldest())) == SCAN_LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_what_is_sunk_goes_first_until_its_next_use(name: str) -> None:
    order = make_order(name, shape_of, 64)
    for node in (4, 5, 6, 7):
        order.use(path_of(node), float(node))
    order.sink(7)
    assert next(iter(order.coldest())) == 7
    order.sink(3)
    assert next(iter(order.coldest())) == 7, "its child is there"
    order.remove(7)
    order.remove(6)
    assert next(iter(order.coldest())) == 3
    order.use([3, 1], 9.0)
    order.use([3, 1], 10.0)
    assert next(iter(order.coldest())) != 3


@pytest.mark.parametrize("name", NAMES)
def test_a_touch_is_no_request(name: str) -> None:
    order = make_order(name, shape_of, 64)
    order.use([2, 1], 0.0)
    for step in range(1, 9):
        order.use([2, 1], float(step), request=False)
    node = getattr(order, "_active", order)._nodes[2]
    assert (node.hits, node.at, node.freq) == (1, 8.0, 0)
    order.use([2, 1], 9.0)
    assert node.hits == 2


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_that_of_the_nodes_that_exist(name: str) -> None:
    """12,000 uses of nodes that come, are used again, and cease to exist."""
    order = make_order(name, lambda node: Shape(1, 0), 64)
    rng = random.Random(1)
    for step in range(6_000):
        node = step * 4
        order.use([node, node + 1, node + 2], float(step), request=bool(step % 3))
        order.expect(node, step + rng.random() * 100)
        order.use([max(0, node - 4 * rng.randrange(8))], float(step))
        if step >= 20:
            for old in range(4):
                order.forget(node - 80 + old)
    inner = getattr(order, "_active", order)
    assert len(order) < 100 and len(inner._nodes) < 200
    heaps = [heap for heap in vars(inner).values() if hasattr(heap, "_valid")]
    assert heaps and all(len(heap._heap) < 1000 and len(heap._valid) < 1000 for heap in heaps)
    for shadow in getattr(order, "_shadows", ()):
        assert len(shadow) < 3000 and len(shadow.order._nodes) < 6000


def test_a_long_path_queues_its_end_only() -> None:
    """1,500 pages in a row: whatever is used of it, one entry."""
    order = Lru(lambda node: Shape(1, node), 4096)
    for step in range(20):
        order.use(range(1500, -1, -1), float(step))
    assert len(order._heap._heap) == 1


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'fifo' does not exist.*lru.*auto"):
        make_order("fifo", shape_of, 8)
