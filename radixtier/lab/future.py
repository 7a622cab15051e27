"""What only the lab knows: when each node will be used next; and the eviction order that goes by it.

:class:`NextUseOracle` is the ceiling for eviction orders that keep what they are given (no bypass), in the same tiers
and with the same admission as the others: nodes leave whose next use is farthest.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from radixtier.lab.traces.trace import Nodes, Request
from radixtier.policy.eviction.order import SCAN_LIMIT

NEVER = 1 << 62
"""Position of a use that does not come."""


class Future:
    """Uses of every node, by position in the trace."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._uses: dict[int, list[int]] = {}
        self.position = -1
        """Position of the request that is served; whoever replays sets it."""
        for position, request in enumerate(requests):
            for node in request.path:
                self._uses.setdefault(node, []).append(position)

    def next_use(self, node: int, position: int) -> int:
        """Return the position of the first use after ``position``, or :data:`NEVER`."""
        uses = self._uses[node]
        index = bisect_right(uses, position)
        return uses[index] if index < len(uses) else NEVER

    def served(self, requests: Sequence[Request]) -> Iterator[Request]:
        """Iterate over the requests, keeping :attr:`position`."""
        for self.position, request in enumerate(requests):
            yield request


class NextUseOracle:
    """Eviction order by true next use, farthest first, the deepest of equal ones before the others."""

    name = "oracle"

    def __init__(self, future: Future, nodes: Nodes) -> None:
        self._future = future
        self._nodes = nodes
        self._next: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []

    def use(self, path: Sequence[int], now: float, *, request: bool = True) -> None:
        """Note that the nodes are here."""
        for node in path:
            when = self._future.next_use(node, self._future.position)
            if self._next.get(node) != when:
                self._next[node] = when
                self._push(node)

    def pass_by(self, path: Sequence[int], now: float) -> None:
        """Note that the nodes are used and in another tier."""
        for node in path:
            self._next.pop(node, None)

    def _push(self, node: int) -> None:
        heapq.heappush(self._heap, (-self._next[node], -self._nodes.depth[node], node))

    def expect(self, node: int, when: float | None) -> None:
        """Knows better."""

    def sink(self, node: int) -> None:
        """Knows better."""

    def remove(self, node: int) -> None:
        """A node left."""
        self._next.pop(node, None)

    def forget(self, node: int) -> None:
        """A node left for good."""
        self.remove(node)

    def coldest(self) -> Iterator[int]:
        """Iterate, farthest next use first."""
        kept: dict[int, None] = {}
        try:
            for node in islice(self._fresh(), SCAN_LIMIT):
                if node not in kept:
                    kept[node] = None
                    yield node
        finally:
            for node in kept:
                if node in self._next:
                    self._push(node)

    def first(self) -> int | None:
        """Return the node whose next use is farthest, which stays, or None."""
        while self._heap:
            when, _, node = self._heap[0]
            if self._next.get(node) == -when:
                return node
            heapq.heappop(self._heap)
        return None

    def _fresh(self) -> Iterator[int]:
        while self._heap:
            when, _, node = heapq.heappop(self._heap)
            if self._next.get(node) == -when:
                yield node

    def clear(self) -> None:
        """Forget every node."""
        self._next.clear()
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._next)
