"""What each eviction policy ranks by."""

from __future__ import annotations

import random

import pytest

from radixtier.policy.eviction import NAMES, Shape, make_order
from radixtier.policy.eviction.auto import Auto
from radixtier.policy.eviction.cost import DOUBLE_PAGES
from radixtier.policy.eviction.order import EvictionOrder
from radixtier.policy.eviction.shadow import Sample


def one_page(node: int) -> Shape:
    return Shape(1, 0)


def replay(order: EvictionOrder, loads: list[list[int]], capacity: int) -> list[int]:
    """Serve paths (deepest first) one a second; returns the pages found per request."""
    there: set[int] = set()
    found = []
    for now, path in enumerate(loads):
        found.append(sum(node in there for node in path))
        order.use(path, float(now))
        there.update(path)
        while len(there) > capacity:
            node = next(iter(order.coldest()))
            order.remove(node)
            there.discard(node)
        assert len(order) == len(there) <= capacity
    return found


def test_slru_keeps_what_was_requested_twice_through_a_scan() -> None:
    loads = [[i] for i in range(8)] * 2 + [[100 + i] for i in range(50)] + [[i] for i in range(8)]
    assert sum(replay(make_order("slru", one_page, 10), loads, 10)[-8:]) == 8
    assert sum(replay(make_order("lru", one_page, 10), loads, 10)[-8:]) == 0


def test_slru_protects_a_share_only() -> None:
    order = make_order("slru", one_page, 10)
    for now, node in enumerate([*range(10), *range(10)]):
        order.use([node], float(now))
    assert list(order.coldest()) == list(range(10)), "the first two went back to probation"
    order.use([100], 20.0)
    assert list(order.coldest())[:3] == [0, 1, 100]


def test_s3fifo_sieves_a_scan_and_remembers_what_it_let_go() -> None:
    loads = [[i] for i in range(8)] * 2 + [[100 + i] for i in range(50)] + [[i] for i in range(8)]
    assert sum(replay(make_order("s3fifo", one_page, 10), loads, 10)[-8:]) == 8
    order = make_order("s3fifo", one_page, 10)
    for node in (1, 2, 3):
        order.use([node], 0.0)
    assert next(iter(order.coldest())) == 1
    order.remove(1)
    order.use([1], 1.0)
    assert list(order.coldest()) == [2, 3, 1], "it came back soon: behind what is new"


def test_cost_keeps_deep_pages_longer_and_forgets_in_the_end() -> None:
    depth = {0: 0, 1: int(3 * DOUBLE_PAGES)}
    order = make_order("cost", lambda node: Shape(1, depth.get(node, 0)), 4)
    order.use([1], 0.0)
    order.use([0], 1.0)
    assert list(order.coldest()) == [0, 1], "older, but four times as expensive"
    order.remove(0)
    gone = []
    for node in range(2, 40):
        order.use([node], float(node))
        if len(order) > 4:
            gone.append(next(iter(order.coldest())))
            order.remove(gone[-1])
    assert 1 in gone[3:], "every eviction ages what stays"


def test_next_use_evicts_the_latest_expected_then_the_long_overdue() -> None:
    order = make_order("next_use", one_page, 8)
    for node, when in ((1, 60.0), (2, 500.0), (3, 20.0)):
        order.use([node], 0.0)
        order.expect(node, when)
    assert list(order.coldest()) == [2, 1, 3]
    order.use([4], 100.0)
    order.expect(4, 110.0)
    assert list(order.coldest()) == [2, 3, 1, 4], "2 is 400 s ahead, 3 is 80 s overdue, 1 is 40"
    order.expect(2, None)
    assert list(order.coldest()) == [2, 3, 1, 4], "not expected: 100 s since its use"
    order.use([2], 100.0)
    assert list(order.coldest()) == [3, 1, 4, 2]


def test_next_use_may_give_up_what_just_came_in() -> None:
    order = make_order("next_use", one_page, 8)
    for node in range(4):
        order.use([node], 0.0)
        order.expect(node, 30.0 + node)
    order.use([9], 1.0)
    order.expect(9, 3600.0)
    assert next(iter(order.coldest())) == 9


def test_next_use_without_predictions_is_lru() -> None:
    rng = random.Random(3)
    ours, lru = make_order("next_use", one_page, 8), make_order("lru", one_page, 8)
    for now in range(400):
        node = rng.randrange(1, 64)
        path = [node >> i for i in range(node.bit_length())]
        for order in (ours, lru):
            order.use(path, float(now))
    # Times of one path are equal here: the sequence decides.
    assert list(ours.coldest()) == list(lru.coldest())


