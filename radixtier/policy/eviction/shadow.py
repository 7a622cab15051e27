"""A small cache that runs one policy on a sample of the nodes, to see how it would do.

Owns the sample's law and one candidate's account. A node is sampled by a hash of its number, and a path becomes the
path of its sampled nodes: parents stay parents, so leaf-first means the same, and a cache of ``rate * capacity``
pages behaves as the whole one does (SHARDS, Waldspurger et al., FAST 2015, on a tree). Nodes are evicted page by
page, as in the tiers. Bounded: what has left the shadow is forgotten after :data:`GHOSTS` more. Scheduler thread
only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from radixtier.policy.eviction.leaves import LeafOrder
from radixtier.policy.eviction.order import Shape

GHOSTS = 2048
"""Nodes remembered after they left a shadow."""

SPREAD, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Sample:
    """Which nodes are sampled, and what they weigh there.

    The law: a node of ``n`` pages is sampled with probability ``min(1, rate * n)`` and then weighs ``max(1, rate * n)``
    pages, ``rate * n`` on average. Long runs, in which most pages are, are all there, so that chance decides little.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._below = int(rate * (MASK + 1))
        self._weights: dict[int, int] = {}

    def takes(self, node: int, pages: int) -> bool:
        """Return whether a node of so many pages is sampled."""
        below = self._below * pages
        if below > MASK:
            return True
        mixed = (node + 1) * SPREAD & MASK
        mixed = (mixed ^ mixed >> 29) * SPREAD & MASK
        return mixed < below

    def weight(self, pages: int) -> int:
        """Return what a sampled node of so many pages weighs."""
        weight = self._weights.get(pages)
        if weight is None:
            weight = self._weights[pages] = max(1, round(self.rate * pages))
        return weight


class Shadow:
    """One candidate on the sample.

    Parameters
    ----------
    order
        The candidate, made for ``pages`` pages.
    pages
        Pages it may hold.
    """

    def __init__(self, order: LeafOrder, pages: int) -> None:
        self.order = order
        self.hits = 0.0
        """Pages found, older ones weighing less: :meth:`fade`."""
        self.lead = 0.0
        """Pages found more than by who is followed, and the sum of the squares of that."""
        self.doubt = 0.0
        self._pages = pages
        self._have: dict[int, int] = {}
        self._used = 0
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def use(self, path: Sequence[int], shapes: Mapping[int, Shape], now: float, request: bool) -> int:
        """Serve the sampled nodes of a path, of such shapes; returns the pages found.

        Room is made before the next: what is known of this one by then counts.
        """
        if self._used > self._pages:
            self._trim()
        have, ghosts = self._have, self._ghosts
        found = used = 0
        for node in path:
            pages = shapes[node].pages
            there = have.get(node)
            if there is None:
                there = 0
                ghosts.pop(node, None)
            found += there
            used += pages
            have[node] = pages
        self._used += used - found
        self.order.use(path, now, request=request)
        return found

    def pass_by(self, path: Sequence[int], now: float) -> int:
        """As :meth:`use` of a request, but the nodes are moved away at once."""
        if self._used > self._pages:
            self._trim()
        have, ghosts = self._have, self._ghosts
        found = 0
        for node in path:
            found += have.pop(node, 0)
            ghosts[node] = None
            ghosts.move_to_end(node)
        self._used -= found
        self.order.pass_by(path, now)
        return found

    def note(self, found: int, followed: int) -> None:
        """Count a request's pages, beside those of the candidate that is followed."""
        self.hits += found
        self.lead += found - followed
        self.doubt += (found - followed) ** 2

    def remove(self, node: int) -> None:
        """Take a node out: it was moved, not evicted."""
        if node in self._have:
            self._gone(node)

    def fade(self, keep: float) -> None:
        """Let what was counted weigh less."""
        self.hits *= keep
        self.lead *= keep
        self.doubt *= keep

    def __len__(self) -> int:
        """Return the number of nodes remembered."""
        return len(self._have) + len(self._ghosts)

    def _trim(self) -> None:
        over, have, order = self._used - self._pages, self._have, self.order
        while over > 0 and (node := order.first()) is not None:
            pages = have[node]
            if pages > over:
                have[node] = pages - over
                self._used -= over
                break
            over -= pages
            self._gone(node)
        while len(self._ghosts) > GHOSTS:
            self.order.forget(self._ghosts.popitem(last=False)[0])

    def _gone(self, node: int) -> None:
        self._used -= self._have.pop(node)
        self._ghosts[node] = None
        self.order.remove(node)
