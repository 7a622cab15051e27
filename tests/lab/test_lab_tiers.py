"""The three tiers: against brute force where there is one, by their invariants with every policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.lab.future import Future, NextUseOracle
from radixtier.lab.rates import Rates
from radixtier.lab.replay import replay
from radixtier.lab.tiers import Sizes, Tiers
from radixtier.lab.timing import Costs
from radixtier.lab.traces.trace import ROOT, Nodes, Request
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.admission import Admission, AdmitAll, make_admission
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.policy.eviction import Lru, make_order
from radixtier.policy.write_budget import Budgeted, WriteBudget

COSTS = Costs(Rates(), 64, 64 << 17)


def tree(parents: Sequence[int], pages: Sequence[int]) -> Nodes:
    nodes = Nodes()
    for number, (parent, n) in enumerate(zip(parents, pages, strict=True)):
        nodes.add(parent % number if number and parent else ROOT, n)
    return nodes


def path_to(nodes: Nodes, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = nodes.parent[node]
    return path[::-1]


TREES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), min_size=1, max_size=25).map(
    lambda rows: tree([parent for parent, _ in rows], [pages for _, pages in rows])
)
USES = st.lists(st.integers(0, 24), max_size=60)
SIZES = st.builds(Sizes, st.integers(1, 20), st.integers(0, 20), st.integers(0, 30))


def lru(nodes: Nodes, sizes: Sizes, admission: Admission | None = None, *, mirror: bool = False) -> Tiers:
    orders = [Lru(nodes.shape, size) for size in (sizes.hbm + sizes.dram, sizes.nvme + 1)]
    return Tiers(nodes, sizes, orders[0], orders[1], admission or AdmitAll(), mirror=mirror)


def requests(nodes: Nodes, uses: Sequence[int]) -> list[Request]:
    return [Request(float(at), 0, path_to(nodes, use % len(nodes))) for at, use in enumerate(uses)]


@given(TREES, USES, SIZES, st.sampled_from(EVICTIONS), st.sampled_from(ADMISSIONS), st.booleans(), st.booleans())
def test_every_tier_holds_a_prefix_closed_part_within_its_size(
    nodes: Nodes, uses: list[int], sizes: Sizes, eviction: str, admission: str, mirror: bool, budget: bool
) -> None:
    orders = [make_order(eviction, nodes.shape, size) for size in (sizes.hbm + sizes.dram, sizes.nvme + 1)]
    policy: Admission = make_admission(admission, sizes.nvme)
    if budget:
        policy = Budgeted(policy, WriteBudget(86_400 * 2))
    tiers = Tiers(nodes, sizes, orders[0], orders[1], policy, mirror=mirror)
    for request in requests(nodes, uses):
        blocks = sum(nodes.pages[node] for node in request.path)
        assert 0 <= sum(tiers.request(request.path, request.time)) <= blocks
        tiers.check()
        if isinstance(policy, Budgeted):
            assert policy.budget.in_flight == 0, "every byte admitted is written or refunded"
            assert tiers.counts.written <= policy.budget.burst + policy.budget.rate * request.time + 1e-6
    assert tiers.counts.hits <= tiers.counts.blocks


def brute_force(nodes: Nodes, served: list[Request], blocks: int) -> int:
    """Single blocks in a list, least recently used first."""
    cache: list[int] = []
    hits = 0
    for request in served:
        path = [nodes.first[node] + page for node in request.path for page in range(nodes.pages[node])]
        hits += next((place for place, block in enumerate(path) if block not in cache), len(path))
        cache = [block for block in cache if block not in path] + path[::-1]
        cache = cache[max(0, len(cache) - blocks) :]
    return hits


@given(TREES, USES, st.integers(1, 30), st.integers(0, 30), st.booleans())
def test_lru_is_what_single_blocks_give(nodes: Nodes, uses: list[int], hbm: int, dram: int, mirror: bool) -> None:
    """With LRU everywhere, exclusive tiers are one of the sum of their sizes; a mirror is the larger of the two."""
    served = requests(nodes, uses)
    tiers = lru(nodes, Sizes(hbm, dram), mirror=mirror)
    found = [sum(tiers.request(request.path, request.time)) for request in served]
    assert sum(found) == brute_force(nodes, served, max(hbm, dram) if mirror else hbm + dram)
    assert tiers.counts.hbm_hits == brute_force(nodes, served, hbm)


def chain(*pages: int) -> Nodes:
    return tree([1] * len(pages), pages)


def test_what_is_found_where() -> None:
    """Paths of 4 blocks through tiers of 4, 4 and 12: each other path pushes one a tier down."""
    nodes = tree([0] * 4, [4] * 4)
    tiers = lru(nodes, Sizes(4, 4, 12))
    counts = tiers.counts
    assert [tiers.request([node], 0.0) for node in (0, 1, 2)] == [(0, 0, 0)] * 3
    assert (counts.demoted, counts.dropped, counts.lost, counts.written) == (8, 4, 0, 12)
    assert tiers.request([2], 1.0) == (4, 0, 0) and counts.hbm_hits == 4
    assert tiers.request([1], 1.0) == (0, 4, 0) and counts.dram_hits == 4
    assert tiers.request([0], 1.0) == (0, 0, 4) and counts.nvme_hits == 4
    assert (counts.written, counts.written_full, counts.lost) == (12, 0, 0)
    assert tiers.request([3], 2.0) == (0, 0, 0)
    assert (counts.written, counts.written_full, counts.lost) == (16, 4, 4), "NVMe forgot 2, which DRAM had left"
    assert tiers.request([2], 3.0) == (0, 0, 0)


def test_a_page_comes_back_from_nvme_and_is_not_written_again() -> None:
    nodes = tree([0, 0], [4, 4])
    tiers = lru(nodes, Sizes(4, 0, 8))
    for node in (0, 1, 0, 1):
        tiers.request([node], 0.0)
    assert (tiers.counts.nvme_hits, tiers.counts.written, tiers.counts.lost) == (8, 8, 0)


def test_what_is_not_admitted_is_lost() -> None:
    nodes = tree([0, 0], [4, 4])
    tiers = lru(nodes, Sizes(4, 0, 8), make_admission("second-hit", 8))
    found = []
    for node in (0, 1, 0, 1, 0, 1):
        found.append(tiers.request([node], 0.0).nvme)
    assert found == [0, 0, 0, 0, 4, 4], "lost once, wanted again, written"
    assert tiers.counts.written == 8


def test_what_is_in_front_of_an_admitted_page_is_written_as_well() -> None:
    """A prompt that all share never leaves HBM, so it is no ghost; what hangs from it is."""
    nodes = chain(1, 4)
    nodes.add(0, 4)
    tiers = lru(nodes, Sizes(5, 0, 20), make_admission("second-hit", 20))
    for path in ([0, 1], [0, 2], [0, 1]):
        tiers.request(path, 0.0)
    assert tiers.counts.written == 5
    tiers.check()


def test_a_path_longer_than_a_tier_keeps_its_front() -> None:
    nodes = chain(10)
    tiers = lru(nodes, Sizes(4))
    assert [tiers.request([0], 0.0).hbm for _ in range(2)] == [0, 4]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (-1, 0, 0), (1, -1, 0), (1, 0, -5)])
def test_sizes_that_cannot_be(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="blocks"):
        Sizes(*sizes)


def test_sessions_are_predicted_to_the_orders() -> None:
    class Order(Lru):
        told: list[tuple[int, float | None]]

        def expect(self, node: int, when: float | None) -> None:
            self.told.append((node, when))

    class Returns:
        turns: list[tuple[str, int, float]]

        def __init__(self) -> None:
            self.turns = []

        def began(self, session: int, now: float) -> None:
            self.turns.append(("began", session, now))

        def ended(self, session: int, now: float) -> None:
            self.turns.append(("ended", session, now))

        def expected(self, session: int, now: float) -> float | None:
            return now + 5.0

    nodes = chain(2, 2)
    order = Order(nodes.shape, 8)
    order.told = []
    returns = Returns()
    tiers = Tiers(nodes, Sizes(8), order, Lru(nodes.shape, 1), AdmitAll())
    outcome = replay([Request(1.0, 7, [0]), Request(2.0, 7, [0, 1])], tiers, COSTS, returns=returns)
    assert order.told == [(0, 6.0), (1, 7.0)]
    assert returns.turns == [("began", 7, 1.0), ("ended", 7, 1.0), ("began", 7, 2.0), ("ended", 7, 2.0)]
    assert (tiers.counts.blocks, tiers.counts.hits, outcome.first, outcome.last) == (6, 2, 1.0, 2.0)


@given(TREES, USES, st.integers(1, 12), st.integers(0, 12))
def test_the_oracle_lets_go_of_what_is_needed_last(nodes: Nodes, uses: list[int], hbm: int, dram: int) -> None:
    served = requests(nodes, uses)
    oracle = NextUseOracle(future := Future(served), nodes)
    tiers = Tiers(nodes, Sizes(hbm, dram), oracle, Lru(nodes.shape, 1), AdmitAll())
    for request in future.served(served):
        tiers.request(request.path, request.time)
        tiers.check()
        offered = list(oracle.coldest())
        assert len(offered) == len(set(offered)) == len(oracle)
        order = [future.next_use(node, future.position) for node in offered]
        assert order == sorted(order, reverse=True)


def test_the_oracle_beats_lru_on_a_loop() -> None:
    nodes = tree([0] * 6, [1] * 6)
    served = requests(nodes, list(range(6)) * 20)
    future = Future(served)
    tiers = Tiers(nodes, Sizes(1, 4), NextUseOracle(future, nodes), Lru(nodes.shape, 1), AdmitAll())
    replay(future.served(served), tiers, COSTS)
    plain = lru(nodes, Sizes(1, 4))
    replay(served, plain, COSTS)
    assert plain.counts.hits == 0 and tiers.counts.hits > 60