def test_a_prediction_holds_for_the_parents_once_they_are_the_end() -> None:
    order = make_order("next_use", one_page, 8)
    order.use([3, 2, 1], 0.0)
    order.expect(3, 900.0)
    order.use([5], 0.0)
    order.expect(5, 100.0)
    assert list(order.coldest()) == [3, 2, 1, 5]
    order.expect(3, 50.0)
    assert list(order.coldest()) == [5, 3, 2, 1], "estimated again: all of the path moves"


def test_next_use_keeps_a_prefix_at_its_own_interval() -> None:
    """Prefix 1 is used every 5 s by ever new sessions, each expected back in an hour."""
    order = make_order("next_use", one_page, 8)
    for turn in range(6):
        order.use([10 + turn, 1], 5.0 * turn)
        order.expect(10 + turn, 5.0 * turn + 3600)
        order.remove(10 + turn - 1)
    order.use([5], 26.0)
    order.expect(5, 200.0)
    order.remove(15)
    assert list(order.coldest()) == [5, 1]


def test_a_prediction_of_a_path_that_goes_on_is_taken_as_it_is() -> None:
    """Turns 1 s apart, then a long pause announced: the interval of before does not count."""
    order = make_order("next_use", one_page, 8)
    for turn in range(6):
        order.use(list(range(turn, -1, -1)), float(turn))
        order.expect(turn, turn + 1.0)
    order.expect(5, 5000.0)
    order.use([9], 5.0)
    order.expect(9, 100.0)
    assert list(order.coldest()) == [5, 4, 3, 2, 1, 0, 9]


def mixed_load(seed: int) -> list[list[int]]:
    """A working set that fits, in the way of a scan that never ends."""
    rng = random.Random(seed)
    return [[rng.randrange(300)] if step % 3 else [1000 + step] for step in range(12_000)]


def loop_load(n: int, of: int) -> list[list[int]]:
    return [[50_000 + step % of] for step in range(n)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_auto_leaves_lru_for_what_resists_a_scan_and_does_not_flap(seed: int) -> None:
    capacity, load = 400, mixed_load(seed)
    auto = Auto(one_page, capacity)
    late = sum(replay(auto, load, capacity)[6000:])
    single = {
        name: sum(replay(make_order(name, one_page, capacity), load, capacity)[6000:]) for name in ("lru", "slru")
    }
    assert single["slru"] > 1.1 * single["lru"]
    assert auto.following != "lru" and 1 <= auto.switches <= 3
    assert late > single["lru"] + 0.8 * (single["slru"] - single["lru"])


def test_auto_stays_with_lru_where_nothing_is_better() -> None:
    """Every node is used three times in a row and never again."""
    auto = Auto(one_page, 400)
    replay(auto, [[step // 3] for step in range(9_000)], 400)
    assert auto.following == "lru" and auto.switches == 0


def test_auto_follows_a_load_that_changes() -> None:
    auto = Auto(one_page, 400)
    replay(auto, mixed_load(1) + loop_load(12_000, 500), 400)
    scores = auto.scores
    assert scores[auto.following] >= max(scores.values()) - 0.05
    assert auto.switches <= 6


def test_a_switch_keeps_every_node_and_what_is_known_of_it() -> None:
    auto = Auto(one_page, 64)
    for step in range(200):
        node = step % 50 + 1
        auto.use([node >> i for i in range(node.bit_length())], float(step))
        auto.expect(node, step + 100.0)
    before = set(auto.coldest())
    for candidate, kind in (*list(enumerate(NAMES[:-1]))[1:], (0, "lru")):
        auto._follow(candidate)
        assert auto.following == kind and set(auto.coldest()) == before and len(auto) == len(before)
    assert next(iter(auto.coldest())) == next(iter(make_lru_like(200).coldest()))


def make_lru_like(steps: int) -> EvictionOrder:
    order = make_order("lru", one_page, 64)
    for step in range(steps):
        node = step % 50 + 1
        order.use([node >> i for i in range(node.bit_length())], float(step))
    return order


@pytest.mark.parametrize("pages", [1, 3, 40])
def test_a_sample_has_its_share_of_the_pages(pages: int) -> None:
    sample = Sample(1 / 16)
    taken = sum(sample.takes(node, pages) for node in range(10_000))
    assert taken * sample.weight(pages) == pytest.approx(10_000 * pages / 16, rel=0.2)
    assert taken == 10_000 or pages < 16, "long runs are all there"


def test_what_is_moved_away_leaves_the_shadows_too() -> None:
    auto = Auto(one_page, 64)
    node = next(node for node in range(1000) if auto._sample.takes(node, 1))
    auto.use([node], 0.0)
    auto.remove(node)
    assert all(not shadow._have for shadow in auto._shadows)
    auto.use([node], 1.0)
    for offered in auto.coldest():
        auto.remove(offered)
    assert all(shadow._have == {node: 1} for shadow in auto._shadows), "evicted here, not there"
