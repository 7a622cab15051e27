"""A path that passes by: the same as using it and then taking every node of it out."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.eviction import NAMES, EvictionOrder, Shape, make_order

PARENT = [None, 0, 1, 1, 3, 3, 0, 6, 7, None, 9, 10]
"""Of each node, always a lower number."""

STEPS = st.lists(
    st.tuples(st.sampled_from(("use", "touch", "pass", "evict", "expect")), st.integers(0, len(PARENT) - 1)),
    max_size=60,
)


def up(node: int | None) -> list[int]:
    path = []
    while node is not None:
        path.append(node)
        node = PARENT[node]
    return path


def shape_of(node: int) -> Shape:
    return Shape(1 + node % 3, len(up(node)) - 1)


def play(order: EvictionOrder, steps: list[tuple[str, int]], passes: bool) -> list[list[int]]:
    """Take steps; returns what is offered after each."""
    seen = []
    for now, (step, node) in enumerate(steps):
        if step == "pass" and passes:
            order.pass_by(up(node), float(now))
        elif step == "pass":
            order.use(up(node), float(now))
            for each in up(node):
                order.remove(each)
        elif step == "evict":
            coldest = order.first() if passes else next(order.coldest(), None)
            if coldest is not None:
                order.remove(coldest)
        elif step == "expect":
            order.expect(node, float(now + node))
        else:
            order.use(up(node), float(now), request=step == "use")
        seen.append(list(order.coldest()))
    return seen


@pytest.mark.parametrize("name", NAMES)
@given(steps=STEPS)
def test_passing_by_is_a_use_and_a_removal(name: str, steps: list[tuple[str, int]]) -> None:
    assert play(make_order(name, shape_of, 12), steps, True) == play(make_order(name, shape_of, 12), steps, False)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_run_is_the_same_too(name: str) -> None:
    """Long enough for ghosts and for shadows that turn over."""
    rng = random.Random(4)
    steps = [(rng.choice(("use", "touch", "pass", "evict", "expect")), rng.randrange(len(PARENT))) for _ in range(3000)]
    assert play(make_order(name, shape_of, 6), steps, True) == play(make_order(name, shape_of, 6), steps, False)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_is_the_first_of_the_coldest_and_stays(name: str) -> None:
    order = make_order(name, shape_of, 12)
    assert order.first() is None
    for now, node in enumerate((2, 5, 8, 11, 4, 5, 8)):
        order.use(up(node), float(now))
    coldest = list(islice(order.coldest(), 3))
    for node in coldest:
        assert order.first() == order.first() == node
        order.remove(node)
