"""Leaf-first bookkeeping that every ranked policy stands on.

Owns which nodes are in the tier, which of them may be offered, and what each policy remembers of a node. A node is
*live* when it is in the tier or has a live child, so a hole in a path does not expose what lies above it. Only
nodes in the tier without a live child, the leaves, stand in a policy's queue: a use of a path of any length changes
the place of at most one node in it. Parents are learned from paths and remembered until a node is forgotten, also
while it is out of the tier.

A scan of the coldest nodes hides what it has offered, so that the parents come into reach, and shows again what the
caller did not remove when the scan ends or anything else happens. Cost: O(depth) per use, plus what the policy's
queue takes for one node. Scheduler thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from radixtier.policy.eviction.order import SCAN_LIMIT, ShapeOf


class Node:
    """What is remembered of a node until it is forgotten."""

    __slots__ = (
        "at",
        "cost",
        "freq",
        "gap",
        "hidden",
        "hits",
        "key",
        "live",
        "number",
        "owner",
        "pages",
        "parent",
        "present",
        "scan",
        "segment",
        "seq",
        "sunk",
        "when",
    )

    def __init__(self, number: int, pages: int) -> None:
        self.number = number
        self.pages = pages
        self.parent: Node | None = None
        self.live = 0
        """Live children."""
        self.present = False
        self.hidden = False
        self.scan = 0
        """The scan that offered it last."""
        self.sunk = False
        self.seq = 0
        """Place in the order of last uses."""
        self.at = 0.0
        """Time of the last use."""
        self.hits = 0
        """Requests that used it."""
        self.when: float | None = None
        """Predicted next use, and the end of the path it was predicted for."""
        self.owner: Node | None = None
        self.gap = 0.0
        """Mean time between its requests."""
        self.freq = 0
        self.cost = 1.0
        self.segment = 0
        self.key = 0.0

    @property
    def leaf(self) -> bool:
        """Whether it may be offered now."""
        return self.present and not self.hidden and not self.live


class LeafOrder(ABC):
    """An :class:`~radixtier.policy.eviction.order.EvictionOrder` less its ranking.

    Parameters
    ----------
    shape_of
        Looks up the shape of a node; asked when it enters the tier.
    capacity_pages
        Pages the tier holds, for policies that divide it.
    """

    name: ClassVar[str]
    _listens: ClassVar[bool] = True
    """Whether the policy keeps accounts of what enters, is used and leaves; else those hooks need not be called."""

    def __init__(self, shape_of: ShapeOf, capacity_pages: int) -> None:
        self.shape_of = shape_of
        self.capacity_pages = capacity_pages
        self._reset()

    def _reset(self) -> None:
        """Start empty; a policy with state of its own extends this."""
        self._nodes: dict[int, Node] = {}
        self._count = 0
        self._clock = 0
        self._scan = 0
        self._now = 0.0
        self._sunk: dict[Node, None] = {}
        self._hidden: list[Node] = []

    # ---- what a policy adds ---------------------------------------------------------------------------

    @abstractmethod
    def _push(self, node: Node) -> None:
        """Queue a node that became a leaf, or whose rank changed while it was one.

        The queue itself passes over what is no leaf any more.
        """

    @abstractmethod
    def _first(self) -> Node | None:
        """Return the coldest leaf in the queue."""

    def _entered(self, node: Node) -> None:  # noqa: B027 (not every policy keeps accounts)
        """Note that a node came into the tier, before its use is noted."""

    def _used(self, node: Node, request: bool, fresh: bool) -> None:  # noqa: B027
        """Note a use of a node; ``fresh`` when it was not in the tier before."""

    def _left(self, node: Node, evicted: bool) -> None:  # noqa: B027
        """Note that a node left the tier; ``evicted`` when it had just been offered."""

    # ---- EvictionOrder --------------------------------------------------------------------------------

    def use(self, path: Sequence[int], now: float, *, request: bool = True) -> None:
        """Note a use of ``path``, from the deepest node to the root."""
        if not path:
            return
        self._begin(now)
        known, listens = self._nodes, self._listens
        end = node = self._find(path[0])
        was_leaf = end.leaf
        for number in (*path[1:], None):
            if number is None:
                up = node.parent
            else:
                up = known.get(number)
                if up is None:
                    up = known[number] = Node(number, 0)
            if up is not node.parent:
                self._link(node, up)
            self._clock = node.seq = self._clock + 1
            node.at = now
            node.scan = 0
            if request:
                node.hits += 1
                node.when = node.owner = None
            if node.sunk:
                self._raise_up(node)
            if node.present:
                if listens:
                    self._used(node, request, False)
            else:
                self._enter(node)
                if listens:
                    self._used(node, request, True)
                if not node.live:
                    self._queue(node)
            if up is None:
                break
            node = up
        if was_leaf and end.leaf:
            self._push(end)

    def pass_by(self, path: Sequence[int], now: float) -> None:
        """Note a request's use of ``path``, from the deepest node to the root; none of it is in the tier afterwards."""
        self._begin(now)
        known, listens = self._nodes, self._listens
        passing: list[Node] = []
        below: Node | None = None
        for number in path:
            node = known.get(number)
            if node is None:
                node = known[number] = Node(number, 0)
            if below is not None and below.parent is not node:
                self._link(below, node)
            self._clock = node.seq = self._clock + 1
            node.at = now
            node.scan = 0
            node.hits += 1
            node.when = node.owner = None
            if node.present:
                if listens:
                    self._used(node, True, False)
            else:
                node.pages = self.shape_of(number).pages
                if listens:
                    self._entered(node)
                    self._used(node, True, True)
            passing.append(node)
            below = node
        for node in passing:
            if node.present:
                self.remove(node.number)
            elif listens:
                self._left(node, False)

    def _begin(self, now: float) -> None:
        if self._hidden:
            self._settle()
        if now > self._now:
            self._now = now

    def expect(self, node: int, when: float | None) -> None:  # noqa: B027
        """Predict the next use of the path that ends with ``node``; most policies do not look at it."""

    def sink(self, node: int) -> None:
        """Make a node the coldest from the time it has no child in the tier, until its next use."""
        self._settle()
        entry = self._nodes.get(node)
        if entry is None or not entry.present or entry.sunk:
            return
        entry.sunk = True
        if entry.leaf:
            self._sunk[entry] = None

    def remove(self, node: int) -> None:
        """Note that a node left the tier; what is known of it stays."""
        entry = self._nodes.get(node)
        if entry is None or not entry.present:
            return
        shown = not entry.hidden
        if entry.sunk and shown and not entry.live:
            self._sunk.pop(entry, None)
        entry.present = entry.hidden = entry.sunk = False
        self._count -= 1
        if shown and not entry.live:
            up = entry.parent
            if up is not None and up.live > 1:
                up.live -= 1
            else:
                self._dim(entry)
        if self._listens:
            self._left(entry, 0 < entry.scan == self._scan)

    def forget(self, node: int) -> None:
        """Drop all that is known of a node."""
        self.remove(node)
        entry = self._nodes.pop(node, None)
        if entry is not None:
            entry.owner = None
            if not entry.live:
                entry.parent = None

    def coldest(self) -> Iterator[int]:
        """Iterate over the coldest nodes, at most :data:`SCAN_LIMIT`, leaves before their parents."""
        self._settle()
        self._scan += 1
        mine = self._hidden = []
        try:
            for _ in range(SCAN_LIMIT):
                node = next(iter(self._sunk)) if self._sunk else self._first()
                if node is None:
                    return
                if node.sunk:
                    self._sunk.pop(node, None)
                node.hidden, node.scan = True, self._scan
                self._hidden.append(node)
                self._dim(node)
                yield node.number
        finally:
            if self._hidden is mine:
                self._settle()

    def first(self) -> int | None:
        """Return the coldest node, which stays, or None."""
        if self._hidden:
            self._settle()
        node = next(iter(self._sunk)) if self._sunk else self._first()
        if node is None:
            return None
        self._scan = node.scan = self._scan + 1
        return node.number

    def clear(self) -> None:
        """Forget every node."""
        self._reset()

    def __len__(self) -> int:
        """Return the number of nodes in the tier."""
        return self._count

    def __contains__(self, node: int) -> bool:
        """Return whether a node is in the tier."""
        entry = self._nodes.get(node)
        return entry is not None and entry.present

    def offered(self, node: int) -> bool:
        """Return whether the latest scan offered a node, and it was not used since."""
        entry = self._nodes.get(node)
        return entry is not None and 0 < entry.scan == self._scan

    def pages_of(self, node: int) -> int:
        """Return the pages a node had when it came into the tier last, 0 for one that is not known."""
        entry = self._nodes.get(node)
        return 0 if entry is None else entry.pages

    def parent_of(self, node: int) -> int | None:
        """Return the node in front of a node, None at the root or when it is not known."""
        entry = self._nodes.get(node)
        return entry.parent.number if entry is not None and entry.parent is not None else None

    def adopt(self, other: LeafOrder) -> None:
        """Take over another order's nodes, which is of no use afterwards: O(n log n) for n nodes in the tier."""
        other._settle()
        self._nodes, self._clock, self._scan = other._nodes, other._clock, other._scan
        self._now, self._count = other._now, other._count
        for node in sorted((n for n in self._nodes.values() if n.present), key=lambda n: n.seq):
            node.segment, node.freq, node.key = 0, 0, 0.0
            self._entered(node)
            if not node.live:
                self._queue(node)

    # ---- the tree -------------------------------------------------------------------------------------

    def _find(self, number: int) -> Node:
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = Node(number, 0)
        return node

    def _enter(self, node: Node) -> None:
        node.pages = self.shape_of(node.number).pages
        node.present = True
        self._count += 1
        if not node.live:
            self._light(node)
        if self._listens:
            self._entered(node)

    def _link(self, node: Node, parent: Node | None) -> None:
        lives = node.present or node.live > 0
        if lives and node.parent is not None:
            self._dim(node)
        node.parent = parent
        if lives:
            self._light(node)

    def _light(self, node: Node) -> None:
        """Count a node that became live with its parents."""
        up = node.parent
        while up is not None:
            up.live += 1
            if up.live > 1:
                return
            if up.present and not up.hidden:
                self._unqueue(up)
                return
            up = up.parent

    def _dim(self, node: Node) -> None:
        """Count out a node that is not live any more; what becomes a leaf by it is queued."""
        up = node.parent
        while up is not None:
            up.live -= 1
            if up.live:
                return
            if up.present and not up.hidden:
                self._queue(up)
                return
            up = up.parent

    def _settle(self) -> None:
        """End a scan: show again what it offered and nobody removed."""
        hidden, self._hidden = self._hidden, []
        for node in hidden:
            if node.hidden:
                node.hidden = False
                if not node.live:
                    self._light(node)
                    self._queue(node)

    # ---- the queue ------------------------------------------------------------------------------------

    def _queue(self, node: Node) -> None:
        if node.sunk:
            self._sunk[node] = None
        else:
            self._push(node)

    def _unqueue(self, node: Node) -> None:
        if node.sunk:
            self._sunk.pop(node, None)

    def _raise_up(self, node: Node) -> None:
        node.sunk = False
        if node.leaf:
            self._sunk.pop(node, None)
            self._push(node)
