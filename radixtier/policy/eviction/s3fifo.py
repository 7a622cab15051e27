"""S3-FIFO on a tree: a small queue sieves what is used once, a main queue keeps the rest.

The law: a node enters the small FIFO, or the main one if it left the small one lately (the ghost, as many pages as
the tier). Requests count up to :data:`FREQUENT`. While the small FIFO holds more than :data:`SMALL` of the tier's
pages its oldest leaf is looked at: requested since it came, it moves on to the main FIFO; else it is offered. The
oldest leaf of the main FIFO is offered when its count is 0, and otherwise goes round with one less. Leaves only: a
parent is looked at once its children are gone, with the count their requests gave it. Looking moves the queues on.
After Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

Where it loses: a session's next turn often comes after the small FIFO has turned over, and a node that is the end
of a path is requested once a turn only: 0.692 on the session trace at 5,000/10,000/40,000 blocks, where LRU has
0.860; and 0.331 on Mooncake's conversations there, where LRU has 0.351.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter

from radixtier.policy.eviction.heap import LeafHeap
from radixtier.policy.eviction.leaves import LeafOrder, Node

SMALL = 0.1
"""Share of the tier's pages from which on the small FIFO gives way."""

FREQUENT = 3
"""Requests counted."""


class S3Fifo(LeafOrder):
    """Order by place in two FIFO queues."""

    name = "s3fifo"

    def _reset(self) -> None:
        super()._reset()
        self._small = LeafHeap(attrgetter("key"))
        self._main = LeafHeap(attrgetter("key"))
        self._small_pages = 0
        self._ghost: OrderedDict[int, int] = OrderedDict()
        self._ghost_pages = 0

    def _push(self, node: Node) -> None:
        (self._main if node.segment else self._small).push(node)

    def _first(self) -> Node | None:
        while True:
            small = self._small.first()
            main = self._main.first()
            if small is not None and (main is None or self._small_pages > SMALL * self.capacity_pages):
                if not small.freq:
                    return small
                self._promote(small)
            elif main is not None:
                if not main.freq:
                    return main
                main.freq -= 1
                self._clock += 1
                main.key = self._clock
            else:
                return None

    def _promote(self, node: Node) -> None:
        self._small_pages -= node.pages
        self._clock += 1
        self._small.drop(node)
        node.segment, node.freq, node.key = 1, 0, self._clock
        self._push(node)

    def _entered(self, node: Node) -> None:
        node.freq = 0
        self._clock += 1
        node.key = self._clock
        pages = self._ghost.pop(node.number, None)
        node.segment = int(pages is not None)
        if pages is not None:
            self._ghost_pages -= pages
        else:
            self._small_pages += node.pages

    def _used(self, node: Node, request: bool, fresh: bool) -> None:
        if request and not fresh and node.freq < FREQUENT:
            node.freq += 1

    def _left(self, node: Node, evicted: bool) -> None:
        (self._main if node.segment else self._small).drop(node)
        if node.segment:
            return
        self._small_pages -= node.pages
        self._ghost[node.number] = node.pages
        self._ghost_pages += node.pages
        while self._ghost_pages > self.capacity_pages:
            self._ghost_pages -= self._ghost.popitem(last=False)[1]

    def forget(self, node: int) -> None:
        """Drop all that is known of a node."""
        super().forget(node)
        self._ghost_pages -= self._ghost.pop(node, 0)
