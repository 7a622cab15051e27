"""Whichever policy would have done best lately.

The law: every candidate runs as a shadow of :data:`SHADOW_PAGES` pages on the same sample of nodes (at most one
page in :data:`LEAST_EVERY`). What each finds more or less than the one that is followed is summed up, with a
half-life of :data:`HALF_LIFE` times the shadow's size in pages requested, and looked at :data:`LOOKS` times in that
time. The tier follows LRU at first, and changes to a candidate whose lead is more than :data:`MARGIN` of the pages
requested plus :data:`DOUBTS` standard deviations of the lead; then all leads start from 0, and every change asks
:data:`CAUTION` more of the next, so that equals do not alternate. On a change the new order is built from what is
in the tier, in order of use: O(n log n), once. Memory: five shadows, whatever the tier holds.

Where it loses: until the first lead is certain it is LRU, which costs up to 2 points of DRAM hits on a trace of 20
turnovers (Mooncake's synthetic one: 0.532, ``slru`` 0.551); over all three tiers it was at most 1.0 point below
the best single policy on any of the traces. Each node sampled costs five uses more. A shadow knows nodes by number:
what was forgotten and comes back under another number is new to it, so where nothing is remembered below the tier
it cannot see what another policy would have kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from radixtier.policy.eviction.cost import Cost
from radixtier.policy.eviction.leaves import LeafOrder
from radixtier.policy.eviction.lru import Lru
from radixtier.policy.eviction.next_use import NextUse
from radixtier.policy.eviction.order import Shape, ShapeOf
from radixtier.policy.eviction.s3fifo import S3Fifo
from radixtier.policy.eviction.shadow import Sample, Shadow
from radixtier.policy.eviction.slru import Slru

CANDIDATES: tuple[type[LeafOrder], ...] = (Lru, Slru, S3Fifo, Cost, NextUse)

SHADOW_PAGES = 1024
"""Pages of a shadow."""

LEAST_EVERY = 8
"""Pages of which one is sampled, at most."""

HALF_LIFE = 16
"""Times the shadow's size is requested until a hit weighs half."""

LOOKS = 32
"""Looks at the counts per half-life."""

MARGIN = 0.005
"""Share of the requested pages by which a better candidate must be ahead."""

DOUBTS = 1.0
"""Standard deviations of its lead, summed over requests, by which it must be ahead besides."""

CAUTION = 1.0
"""Standard deviations that each change adds to that."""

CALM = 256
"""Half-lives in which half of what changes added is gone."""


