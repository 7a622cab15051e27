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

Entry = tuple[float, int, int, Node]
"""Rank, place in the order of last uses, and a number that no other entry has, for comparing."""


class LeafHeap:
    """Leaves by rank, the lowest first; equal ranks by their last use.

    Parameters
    ----------
    rank
        Rank of a node at this moment.
    """

    def __init__(self, rank: Callable[[Node], float]) -> None:
        self._rank = rank
        self._heap: list[Entry] = []
        self._valid: dict[Node, Entry] = {}
        self._pushed = 0
        self._limit = SLACK

    def push(self, node: Node) -> None:
        """Add a leaf, or note that its rank may have fallen."""
        rank, valid = self._rank(node), self._valid.get(node)
        if valid is None or rank < valid[0] or (rank == valid[0] and node.seq < valid[1]):
            self._pushed += 1
            self._valid[node] = entry = (rank, node.seq, self._pushed, node)
            heapq.heappush(self._heap, entry)
            if len(self._heap) > self._limit:
                self._clear_out()

    def drop(self, node: Node) -> None:
        """Void the entry of a node, whose place is another from now on."""
        self._valid.pop(node, None)

    def first(self) -> Node | None:
        """Return the leaf of the lowest rank, which stays."""
        heap, valid = self._heap, self._valid
        while heap:
            top = heap[0]
            node = top[3]
            if valid.get(node) is not top:
                heapq.heappop(heap)
            elif node.live or node.hidden or not node.present:
                heapq.heappop(heap)
                del valid[node]
            else:
                rank = self._rank(node)
                if rank == top[0] and node.seq == top[1]:
                    return node
                self._pushed += 1
                valid[node] = entry = (rank, node.seq, self._pushed, node)
                heapq.heapreplace(heap, entry)
        return None

    def _clear_out(self) -> None:
        self._valid = {node: entry for node, entry in self._valid.items() if node.leaf}
        self._heap = list(self._valid.values())
        heapq.heapify(self._heap)
        self._limit = 2 * len(self._heap) + SLACK
