"""TierTree: paths, keys, the order of victims, and memory that stays flat."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mover_fakes import SCALE

from radixtier.identity import chain, namespace_seed
from radixtier.policy.eviction import SCAN_LIMIT
from radixtier.tree.residency import NONE, Pages, ResidencyTable, State
from radixtier.tree.tiertree import ROOT, TierTree

SPACE = namespace_seed("adapter", "salt")
PAGE_SIZE = 4


@dataclass
class Node:
    """A run as the test knows it."""

    number: int
    pages: list[int]
    parent_page: int | None
    tokens: list[int]


class Grove:
    """A tree of runs whose pages are all in DRAM, or where the test puts them."""

    def __init__(self, n_handles: int = 400, n_frames: int = 400) -> None:
        self.table = ResidencyTable(n_handles, n_frames)
        self.tree = TierTree(self.table)
        self.slots = iter(range(1 << 30))
        self.born = 0

    def add(self, n: int, parent: int | None = None, tokens: list[int] | None = None) -> Pages:
        pages = self.table.alloc(n)
        assert pages is not None
        self.table.filled(pages)
        if tokens is None:
            tokens = list(range(self.born, self.born + n * PAGE_SIZE))
            self.born += n * PAGE_SIZE
        before = None if parent is None else self.tree.key_of(parent)
        self.tree.add(pages, parent, chain(before or SPACE, tokens, PAGE_SIZE))
        return pages

    def clean(self, pages: Pages) -> None:
        self.table.begin_write(pages, np.array([next(self.slots) for _ in pages]))
        self.table.end_write(pages, np.ones(len(pages), np.bool_), np.zeros(len(pages), np.uint64))

    def free(self, pages: Pages) -> None:
        self.tree.forget(pages)
        self.table.free(pages)

    def run_of(self, page: Any) -> int:
        return int(self.table.run[page])

    def keys(self, pages: Pages) -> list[bytes]:
        return [self.table.key[p].tobytes() for p in pages.tolist()]


# ---- runs, parents, paths -------------------------------------------------------------------------------


def test_a_path_goes_from_the_run_to_the_root() -> None:
    grove = Grove()
    a = grove.add(3)
    b = grove.add(2, int(a[-1]))
    c = grove.add(1, int(b[0]))
    other = grove.add(2)
    a_run, b_run, c_run, other_run = (grove.run_of(pages[0]) for pages in (a, b, c, other))
    assert grove.tree.path(c_run) == [c_run, b_run, a_run]
    assert grove.tree.path(other_run) == [other_run]
    assert grove.tree.path(ROOT) == []
    assert len({a_run, b_run, c_run, other_run}) == 4


def test_a_run_lives_as_long_as_one_of_its_pages() -> None:
    grove = Grove()
    pages = grove.add(5)
    run = grove.run_of(pages[0])
    grove.free(pages[3:])
    assert grove.tree.runs[run].live == 3
    assert grove.table.run[pages].tolist() == [run] * 3 + [NONE] * 2
    grove.free(pages[:1])
    grove.free(pages[1:3])
    assert not grove.tree.runs and len(grove.tree.order) == 0
    assert (grove.table.run == NONE).all()


def test_freed_pages_that_are_still_in_use_are_in_no_run() -> None:
    grove = Grove()
    pages = grove.add(4)
    grove.clean(pages)
    grove.table.acquire(pages)
    grove.free(pages[2:])
    assert grove.table.run[pages[2:]].tolist() == [NONE, NONE]
    grove.table.release(pages)
    assert grove.tree.victims(9).tolist() == pages[:2].tolist()


def test_a_child_that_outlives_its_parent_hangs_from_the_root() -> None:
    grove = Grove()
    a = grove.add(2)
    b = grove.add(2, int(a[-1]))
    grove.free(a)
    assert grove.tree.path(grove.run_of(b[0])) == [grove.run_of(b[0])]
    grove.tree.use_page(int(b[-1]))
    grove.clean(b)
    assert sorted(grove.tree.victims(9).tolist()) == sorted(b.tolist())


def test_reused_handles_belong_to_their_new_run_only() -> None:
    grove = Grove(6, 6)
    a = grove.add(6)
    grove.free(a[3:])
    b = grove.add(3)
    assert set(b.tolist()) == set(a[3:].tolist())
    grove.clean(b)
    grove.free(a[:3])
    assert sorted(grove.tree.victims(9).tolist()) == sorted(b.tolist())
    assert len(grove.tree.runs) == 1


def test_clear_leaves_no_run_behind_not_even_of_pages_in_use() -> None:
    grove = Grove(8, 8)
    a = grove.add(3)
    grove.table.acquire(a)
    grove.tree.clear()
    grove.table.free(a)
    b = grove.add(2)
    assert (grove.table.run[a] == NONE).all()
    grove.table.release(a)
    assert list(grove.tree.runs) == [grove.run_of(b[0])] and len(grove.tree.order) == 1


# ---- keys -----------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=40 * SCALE)
def test_keys_chain_from_the_root_wherever_a_path_is_split(data: st.DataObject) -> None:
    grove = Grove()
    paths: dict[int, list[int]] = {}  # page -> all tokens from the root to its end
    for _ in range(data.draw(st.integers(1, 8))):
        parent = data.draw(st.none() | st.sampled_from(sorted(paths))) if paths else None
        before = [] if parent is None else paths[parent]
        tokens = data.draw(st.lists(st.integers(0, 3), min_size=PAGE_SIZE, max_size=5 * PAGE_SIZE))
        tokens = tokens[: len(tokens) // PAGE_SIZE * PAGE_SIZE]
        pages = grove.add(len(tokens) // PAGE_SIZE, parent, tokens)
        for i, page in enumerate(pages.tolist()):
            paths[page] = before + tokens[: (i + 1) * PAGE_SIZE]
    for page, tokens in paths.items():
        assert grove.table.key[page].tobytes() == chain(SPACE, tokens, PAGE_SIZE)[-1].tobytes()
    by_key = {grove.table.key[page].tobytes(): tuple(tokens) for page, tokens in paths.items()}
    assert len(by_key) == len({tuple(tokens) for tokens in paths.values()})


def test_the_first_half_of_a_key_is_the_seed_of_the_checksum() -> None:
    grove = Grove()
    (page,) = grove.add(1, None, [5, 6, 7, 8])
    key = chain(SPACE, [5, 6, 7, 8], PAGE_SIZE)[0].tobytes()
    assert int(grove.table.key[page, 0]) == int.from_bytes(key[:8], "little")


# ---- the order of victims -------------------------------------------------------------------------------


def test_the_coldest_subtree_goes_first_and_its_deepest_pages_before_all() -> None:
    grove = Grove()
    a = grove.add(3)
    b = grove.add(2, int(a[-1]))
    c = grove.add(2)
    for pages in (a, b, c):
        grove.clean(pages)
    assert grove.tree.victims(1).tolist() == [b[-1]]
    assert set(grove.tree.victims(4).tolist()) == {*b.tolist(), *a[1:].tolist()}
    grove.tree.use_page(int(b[0]))
    assert set(grove.tree.victims(3).tolist()) == {*c.tolist(), b[-1]}


def test_using_a_run_keeps_all_its_ancestors_warmer_than_itself() -> None:
    grove = Grove()
    root = grove.add(1)
    twigs = [grove.add(1, int(root[0])) for _ in range(5)]
    for pages in (root, *twigs):
        grove.clean(pages)
    grove.tree.use_page(int(twigs[0][0]))
    order = [int(p) for t in (twigs[1:] + twigs[:1]) for p in t] + [int(root[0])]
    for n in range(1, 7):
        assert set(grove.tree.victims(n).tolist()) == set(order[:n])


def test_asking_changes_nothing() -> None:
    grove = Grove()
    a, b = grove.add(3), grove.add(3)
    for pages in (a, b):
        grove.clean(pages)
    first = grove.tree.victims(4).tolist()
    assert grove.tree.victims(4).tolist() == first
    assert grove.tree.victims(0).tolist() == []
    assert set(grove.tree.victims(99).tolist()) == {*a.tolist(), *b.tolist()}


@pytest.mark.parametrize("use", ["lease", "hold", "read", "doomed", "dirty", "filling"])
def test_a_page_in_use_is_no_victim(use: str) -> None:
    grove = Grove()
    a = grove.add(2)
    other = grove.add(1)
    grove.clean(other)
    if use == "filling":
        a = grove.table.alloc(2)
        assert a is not None
        grove.tree.add(a, None, np.zeros((2, 16), np.uint8))
    elif use != "dirty":
        grove.clean(a)
    if use in ("lease", "doomed"):
        grove.table.acquire(a)
    if use == "doomed":
        grove.free(a)
    if use == "hold":
        grove.table.acquire_hold(a)
    if use == "read":
        grove.table.drop_frames(a)
        assert grove.table.begin_read(a)
    assert grove.tree.victims(9).tolist() == other.tolist()
    assert grove.tree.victims(9).tolist() == other.tolist()


def test_pages_that_come_back_are_victims_again_after_a_use() -> None:
    grove = Grove()
    pages = grove.add(3)
    grove.clean(pages)
    grove.table.drop_frames(grove.tree.victims(3))
    assert grove.tree.victims(3).tolist() == []
    grove.table.begin_read(pages)
    none = np.zeros(3, np.bool_)
    grove.table.end_read(pages, ~none, none)
    grove.tree.use_page(int(pages[-1]))
    assert sorted(grove.tree.victims(9).tolist()) == sorted(pages.tolist())


def test_runs_without_frames_do_not_hide_the_others_for_long() -> None:
    grove = Grove(3 * SCAN_LIMIT, 3 * SCAN_LIMIT)
    empty = np.concatenate([grove.add(1) for _ in range(2 * SCAN_LIMIT + 1)])
    last = grove.add(2)
    grove.clean(np.concatenate([empty, last]))
    grove.table.drop_frames(empty)
    asked = [grove.tree.victims(2).tolist() for _ in range(3)]
    assert asked[-1] == last.tolist()
    assert len(grove.tree.order) == 1


class Oracle:
    """Least recently used, by the clock: a use stamps the run, its parent after it, and so on to the root."""

    def __init__(self, grove: Grove) -> None:
        self.grove = grove
        self.nodes: dict[int, Node] = {}
        self.stamp: dict[int, int] = {}
        self.now = 0

    def up(self, number: int) -> list[int]:
        runs = [number]
        while (page := self.nodes[runs[-1]].parent_page) is not None:
            runs.append(next(n for n, node in self.nodes.items() if page in node.pages))
        return runs

    def use(self, number: int) -> None:
        for run in self.up(number):
            self.now += 1
            self.stamp[run] = self.now

    def victims(self, need: int, state: State) -> list[int]:
        chosen: list[int] = []
        for number in sorted(self.nodes, key=lambda n: self.stamp[n]):
            pages = np.array(self.nodes[number].pages, np.int64)
            unused = pages[self.grove.table.unused(pages, state)].tolist()
            while unused and len(chosen) < need:
                chosen.append(unused.pop())
        return chosen

    def below(self, page: int) -> set[int]:
        """Pages of the subtree behind ``page`` (runs hang from any page of a run)."""
        number = next(n for n, node in self.nodes.items() if page in node.pages)
        pages = self.nodes[number].pages
        found = set(pages[pages.index(page) + 1 :])
        for other, node in self.nodes.items():
            if other != number and number in self.up(other):
                found |= set(node.pages)
        return found


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=40 * SCALE)
def test_victims_obey_the_law_of_the_order(rng: random.Random, steps: int) -> None:
    """Coldest first; never a page while a page of its own subtree could go; exactly as many as asked, if there are."""
    grove = Grove()
    oracle = Oracle(grove)
    for _ in range(steps):
        random_step(grove, oracle, rng)
        need, state = rng.randint(0, 12), rng.choice([State.CLEAN, State.DIRTY])
        got = (grove.tree.victims if state is State.CLEAN else grove.tree.dirty_victims)(need).tolist()
        assert len(got) == len(set(got)) and set(got) == set(oracle.victims(need, state))
        everything = {p for node in oracle.nodes.values() for p in node.pages}
        pages = np.array(sorted(everything), np.int64)
        unused = set(pages[grove.table.unused(pages, state)].tolist())
        assert len(got) == min(need, len(unused))
        for page in got:
            assert oracle.below(page) & unused <= set(got), "a page would go before one behind it"


def random_step(grove: Grove, oracle: Oracle, rng: random.Random) -> None:
    table, nodes = grove.table, oracle.nodes
    number = rng.choice(sorted(nodes)) if nodes else None
    what = rng.choice(["add", "add", "use", "clean", "drop", "hold", "read", "trim"])
    if what == "add" or number is None:
        parent = rng.choice(nodes[number].pages) if number is not None and rng.random() < 0.7 else None
        pages = grove.add(rng.randint(1, 4), parent)
        new = grove.run_of(pages[0])
        nodes[new] = Node(new, pages.tolist(), parent, [])
        oracle.use(new)
        return
    pages = np.array(nodes[number].pages, np.int64)
    if what == "use":
        grove.tree.use(number)
        oracle.use(number)
    elif what == "clean":
        grove.clean(pages[table.unused(pages, State.DIRTY)])
    elif what == "drop":
        table.drop_frames(grove.tree.victims(rng.randint(0, 6)))
    elif what == "hold":
        some = pages[: rng.randint(0, len(pages))]
        if (table.hold[some] > 0).all():
            table.release_hold(some)
        else:
            table.acquire_hold(some)
    elif what == "read":
        cold = pages[table.state[pages] == State.COLD]
        if table.begin_read(cold):
            none = np.zeros(len(cold), np.bool_)
            table.end_read(cold, ~none, none)
            grove.tree.use(number)
            oracle.use(number)
    elif what == "trim" and not (table.hold[pages] > 0).any():
        inner = {node.parent_page for node in nodes.values()}
        while pages.size and int(pages[-1]) not in inner and rng.random() < 0.7:
            grove.free(pages[-1:])
            pages = pages[:-1]
            nodes[number].pages.pop()
        if not pages.size:
            del nodes[number]


# ---- memory ---------------------------------------------------------------------------------------------


def test_a_run_that_lost_most_pages_keeps_no_array_of_them() -> None:
    grove = Grove(2000, 2000)
    kept = []
    for _ in range(180):
        pages = grove.add(100)
        grove.free(pages[10:])
        kept.append(pages[:10])
    runs = grove.tree.runs.values()
    assert len(runs) == 180
    assert sum(len(run.pages) for run in runs) <= 2 * sum(run.live for run in runs)
    for run in runs:
        base = run.pages if run.pages.base is None else run.pages.base
        assert base.nbytes <= 16 * run.live, "a small view keeps a big array alive"
    assert all(grove.run_of(pages[0]) in grove.tree.runs for pages in kept)


def test_memory_is_flat_over_100_000_operations() -> None:
    grove = Grove(300, 300)
    rng = random.Random(1)
    zeros = np.zeros((8, 16), np.uint8)
    live: list[Pages] = []

    def churn(rounds: int) -> None:
        """About ten operations on table and tree in each round."""
        for _ in range(rounds):
            n = rng.randint(1, 8)
            while grove.table.free_frames < n:
                pages = live.pop(rng.randrange(len(live)))
                grove.free(pages[len(pages) // 2 :])
                if len(pages) > 1:
                    live.append(pages[: len(pages) // 2])
            pages = grove.table.alloc(n)
            assert pages is not None
            grove.table.filled(pages)
            parent = int(rng.choice(live)[-1]) if live and rng.random() < 0.5 else None
            grove.tree.add(pages, parent, zeros[:n])
            live.append(pages)
            grove.tree.use_page(int(rng.choice(live)[0]))
            grove.tree.dirty_victims(4)
        len(grove.tree.forgotten)  # puts into its table what it put aside

    churn(8000)
    tracemalloc.start()
    try:
        churn(500)
        before = tracemalloc.get_traced_memory()[0]
        churn(1500)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 64 << 10
    assert len(grove.tree.runs) <= 300 and len(grove.tree.order) <= len(grove.tree.runs)
    assert sum(len(run.pages) for run in grove.tree.runs.values()) <= 2 * 300