class Auto:
    """Order of the candidate that does best in its shadow."""

    name = "auto"

    def __init__(self, shape_of: ShapeOf, capacity_pages: int) -> None:
        self._shape_of = shape_of
        self._capacity = capacity_pages
        self._reset()

    def _reset(self) -> None:
        rate = min(1.0 / LEAST_EVERY, SHADOW_PAGES / max(1, self._capacity))
        pages = max(1, round(rate * self._capacity))
        self._sample = Sample(rate)
        self._below: dict[int, Shape] = {}
        """The nodes that are used right now, as the shadows see them."""
        self._shadows = [Shadow(kind(self._below.__getitem__, pages), pages) for kind in CANDIDATES]
        self._active = CANDIDATES[0](self._shape_of, self._capacity)
        self._wanted = 0.0
        self._since = 0
        self._half_life = HALF_LIFE * pages
        self._every = max(1, self._half_life // LOOKS)
        self._followed = 0
        self._doubts = DOUBTS
        self.switches = 0
        """Times the tier changed its order."""

    @property
    def following(self) -> str:
        """Name of the policy that is followed."""
        return self._active.name

    @property
    def scores(self) -> dict[str, float]:
        """Share of the pages requested lately that each candidate would have found."""
        return {shadow.order.name: shadow.hits / max(1.0, self._wanted) for shadow in self._shadows}

    def use(self, path: Sequence[int], now: float, *, request: bool = True) -> None:
        """Note a use of ``path``, from the deepest node to the root."""
        self._active.use(path, now, request=request)
        sampled = self._sampled_of(path)
        if sampled:
            found = [shadow.use(sampled, self._below, now, request) for shadow in self._shadows]
            if request:
                self._note(found)

    def pass_by(self, path: Sequence[int], now: float) -> None:
        """Note a request's use of ``path``, from the deepest node to the root; none of it is in the tier afterwards."""
        self._active.pass_by(path, now)
        sampled = self._sampled_of(path)
        if sampled:
            self._note([shadow.pass_by(sampled, now) for shadow in self._shadows])

    def _note(self, found: Sequence[int]) -> None:
        """Count what each shadow found of a request."""
        wanted = sum(shape.pages for shape in self._below.values())
        followed = found[self._followed]
        for shadow, pages in zip(self._shadows, found, strict=True):
            shadow.note(pages, followed)
        self._wanted += wanted
        self._since += wanted
        if self._since >= self._every:
            self._look()

    def expect(self, node: int, when: float | None) -> None:
        """Predict the next use of the path that ends with ``node``."""
        self._active.expect(node, when)
        end: int | None = node
        while end is not None and not self._sampled(end):
            end = self._active.parent_of(end)
        if end is not None:
            for shadow in self._shadows:
                shadow.order.expect(end, when)

    def sink(self, node: int) -> None:
        """Make a node the coldest, as far as leaf-first lets it."""
        self._active.sink(node)

    def remove(self, node: int) -> None:
        """Note that a node left the tier; the shadows lose it only if it had not been offered."""
        if not self._active.offered(node) and node in self._active and self._sampled(node):
            for shadow in self._shadows:
                shadow.remove(node)
        self._active.remove(node)

    def forget(self, node: int) -> None:
        """Drop a node; the shadows keep theirs until it is the coldest there."""
        self._active.forget(node)

    def coldest(self) -> Iterator[int]:
        """Iterate over the coldest nodes, leaves before their parents."""
        return self._active.coldest()

    def first(self) -> int | None:
        """Return the coldest node, which stays, or None."""
        return self._active.first()

    def clear(self) -> None:
        """Forget every node, and what was learned."""
        self._reset()

    def __len__(self) -> int:
        """Return the number of nodes in the tier."""
        return len(self._active)

    def __contains__(self, node: int) -> bool:
        """Return whether a node is in the tier."""
        return node in self._active

    def _sampled_of(self, path: Sequence[int]) -> list[int]:
        """Return the sampled nodes of a path that was just used, and look them up for the shadows."""
        takes, weight, pages_of = self._sample.takes, self._sample.weight, self._active.pages_of
        below = self._below
        below.clear()
        for node in path:
            pages = pages_of(node)
            if takes(node, pages):
                below[node] = Shape(weight(pages), self._shape_of(node).depth)
        return [*below]

    def _sampled(self, node: int) -> bool:
        return self._sample.takes(node, self._active.pages_of(node))

    def _look(self) -> None:
        best = max(range(len(self._shadows)), key=lambda i: self._shadows[i].lead)
        shadow = self._shadows[best]
        if shadow.lead > MARGIN * self._wanted + self._doubts * sqrt(shadow.doubt):
            self._follow(best)
        keep = 0.5 ** (self._since / self._half_life)
        self._doubts = DOUBTS + (self._doubts - DOUBTS) * keep ** (1 / CALM)
        self._wanted *= keep
        for shadow in self._shadows:
            shadow.fade(keep)
        self._since = 0

    def _follow(self, candidate: int) -> None:
        order = CANDIDATES[candidate](self._shape_of, self._capacity)
        order.adopt(self._active)
        self._active, self._followed = order, candidate
        self.switches += 1
        self._doubts += CAUTION
        for shadow in self._shadows:
            shadow.lead = shadow.doubt = 0.0
