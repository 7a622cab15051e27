"""Heap of leaves with ranks that mostly rise.

The law: an entry is a lower bound. A leaf whose rank rises keeps its old entry and moves when that comes to the
top; one whose rank falls gets a second entry, and the first is void. So a use costs nothing here, and O(log n) is
paid once per use at most, by the scan that meets the leaf. Void entries are dropped when they outnumber the leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from radixtier.policy.eviction.leaves import Node

SLACK = 64
"""Entries from which clearing out is worth its time."""


class LeafHeap:
    """Leaves by rank, the lowest first; equal ranks by their last use.

    Parameters
    ----------
    rank
        Rank of a node at this moment.
    """

    def __init__(self, rank: Callable[[Node], float]) -> None:
        self._rank = rank
        self._heap: list[tuple[float, int, int, Node]] = []
        self._lowest: dict[Node, float] = {}
        """Leaf -> rank of its entry that is not void."""
        self._pushed = 0
        self._limit = SLACK

    def push(self, node: Node) -> None:
        """Add a leaf, or note that its rank may have fallen."""
        rank = self._rank(node)
        lowest = self._lowest.get(node)
        if lowest is None or rank < lowest:
            self._pushed += 1
            self._lowest[node] = rank
            heapq.heappush(self._heap, (rank, node.seq, self._pushed, node))
            if len(self._heap) > self._limit:
                self._clear_out()

    def drop(self, node: Node) -> None:
        """Void the entry of a node, whose place is another from now on."""
        self._lowest.pop(node, None)

    def first(self) -> Node | None:
        """Return the leaf of the lowest rank, which stays."""
        heap, lowest = self._heap, self._lowest
        while heap:
            entry, _, _, node = heap[0]
            if lowest.get(node) != entry:
                heapq.heappop(heap)
                continue
            if not node.leaf:
                heapq.heappop(heap)
                del lowest[node]
                continue
            rank = self._rank(node)
            if rank > entry:
                self._pushed += 1
                lowest[node] = rank
                heapq.heapreplace(heap, (rank, node.seq, self._pushed, node))
                continue
            return node
        return None

    def _clear_out(self) -> None:
        kept: dict[Node, tuple[float, int, int, Node]] = {}
        for entry in self._heap:
            node = entry[3]
            if node.leaf and self._lowest.get(node) == entry[0]:
                kept[node] = entry
        self._heap = list(kept.values())
        self._lowest = {node: entry[0] for node, entry in kept.items()}
        heapq.heapify(self._heap)
        self._limit = 2 * len(self._heap) + SLACK
