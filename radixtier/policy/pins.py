"""Soft pins: which nodes of the tree are to stay in a tier for a while, and when they have to give way all the same.

Law, per tier: a pin is granted for a time to live. Its strength is what is left of that, ``until - now`` seconds, and
falls to 0 at the end, when the pin is gone. All pins together hold at most :data:`SHARE` of the tier's pages; a grant
beyond that is cut, and does not push out pins that are there. Under pressure the weakest pin gives way, the one granted
last among equals: who pins a path from the root on loses its end first. The rest of the tier is never pinned and every
pin can be made to give way, so pins cannot wedge a pool.

Where it loses: it is first come, first served, and a client that asks for the longest time outlasts the others. Pages
that a cut grant left out are as cold as any.

Owns the pages granted per node and tier; invariant: their sum is `held`, at most `cap`. Nodes are numbers, times are
seconds on any one clock. Costs O(log pins) per call. Scheduler thread only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SHARE = 0.25
"""Of the pages of a tier, for pins. Three quarters stay with the eviction order, whatever clients ask for."""

_SLACK = 64
"""Outdated entries that the heap may hold beyond one per pin."""


class Tier(Enum):
    """A tier that a node can be pinned in."""

    DRAM = "dram"
    NVME = "nvme"


@dataclass(slots=True)
class _Pin:
    pages: int
    until: float
    turn: int
    """Number of the grant."""


class TierPins:
    """The pins of one tier with ``pages`` pages.

    Attributes
    ----------
    cap : int
        Pages that may be pinned.
    yielded : int
        Pins that gave way before their time.
    """

    def __init__(self, pages: int, share: float = SHARE) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"pins may take a share of a tier from 0 to below 1, not {share}")
        self._share = share
        self.cap = int(pages * share)
        self.yielded = 0
        self._held = 0
        self._pins: dict[int, _Pin] = {}
        self._heap: list[tuple[float, int, int]] = []  # (until, -turn, node); outdated where the pin says otherwise
        self._turn = 0

    def __len__(self) -> int:
        return len(self._pins)

    def grant(self, node: int, pages: int, now: float, ttl: float) -> int:
        """Pin up to ``pages`` pages of a node for ``ttl`` seconds; return how many are pinned, at most ``pages``.

        A node that is pinned already keeps what it has, and the later of both ends.
        """
        self.expire(now)
        if pages <= 0 or not 0 < ttl < math.inf:
            return 0
        pin = self._pins.get(node)
        had = pin.pages if pin else 0
        granted = max(had, min(pages, had + self.cap - self._held))
        if granted == 0:
            return 0
        until = max(pin.until, now + ttl) if pin else now + ttl
        self._turn += 1
        self._pins[node] = _Pin(granted, until, self._turn)
        self._held += granted - had
        heapq.heappush(self._heap, (until, -self._turn, node))
        if len(self._heap) > 2 * len(self._pins) + _SLACK:
            self._heap = [(pin.until, -pin.turn, node) for node, pin in self._pins.items()]
            heapq.heapify(self._heap)
        return min(granted, pages)

    def strength(self, node: int, now: float) -> float:
        """Seconds that a pin has left, 0.0 without one."""
        pin = self._pins.get(node)
        return max(0.0, pin.until - now) if pin else 0.0

    def pages(self, node: int, now: float) -> int:
        """Pages of a node that are pinned."""
        pin = self._pins.get(node)
        return pin.pages if pin is not None and pin.until > now else 0

    def held(self, now: float) -> int:
        """Pages that are pinned."""
        self.expire(now)
        return self._held

    def expire(self, now: float) -> None:
        """Drop the pins whose time is over."""
        while self._heap and self._heap[0][0] <= now:
            self._pop()

    def yield_weakest(self, now: float) -> int | None:
        """Drop the weakest pin; return its node, None when nothing is pinned."""
        self.expire(now)
        while self._heap:
            node = self._pop()
            if node is not None:
                self.yielded += 1
                return node
        return None

    def release(self, node: int) -> int:
        """Unpin a node; return how many of its pages were pinned."""
        pin = self._pins.pop(node, None)
        if pin is None:
            return 0
        self._held -= pin.pages
        return pin.pages

    def shrink(self, node: int, pages: int) -> None:
        """Learn that a node has only ``pages`` pages now."""
        pin = self._pins.get(node)
        if pin is None or pages >= pin.pages:
            return
        if pages <= 0:
            self.release(node)
        else:
            self._held -= pin.pages - pages
            pin.pages = pages

    def resize(self, pages: int, now: float) -> list[int]:
        """Learn that the tier has ``pages`` pages; return the nodes whose pins gave way to the new cap."""
        self.cap = int(pages * self._share)
        gone = []
        while self.held(now) > self.cap:
            node = self.yield_weakest(now)
            assert node is not None
            gone.append(node)
        return gone

    def clear(self) -> None:
        """Unpin everything."""
        self._pins.clear()
        self._heap.clear()
        self._held = 0

    def check(self) -> None:
        """Verify the accounts from scratch."""
        assert self._held == sum(pin.pages for pin in self._pins.values())
        assert 0 <= self._held <= self.cap
        assert all(pin.pages > 0 for pin in self._pins.values())
        assert {(pin.until, -pin.turn, node) for node, pin in self._pins.items()} <= set(self._heap)
        assert len(self._heap) <= 2 * self._turn and len(self._pins) <= self.cap

    def _pop(self) -> int | None:
        until, turn, node = heapq.heappop(self._heap)
        pin = self._pins.get(node)
        if pin is None or (pin.until, -pin.turn) != (until, turn):
            return None
        self.release(node)
        return node


class PinLedger:
    """Pins in all tiers.

    Parameters
    ----------
    pages : mapping of Tier to int
        Pages of each tier; a tier that is left out holds no pins.
    share : float
        Of each tier, for pins; from 0 to below 1.
    """

    def __init__(self, pages: Mapping[Tier, int], share: float = SHARE) -> None:
        self._tiers = {tier: TierPins(pages.get(tier, 0), share) for tier in Tier}

    def grant(self, node: int, pages: int, tier: Tier, now: float, ttl: float) -> int:
        """Pin up to ``pages`` pages of a node in a tier for ``ttl`` seconds.

        Grant a path from the root on: when it is cut, what is left is a prefix.

        Returns
        -------
        int
            Pages that are pinned, 0 to ``pages``. A node that was pinned keeps what it had and the later end.
        """
        return self._tiers[tier].grant(node, pages, now, ttl)

    def pinned(self, node: int, now: float, tier: Tier | None = None) -> bool:
        """Whether a node is pinned in ``tier``, or in any without one."""
        return self.strength(node, now, tier) > 0

    def strength(self, node: int, now: float, tier: Tier | None = None) -> float:
        """Seconds that the pin of a node has left in ``tier``, or the longest without one; 0.0 if it is not pinned."""
        return max(self._tiers[each].strength(node, now) for each in (Tier if tier is None else (tier,)))

    def pages(self, node: int, now: float, tier: Tier) -> int:
        """Pages of a node that are pinned in a tier."""
        return self._tiers[tier].pages(node, now)

    def yield_weakest(self, now: float, tier: Tier = Tier.DRAM) -> int | None:
        """Make the weakest pin of a tier give way, for when nothing else is left to evict.

        Returns
        -------
        int or None
            Its node; None when nothing is pinned. As many calls as there are pins empty the tier.
        """
        return self._tiers[tier].yield_weakest(now)

    def release(self, node: int, tier: Tier | None = None) -> int:
        """Unpin a node in ``tier``, or everywhere without one; return how many pages were pinned."""
        return sum(self._tiers[each].release(node) for each in (Tier if tier is None else (tier,)))

    def forget(self, node: int) -> None:
        """Learn that a node ceased to exist."""
        self.release(node)

    def shrink(self, node: int, pages: int) -> None:
        """Learn that a node has only ``pages`` pages now; pins never grow with their node."""
        for pins in self._tiers.values():
            pins.shrink(node, pages)

    def resize(self, tier: Tier, pages: int, now: float) -> list[int]:
        """Learn how many pages a tier has; return the nodes whose pins gave way, the weakest first."""
        return self._tiers[tier].resize(pages, now)

    def held(self, tier: Tier, now: float) -> int:
        """Pages that are pinned in a tier."""
        return self._tiers[tier].held(now)

    def cap(self, tier: Tier) -> int:
        """Pages that may be pinned in a tier."""
        return self._tiers[tier].cap

    def figures(self, now: float) -> dict[str, dict[str, int]]:
        """Pins, pages held, cap and pins that gave way early, by tier: plain data."""
        return {
            tier.value: {"held": pins.held(now), "cap": pins.cap, "pins": len(pins), "yielded": pins.yielded}
            for tier, pins in self._tiers.items()
        }

    def clear(self) -> None:
        """Unpin everything."""
        for pins in self._tiers.values():
            pins.clear()

    def check(self) -> None:
        """Verify the accounts of all tiers from scratch."""
        for pins in self._tiers.values():
            pins.check()
