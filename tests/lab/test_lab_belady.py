"""Belady's ceiling against every choice there is, and against the orders that do not know the future."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from radixtier.lab.belady import belady
from radixtier.lab.traces.trace import ROOT, Nodes, Request


def small_tree() -> Nodes:
    nodes = Nodes()
    for parent, pages in ((ROOT, 1), (0, 1), (0, 2), (ROOT, 1), (3, 1)):
        nodes.add(parent, pages)
    return nodes


PATHS = ((0,), (0, 1), (0, 2), (3,), (3, 4))


def best_of_all(nodes: Nodes, uses: tuple[int, ...], blocks: int) -> int:
    """Try every prefix-closed set of leading pages that fits, after each request."""
    by_first = {
        nodes.first[node] + page: (node, page) for node in range(len(nodes)) for page in range(nodes.pages[node])
    }

    def in_front(block: int) -> int | None:
        node, page = by_first[block]
        if page:
            return block - 1
        parent = nodes.parent[node]
        return None if parent == ROOT else nodes.first[parent] + nodes.pages[parent] - 1

    def closed(kept: frozenset[int]) -> bool:
        return all((front := in_front(block)) is None or front in kept for block in kept)

    def subsets(there: frozenset[int]) -> list[frozenset[int]]:
        found = [frozenset[int]()]
        for block in sorted(there):
            found += [kept | {block} for kept in found if len(kept) < blocks]
        return [kept for kept in found if closed(kept)]

    @cache
    def hits(at: int, kept: frozenset[int]) -> int:
        if at == len(uses):
            return 0
        path = [nodes.first[node] + page for node in PATHS[uses[at]] for page in range(nodes.pages[node])]
        now = next((place for place, block in enumerate(path) if block not in kept), len(path))
        return now + max(hits(at + 1, after) for after in subsets(kept | frozenset(path)))

    return hits(0, frozenset())


@given(st.lists(st.integers(0, 4), max_size=7).map(tuple), st.integers(1, 4))
def test_no_choice_of_leaves_has_more_hits(uses: tuple[int, ...], blocks: int) -> None:
    nodes = small_tree()
    served = [Request(float(at), 0, PATHS[use]) for at, use in enumerate(uses)]
    hits, references = belady(served, nodes, blocks)
    assert hits == best_of_all(nodes, uses, blocks)
    assert references == sum(nodes.pages[node] for use in uses for node in PATHS[use])
