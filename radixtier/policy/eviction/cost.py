"""Cheapest to recompute first, per page held, with ageing.

The law (GreedyDual with frequency): a node's rank is ``L + requests * cost``, in units of the linear work of one
page. ``cost = 1 + depth / DOUBLE_PAGES``: prefill of a page is linear work, the same everywhere, plus attention, in
proportion to what stands in front of it. Per token of a model of width ``h`` with ``l`` layers the linear part is
about ``24 l h^2`` FLOPs and attention over ``d`` tokens ``4 l h d``, so both are equal at ``d = 6 h``: 24,576
tokens for a width of 4,096, which is 384 pages of 64 tokens. ``L``, the age, is the highest rank evicted so far; a
node gets the ``L`` of its last use, so what is not used falls behind what comes in. O(log n).

Where it loses: what was requested often stays long after its session is over: 0.774 on the session trace at
5,000/10,000/40,000 blocks, where LRU has 0.860. It counts FLOPs, so where the figure is hits it pays for deep pages
with more shallow ones.
"""

from __future__ import annotations

from operator import attrgetter

from radixtier.policy.eviction.heap import LeafHeap
from radixtier.policy.eviction.leaves import LeafOrder, Node

DOUBLE_PAGES = 384.0
"""Depth in pages at which attention has doubled the cost of a page."""


class Cost(LeafOrder):
    """Order by recompute cost saved per page."""

    name = "cost"

    def _reset(self) -> None:
        super()._reset()
        self._heap = LeafHeap(attrgetter("key"))
        self._age = 0.0

    def _push(self, node: Node) -> None:
        self._heap.push(node)

    def _first(self) -> Node | None:
        return self._heap.first()

    def _entered(self, node: Node) -> None:
        pages, depth = self.shape_of(node.number)
        node.cost = 1.0 + (depth + pages / 2) / DOUBLE_PAGES
        self._rank(node)

    def _used(self, node: Node, request: bool, fresh: bool) -> None:
        self._rank(node)

    def _rank(self, node: Node) -> None:
        node.key = self._age + max(1, node.hits) * node.cost

    def _left(self, node: Node, evicted: bool) -> None:
        if evicted:
            self._age = max(self._age, node.key)
