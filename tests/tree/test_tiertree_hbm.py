"""What leaves DRAM first: what HBM has as well, the hottest of it first; pins last; and who left which tier."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mover_fakes import SCALE

from radixtier.policy.eviction import NAMES
from radixtier.tree.residency import HBM, PARKED, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree, Warmth


class Wood:
    """A tree whose pages are clean, with a clock that ticks at each use."""

    def __init__(self, policy: str = "lru", n: int = 200) -> None:
        self.now = 0.0
        self.table = ResidencyTable(n, n)
        self.tree = TierTree(self.table, policy, clock=lambda: self.now)
        self.slots = 0

    def add(self, n: int, parent: int | None = None, *, clean: bool = True) -> Pages:
        self.now += 1.0
        pages = self.table.alloc(n)
        assert pages is not None
        self.table.filled(pages)
        keys = np.zeros((n, 16), np.uint8)
        keys[:, 0] = pages
        self.tree.add(pages, parent, keys)
        if clean:
            self.clean(pages)
        return pages

    def clean(self, pages: Pages) -> None:
        self.table.begin_write(pages, np.arange(self.slots, self.slots + len(pages)))
        self.slots += len(pages)
        self.table.end_write(pages, np.ones(len(pages), np.bool_), np.zeros(len(pages), np.uint64))

    def use(self, pages: Pages) -> None:
        self.now += 1.0
        self.tree.use_page(int(pages[-1]))

    def drop(self, pages: Pages) -> None:
        self.tree.left_dram(pages)
        self.table.drop_frames(pages)

    def run(self, pages: Pages) -> int:
        return int(self.table.run[pages[0]])


def ids(*parts: Any) -> list[int]:
    return sorted(int(page) for part in parts for page in part)


# ---- in HBM as well -------------------------------------------------------------------------------------


def test_what_hbm_has_goes_first_and_the_hottest_of_it_before_all() -> None:
    wood = Wood()
    a, b, c, d = (wood.add(2) for _ in range(4))
    for pages in (b, c, d):
        wood.tree.came_to_hbm(pages)
    wood.use(b)
    assert ids(wood.tree.victims(2)) == ids(b), "it will stay in HBM the longest"
    assert ids(wood.tree.victims(4)) == ids(b, d)
    assert ids(wood.tree.victims(6)) == ids(b, d, c)
    assert ids(wood.tree.victims(8)) == ids(a, b, c, d)
    wood.tree.left_hbm(b)
    assert ids(wood.tree.victims(4)) == ids(d, c), "nobody has another copy of b now"


def test_of_a_run_only_what_hbm_has_goes_and_the_rest_in_its_turn() -> None:
    wood = Wood()
    a, b = wood.add(4), wood.add(4)
    wood.tree.came_to_hbm(b[:2])
    assert ids(wood.tree.victims(2)) == ids(b[:2])
    assert ids(wood.tree.victims(4)) == ids(b[:2], a[2:])
    wood.use(a)
    assert ids(wood.tree.victims(4)) == ids(b)


def test_what_hbm_is_about_to_lose_is_as_good_as_any_other() -> None:
    wood = Wood()
    a, b = wood.add(2), wood.add(2)
    wood.tree.came_to_hbm(b)
    wood.tree.stays(wood.run(b))
    assert ids(wood.tree.victims(2)) == ids(a)
    assert list(wood.tree.leaving_hbm(10, 10)) == [wood.run(b)], "it is in HBM still"
    wood.tree.came_to_hbm(b)
    assert ids(wood.tree.victims(2)) == ids(b), "loaded again, it is hot"


def test_the_next_to_leave_hbm_are_the_least_recently_used_there() -> None:
    wood = Wood()
    runs = [wood.add(2) for _ in range(4)]
    for pages in runs[:3]:
        wood.tree.came_to_hbm(pages)
    wood.use(runs[0])
    order = [wood.run(runs[i]) for i in (1, 2, 0)]
    assert list(wood.tree.leaving_hbm(99, 99)) == order
    assert list(wood.tree.leaving_hbm(3, 99)) == order[:2] and list(wood.tree.leaving_hbm(99, 1)) == order[:1]
    wood.drop(runs[1])
    assert list(wood.tree.leaving_hbm(99, 99)) == order, "what DRAM gave up is what is to be copied"


@pytest.mark.parametrize("use", ["lease", "hold", "dirty", "cold"])
def test_what_hbm_has_and_is_in_use_here_does_not_go(use: str) -> None:
    wood = Wood()
    a, b = wood.add(2), wood.add(2, clean=use != "dirty")
    wood.tree.came_to_hbm(b)
    if use == "lease":
        wood.table.acquire(b)
    if use == "hold":
        wood.table.acquire_hold(b)
    if use == "cold":
        wood.drop(b)
    for _ in range(2):
        assert ids(wood.tree.victims(4)) == ids(a)
    if use == "lease":
        wood.table.release(b)
        assert ids(wood.tree.victims(2)) == ids(b), "asking did not make it forgotten"


def test_pages_that_the_tree_freed_are_in_hbm_no_more() -> None:
    wood = Wood()
    a, b = wood.add(4), wood.add(2)
    wood.tree.came_to_hbm(a[2:])
    wood.tree.forget(a[2:])
    wood.table.free(a[2:])
    c = wood.add(2)
    assert set(ids(c)) == set(ids(a[2:])) and not wood.table.marked(c, HBM).any()
    wood.tree.came_to_hbm(c)
    assert list(wood.tree.leaving_hbm(99, 99)) == [wood.run(c)]
    wood.tree.left_hbm(c)
    assert not wood.tree.above and ids(wood.tree.victims(2)) == ids(a[:2])
    assert len(b) == 2


def test_a_run_without_pages_left_in_hbm_does_not_hide_the_next() -> None:
    wood = Wood()
    a, b = wood.add(2), wood.add(2)
    wood.tree.came_to_hbm(a)
    wood.tree.came_to_hbm(b)
    wood.tree.left_hbm(a[:1])
    assert list(wood.tree.leaving_hbm(1, 9)) == [wood.run(a)]
    wood.tree.left_hbm(a[1:])
    assert list(wood.tree.leaving_hbm(1, 9)) == [wood.run(b)]


# ---- parked ---------------------------------------------------------------------------------------------


def test_what_is_parked_goes_in_its_turn_and_what_is_only_dirty_does_not() -> None:
    wood = Wood()
    a, b, c = wood.add(2, clean=False), wood.add(2, clean=False), wood.add(2)
    wood.table.set_mark(a, PARKED, True)
    assert ids(wood.tree.victims(9)) == ids(a, c)
    assert ids(wood.tree.victims(1)) == [a[1]], "as warm as it is, no warmer"
    assert ids(wood.tree.dirty_victims(9)) == ids(b), "the others are free for the asking"


# ---- pins -----------------------------------------------------------------------------------------------


def test_pinned_pages_go_when_nothing_else_is_left() -> None:
    wood = Wood()
    a, b = wood.add(4), wood.add(2)
    pins = {wood.run(a): 3}
    wood.tree.pinned = lambda run: pins.get(run, 0)
    assert ids(wood.tree.victims(1)) == [a[3]]
    assert ids(wood.tree.victims(3)) == ids(a[3:], b)
    assert ids(wood.tree.victims(5)) == ids(a[1:], b), "soft: they cannot wedge the pool, and the front goes last"
    assert ids(wood.tree.victims(3)) == ids(a[3:], b), "asking changes nothing"
    assert ids(wood.tree.victims(99, Warmth(-1e9, -1e9))) == ids(a[3:], b), "speculation leaves them alone"


def test_a_pin_holds_what_hbm_has_as_well() -> None:
    wood = Wood()
    a, b = wood.add(2), wood.add(2)
    wood.tree.came_to_hbm(a)
    wood.tree.pinned = lambda run: 9 if run == wood.run(a) else 0
    assert ids(wood.tree.victims(2)) == ids(b)
    assert ids(wood.tree.victims(4)) == ids(a, b)


# ---- warmth and sinking ---------------------------------------------------------------------------------


def test_what_is_expected_sooner_is_warmer_than_what_was_used_later() -> None:
    assert Warmth(5.0, 0.0) < Warmth(6.0, -100.0) < Warmth(float("inf"), -101.0) < Warmth(float("inf"), -100.0)


def test_only_runs_that_are_less_warm_go_and_never_the_path_itself() -> None:
    wood = Wood()
    a, b, c = wood.add(2), wood.add(2), wood.add(2)
    d = wood.add(1, int(b[-1]))
    warmth = wood.tree.runs[wood.run(d)].warmth
    assert ids(wood.tree.victims(9, warmth)) == ids(a, c)
    wood.tree.expect(wood.run(a), wood.now + 10.0)
    assert ids(wood.tree.victims(9, warmth)) == ids(c), "who was used longest ago may be expected first"
    wood.tree.expect(wood.run(d), wood.now + 5.0)
    assert ids(wood.tree.victims(9, wood.tree.runs[wood.run(d)].warmth)) == ids(a, c)


def test_an_expectation_is_that_of_the_soonest_and_can_be_taken_back() -> None:
    wood = Wood()
    a = wood.add(1)
    b, c = wood.add(1, int(a[0])), wood.add(1, int(a[0]))
    wood.tree.expect(wood.run(b), wood.now + 50.0)
    wood.tree.expect(wood.run(c), wood.now + 90.0)
    assert wood.tree.runs[wood.run(a)].expected == wood.now + 50.0
    wood.tree.expect(wood.run(b), None)
    assert wood.tree.runs[wood.run(b)].expected is None and wood.tree.runs[wood.run(c)].expected == wood.now + 90.0


@pytest.mark.parametrize("policy", NAMES)
def test_a_run_that_was_sunk_goes_first_until_it_is_used_again(policy: str) -> None:
    wood = Wood(policy)
    a, b, c = (wood.add(2) for _ in range(3))
    wood.tree.sink(wood.run(c))
    assert ids(wood.tree.victims(2)) == ids(c)
    wood.use(c)
    assert ids(wood.tree.victims(4)) != ids(a, c) and ids(wood.tree.victims(6)) == ids(a, b, c)


# ---- at random ------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), st.sampled_from(NAMES), st.integers(1, 50))
@settings(max_examples=40 * SCALE)
def test_victims_are_unused_enough_and_in_the_right_order_of_tiers(rng: random.Random, policy: str, steps: int) -> None:
    wood = Wood(policy)
    runs: list[Pages] = []
    pins: dict[int, int] = {}
    wood.tree.pinned = lambda run: pins.get(run, 0)
    for _ in range(steps):
        random_step(wood, runs, pins, rng)
        need = rng.randint(0, 12)
        got = wood.tree.victims(need).tolist()
        everything = np.concatenate(runs) if runs else np.empty(0, np.int64)
        may = set(everything[wood.table.droppable(everything)].tolist())
        pinned = {int(page) for pages in runs for page in pages[: pins.get(wood.run(pages), 0)]}
        both = {int(p) for n in wood.tree.in_both for p in wood.tree.pages_of(n) if wood.table.marked(p, HBM)}
        assert len(got) == len(set(got)) == min(need, len(may)) and set(got) <= may
        first = (both & may) - pinned
        assert first <= set(got) or set(got) <= first, "something went before what HBM has as well"
        assert not set(got) & pinned or may - pinned <= set(got), "a pinned page went before others"


def random_step(wood: Wood, runs: list[Pages], pins: dict[int, int], rng: random.Random) -> None:
    table = wood.table
    what = rng.choice(["add", "add", "use", "hbm", "left", "drop", "hold", "pin", "stays", "read", "sink", "park"])
    if what == "add" or not runs:
        parent = int(rng.choice(rng.choice(runs))) if runs and rng.random() < 0.6 else None
        if table.free_frames > 4:
            runs.append(wood.add(rng.randint(1, 4), parent, clean=rng.random() < 0.7))
        return
    pages = rng.choice(runs)
    some = pages[rng.randint(0, len(pages) - 1) :]
    if what == "use":
        wood.use(pages)
    elif what == "hbm":
        wood.tree.came_to_hbm(some)
    elif what == "left":
        wood.tree.left_hbm(some)
    elif what == "drop":
        chosen = wood.tree.victims(rng.randint(0, 5))
        wood.drop(chosen[table.state[chosen] == State.CLEAN])
    elif what == "hold":
        (table.release_hold if (table.hold[some] > 0).all() else table.acquire_hold)(some)
    elif what == "pin":
        pins[wood.run(pages)] = rng.randint(0, 3)
    elif what == "stays":
        wood.tree.stays(wood.run(pages))
    elif what == "sink":
        wood.tree.sink(wood.run(pages))
    elif what == "park":
        table.set_mark(some[table.unused(some, State.DIRTY)], PARKED, True)
    elif what == "read":
        cold = pages[table.is_cold(pages)]
        if table.begin_read(cold):
            none = np.zeros(len(cold), np.bool_)
            table.end_read(cold, ~none, none)
            wood.tree.enter(wood.run(pages))
