"""SGLang's prefix tree as far as HBM and host handles are concerned, over pages that are numbers.

Owns the nodes, the locks and the order in which they leave. The laws are those of SGLang 0.5.23: a match and an insert
touch every node on their way; a node that a path leaves in the middle is split; a device leaf (in HBM, no child in
HBM, not locked) leaves HBM least recently used first, whole, and stays when it has handles; a host leaf (not in HBM,
no children, not locked) is forgotten likewise. Pages are numbered so that equal numbers mean equal prefixes, hence two
nodes agree up to the first page that differs, and agree entirely if their last pages do. One thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from radixtier.tree.residency import Pages

SLACK = 1024
"""Stale entries of a heap that are let be."""


class Node:
    """A stretch of a path."""

    __slots__ = ("children", "hbm", "host_lock", "key", "lock", "number", "pages", "parent", "pending", "used")

    def __init__(self, number: int, key: Pages, parent: Node | None) -> None:
        self.number = number
        self.key = key
        """Page numbers, root-side first."""
        self.parent = parent
        self.children: dict[int, Node] = {}
        """By their first page."""
        self.hbm = False
        self.pages: Pages | None = None
        """Handles, None without a backup."""
        self.pending = 0
        """Number of the backup that is on its way, 0 for none."""
        self.lock = 0
        self.host_lock = 0
        self.used = 0

    def __len__(self) -> int:
        return len(self.key)

    def up(self) -> Iterator[Node]:
        """Iterate from here towards the root, without it."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class RadixTree:
    """The tree.

    Parameters
    ----------
    capacity
        Pages of HBM.
    left_hbm
        Called with every node that left HBM.
    """

    def __init__(self, capacity: int, left_hbm: Callable[[Node], None]) -> None:
        self.capacity = capacity
        self.used_pages = 0
        """Pages in HBM that belong to nodes."""
        self.locked_pages = 0
        """Those of them that cannot be evicted now."""
        self.root = Node(0, np.empty(0, np.int64), None)
        self.nodes: dict[int, Node] = {}
        self.on_split: Callable[[Node, Node], None] = lambda parent, child: None
        """Called with the new node in front and the one that was split."""
        self._left_hbm = left_hbm
        self._ticks = 0
        self._numbers = 0
        self._device: list[tuple[int, int]] = []
        """Leaves in HBM by last use; stale ones included."""
        self._host: list[tuple[int, int]] = []

    # ---- recency ------------------------------------------------------------------------------------

    def _touch(self, node: Node) -> None:
        self._ticks += 1
        node.used = self._ticks
        self._consider(node)

    def _consider(self, node: Node) -> None:
        """Enter a node where it may be evicted from."""
        if node.parent is None:
            return
        if self._device_leaf(node):
            self._enter(self._device, node)
        elif self._host_leaf(node):
            self._enter(self._host, node)

    def _enter(self, heap: list[tuple[int, int]], node: Node) -> None:
        if len(heap) > 4 * len(self.nodes) + SLACK:
            fresh = {entry for entry in heap if entry[1] in self.nodes and self.nodes[entry[1]].used == entry[0]}
            heap[:] = sorted(fresh)
        heapq.heappush(heap, (node.used, node.number))

    def _device_leaf(self, node: Node) -> bool:
        return node.hbm and not node.lock and not any(child.hbm for child in node.children.values())

    def _host_leaf(self, node: Node) -> bool:
        return not (node.hbm or node.children or node.lock or node.host_lock or node.pages is None)

    # ---- match and insert ---------------------------------------------------------------------------

    def match(self, path: Pages) -> tuple[Node, int, int]:
        """Walk a path as far as the tree goes; returns the last node, its tokens in HBM and in all, in pages."""
        node, at, in_hbm = self.root, 0, 0
        while at < len(path) and (child := node.children.get(int(path[at]))) is not None:
            if not child.hbm and child.pages is None:
                break
            common = _common(child.key, path[at:])
            node = child if common == len(child) else self._split(child, common)
            at += common
            if node.hbm:
                in_hbm = at
            if node is not child:
                break
        # The deepest is the most recent.
        for each in reversed(list(node.up())):
            self._touch(each)
        return node, in_hbm, at

    def insert(self, path: Pages) -> tuple[Node, list[Node]]:
        """Put a path that was computed into HBM; returns its last node, and all its nodes from the root on."""
        node, at = self.root, 0
        walked: list[Node] = []
        while at < len(path) and (child := node.children.get(int(path[at]))) is not None:
            self._touch(child)
            common = _common(child.key, path[at:])
            node = child if common == len(child) else self._split(child, common)
            at += common
            if not node.hbm:
                self.set_hbm(node)
            walked.append(node)
        if at < len(path):
            node = self._new(path[at:], node)
            self.set_hbm(node)
            walked.append(node)
        return node, walked

    def _new(self, key: Pages, parent: Node) -> Node:
        self._numbers += 1
        node = self.nodes[self._numbers] = Node(self._numbers, key, parent)
        parent.children[int(key[0])] = node
        self._touch(node)
        return node

    def _split(self, child: Node, at: int) -> Node:
        """Cut a node; returns the new one, which has its first ``at`` pages."""
        assert child.parent is not None
        front = self._new(child.key[:at], child.parent)
        front.hbm, front.pending = child.hbm, child.pending
        front.lock, front.host_lock = child.lock, child.host_lock
        child.parent, child.key = front, child.key[at:]
        front.children[int(child.key[0])] = child
        if child.pages is not None:
            front.pages, child.pages = child.pages[:at], child.pages[at:]
        self._touch(child)
        self.on_split(front, child)
        return front

    def set_hbm(self, node: Node) -> None:
        """Note that HBM has a node now."""
        node.hbm = True
        self.used_pages += len(node)
        self.locked_pages += len(node) if node.lock else 0
        self._consider(node)

    # ---- locks --------------------------------------------------------------------------------------

    def lock(self, end: Node) -> None:
        """Keep a path from leaving."""
        for node in end.up():
            if not node.lock and node.hbm:
                self.locked_pages += len(node)
            node.lock += 1

    def unlock(self, end: Node) -> None:
        """Undo :meth:`lock`."""
        for node in end.up():
            node.lock -= 1
            if not node.lock:
                self.locked_pages -= len(node) if node.hbm else 0
                self._consider(node)

    # ---- eviction -----------------------------------------------------------------------------------

    @property
    def evictable_pages(self) -> int:
        """Pages in HBM that could leave it now."""
        return self.used_pages - self.locked_pages

    def evict_device(self, pages: int) -> int:
        """Let leaves leave HBM until ``pages`` pages are free, or nothing may leave; returns how many are."""
        freed = 0
        while freed < pages and self._device:
            used, number = heapq.heappop(self._device)
            node = self.nodes.get(number)
            if node is None or node.used != used or not self._device_leaf(node):
                continue
            node.hbm = False
            self.used_pages -= len(node)
            freed += len(node)
            self._left_hbm(node)
            parent = node.parent
            if node.pages is None:
                self._remove(node)
            else:
                self._consider(node)
            if parent is not None:
                self._consider(parent)
        return freed

    def evict_host(self, pages: int, free: Callable[[Pages], None]) -> int:
        """Forget host leaves until ``pages`` handles were freed, or nothing may go; returns how many were."""
        freed = 0
        while freed < pages and self._host:
            used, number = heapq.heappop(self._host)
            node = self.nodes.get(number)
            if node is None or node.used != used or not self._host_leaf(node):
                continue
            assert node.pages is not None
            freed += len(node)
            free(node.pages)
            parent = node.parent
            self._remove(node)
            if parent is not None:
                self._consider(parent)
        return freed

    def spare(self, numbers: list[int], on: bool) -> None:
        """Keep host leaves from being forgotten, or no longer."""
        for number in numbers:
            node = self.nodes.get(number)
            if node is not None:
                node.host_lock += 1 if on else -1
                if not on:
                    self._consider(node)

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[int(node.key[0])]
        del self.nodes[node.number]
        assert not node.children

    def check(self) -> None:
        """Verify every invariant from scratch; for tests."""
        for node in self.nodes.values():
            assert node.parent is not None and node.parent.children[int(node.key[0])] is node
            assert node.hbm or node.pages is not None, "a node that no tier has"
            assert node.pages is None or node.parent is self.root or node.parent.pages is not None, "an orphan"
            assert not node.hbm or node.parent is self.root or node.parent.hbm, "HBM is not prefix-closed"
            assert node.parent is self.root or node.parent.lock >= node.lock
        assert self.used_pages == sum(len(node) for node in self.nodes.values() if node.hbm) <= self.capacity
        assert self.locked_pages == sum(len(node) for node in self.nodes.values() if node.hbm and node.lock)


def _common(key: Pages, path: Pages) -> int:
    """Pages that a node and a path have in common."""
    n = min(len(key), len(path))
    if key[n - 1] == path[n - 1]:
        return n
    return int((key[:n] != path[:n]).argmax())
