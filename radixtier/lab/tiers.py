"""Three tiers as the server runs them: what a request finds, what goes down, what is forgotten.

Owns which page is where. The laws:

- HBM: SGLang's own LRU, leaf-first. All of a request's path is there after it, as far as it fits.
- DRAM: what HBM evicts. A page in HBM needs no frame, so that the two are exclusive; with ``mirror`` every page in HBM
  takes a frame as well, as stock write-through keeps it, and DRAM shrinks by HBM. The eviction order is told of every
  use, ranks what is in DRAM alone, and takes a demotion for a touch.
- NVMe: inclusive. An admitted page is written once and stays until NVMe's own order gives it up. No page is
  written behind one that is not there. A page that is the coldest itself is not written at all.
- A page that no tier has is gone; the next request that needs it computes it again.

Invariants (:meth:`Tiers.check`): every tier, and all together, hold prefix-closed parts of the tree; capacities hold
after every request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from radixtier.lab.tier import Tier
from radixtier.lab.traces.trace import ROOT, Nodes
from radixtier.policy.admission import Admission, Candidate, Keys, Verdict
from radixtier.policy.eviction.order import EvictionOrder

RETRIES = 64
"""Throttled nodes that are offered again after a request."""


class Sizes:
    """Capacities in blocks.

    Raises
    ------
    ValueError
        On a negative size, or HBM of none.
    """

    def __init__(self, hbm: int, dram: int = 0, nvme: int = 0) -> None:
        if hbm < 1 or dram < 0 or nvme < 0:
            raise ValueError(f"sizes of {hbm}, {dram} and {nvme} blocks: HBM needs one at least, the others none")
        self._tell: Tell | None = None
        self.hbm, self.dram, self.nvme = hbm, dram, nvme


@dataclass
class Counts:
    """What happened, in blocks."""

    requests: int = 0
    blocks: int = 0
    hbm_hits: int = 0
    dram_hits: int = 0
    nvme_hits: int = 0
    demoted: int = 0
    """Left HBM for DRAM."""
    dropped: int = 0
    """Left DRAM and stayed on NVMe."""
    lost: int = 0
    """Left DRAM or NVMe and were nowhere then."""
    written: int = 0
    """Written to NVMe."""
    written_full: int = 0
    """Of those, the ones written since NVMe was full for the first time."""

    @property
    def hits(self) -> int:
        """Blocks that need not be computed."""
        return self.hbm_hits + self.dram_hits + self.nvme_hits


Tell = Callable[[EvictionOrder], None]


class Tiers:
    """The stack.

    Parameters
    ----------
    nodes
        The tree; it may grow from request to request.
    sizes
        Capacities.
    dram_order, nvme_order
        Eviction orders; each is told of every use of what it holds.
    admission
        Decides what is written to NVMe.
    block_bytes
        Bytes of a block, for the admission.
    """

    def __init__(
        self,
        nodes: Nodes,
        sizes: Sizes,
        dram_order: EvictionOrder,
        nvme_order: EvictionOrder,
        admission: Admission,
        *,
        block_bytes: int = 1,
        mirror: bool = False,
    ) -> None:
        self.nodes = nodes
        self.sizes = sizes
        self.counts = Counts()
        self._dram_only = max(0, sizes.dram - sizes.hbm) if mirror else sizes.dram
        self._dram_order = dram_order
        self._nvme_order = nvme_order
        self._admission = admission
        self._block_bytes = block_bytes
        self._hbm = Tier()
        self._fast = Tier()
        """HBM and DRAM together."""
        self._nvme = Tier()
        self._recent: OrderedDict[int, None] = OrderedDict()
        """Nodes in HBM, least recently used first."""
        self._uses: dict[int, int] = {}
        self._throttled: OrderedDict[int, None] = OrderedDict()
        self._gone: list[Keys] = []
        """Keys of what this request made disappear."""
        self._was_full = False

    def request(self, path: Sequence[int], now: float, tell: Tell | None = None) -> int:
        """Serve one request.

        Parameters
        ----------
        path
            Its nodes, from the root on.
        now
            Seconds.
        tell
            Tells an order what is predicted for the path, once it knows of the use and before it has to make room: on
            a server, room is made when HBM lets go of the path, which is after the turn.

        Returns
        -------
        int
            Blocks of the path that were in any tier.
        """
        self._tell = tell
        found = self._count(path, now)
        uses = self._uses
        for node in path:
            uses[node] = uses.get(node, 0) + 1
        self._fill(path, now)
        self._offer(path, now)
        self._retry(now)
        self._shrink_dram()
        if self._gone:
            self._admission.gone(np.concatenate(self._gone), now)
            self._gone.clear()
        return found

    # ---- what is found ------------------------------------------------------------------------------

    def _count(self, path: Sequence[int], now: float) -> int:
        counts, pages_of = self.counts, self.nodes.pages
        hbm, fast, nvme = self._hbm.have, self._fast.have, self._nvme.have
        counts.requests += 1
        found = served = 0
        missed: list[Keys] = []
        complete = True
        for node in path:
            pages = pages_of[node]
            counts.blocks += pages
            if not complete:
                missed.append(self.nodes.keys(node, 0, pages))
                continue
            in_hbm, in_fast = hbm.get(node, 0), fast.get(node, 0)
            there = max(in_fast, nvme.get(node, 0))
            counts.hbm_hits += in_hbm
            counts.dram_hits += in_fast - in_hbm
            found += there
            served += there - in_fast
            if there < pages:
                complete = False
                missed.append(self.nodes.keys(node, there, pages))
        counts.nvme_hits += served
        if missed:
            self._admission.wanted(np.concatenate(missed), now)
        if served:
            self._admission.served(served, now)
        return found

    # ---- HBM and DRAM -------------------------------------------------------------------------------

    def _fill(self, path: Sequence[int], now: float) -> None:
        pages_of, recent, order = self.nodes.pages, self._recent, self._dram_order
        if self._dram_only:
            order.use(path[::-1], now)
        for node in reversed(path):
            pages = pages_of[node]
            self._fast.set(node, pages)
            self._hbm.set(node, pages)
            recent[node] = None
            recent.move_to_end(node)
            order.remove(node)
        if self._tell is not None:
            self._tell(order)
        while self._hbm.used > self.sizes.hbm:
            node = next(iter(recent))
            have = self._hbm.have[node]
            gone = min(have, self._hbm.used - self.sizes.hbm)
            self._hbm.set(node, have - gone)
            if self._dram_only:
                self.counts.demoted += gone
            order.use((node,), now, request=False)
            if gone == have:
                del recent[node]

    def _shrink_dram(self) -> None:
        while (over := self._fast.used - self._hbm.used - self._dram_only) > 0:
            for node in self._dram_order.coldest():
                over -= self._leave_dram(node, over)
                if over <= 0:
                    break

    def _leave_dram(self, node: int, most: int) -> int:
        have, kept = self._fast.have.get(node, 0), self._hbm.have.get(node, 0)
        gone = min(have - kept, most)
        left = have - gone
        self._fast.set(node, left)
        if left == kept:
            self._dram_order.remove(node)
        on_nvme = min(have, max(left, self._nvme.have.get(node, 0)))
        self.counts.dropped += on_nvme - left
        self._lose(node, on_nvme, have)
        return gone

    def _lose(self, node: int, lo: int, hi: int) -> None:
        if lo < hi:
            self.counts.lost += hi - lo
            if lo == 0:
                self._uses.pop(node, None)
            self._gone.append(self.nodes.keys(node, lo, hi))

    # ---- NVMe ---------------------------------------------------------------------------------------

    def _offer(self, path: Sequence[int], now: float) -> None:
        """Offer what is not on NVMe, from the end to the root, and write it as far as nothing in front is missing."""
        if not self.sizes.nvme:
            return
        have, pages_of = self._nvme.have, self.nodes.pages
        missing = [node for node in path if have.get(node, 0) < pages_of[node]]
        admitted: set[int] = set()
        for node in reversed(missing):
            if self._admitted(node, have.get(node, 0), now, needed=bool(admitted)):
                admitted.add(node)
        before: dict[int, int] = {}
        stored: list[int] = []
        for node in path:
            there = have.get(node, 0)
            if there < pages_of[node] and node in admitted:
                before[node] = there
                self._nvme.set(node, pages_of[node])
            if node in have:
                stored.append(node)
            if have.get(node, 0) < pages_of[node]:
                break
        for node in admitted - before.keys():
            self._admission.refund((pages_of[node] - have.get(node, 0)) * self._block_bytes, now)
        if stored:
            self._nvme_order.use(stored[::-1], now)
            if self._tell is not None:
                self._tell(self._nvme_order)
        self._shrink_nvme(now)
        self._account(before, now)

    def _account(self, before: dict[int, int], now: float) -> None:
        """Count as written what is there now and was not: what was the coldest itself is gone again."""
        for node, there in before.items():
            left = self._nvme.have.get(node, 0)
            written = max(0, left - there)
            self.counts.written += written
            if self._was_full:
                self.counts.written_full += written
            if written:
                self._admission.wrote(written * self._block_bytes, now)
            if (unwritten := self.nodes.pages[node] - there - written) > 0:
                self._admission.refund(unwritten * self._block_bytes, now)

    def _admitted(self, node: int, there: int, now: float, *, needed: bool = False) -> bool:
        pages = self.nodes.pages[node]
        room = max(0.0, 1.0 - self._nvme.used / self.sizes.nvme)
        keys = self.nodes.keys(node, there, pages)
        nbytes = (pages - there) * self._block_bytes
        candidate = Candidate(keys, nbytes, self._uses[node], room, now, self.nodes.lead[node], needed)
        verdict = self._admission.admit(candidate)
        if verdict is Verdict.THROTTLED:
            self._throttled[node] = None
        else:
            self._throttled.pop(node, None)
        return verdict is Verdict.ADMIT

    def _retry(self, now: float) -> None:
        """Ask again for what was throttled and is still in a faster tier."""
        for node in list(self._throttled)[:RETRIES]:
            del self._throttled[node]
            parent = self.nodes.parent[node]
            pages = self.nodes.pages[node]
            behind = parent == ROOT or self._nvme.have.get(parent, 0) == self.nodes.pages[parent]
            if behind and self._fast.have.get(node, 0) == pages:
                there = self._nvme.have.get(node, 0)
                if there < pages and self._admitted(node, there, now):
                    self._nvme.set(node, pages)
                    self._nvme_order.use(list(self._up(node)), now, request=False)
                    self._shrink_nvme(now)
                    self._account({node: there}, now)

    def _up(self, node: int) -> Iterator[int]:
        while node != ROOT:
            yield node
            node = self.nodes.parent[node]

    def _shrink_nvme(self, now: float) -> None:
        while (over := self._nvme.used - self.sizes.nvme) > 0:
            self._was_full = True
            for node in self._nvme_order.coldest():
                have = self._nvme.have.get(node, 0)
                gone = min(have, over)
                self._nvme.set(node, have - gone)
                if gone == have:
                    self._nvme_order.remove(node)
                self._admission.evicted(self.nodes.keys(node, have - gone, have), now)
                self._lose(node, max(have - gone, self._fast.have.get(node, 0)), have)
                over -= gone
                if over <= 0:
                    break

    # ---- tests --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant from scratch; for tests."""
        assert self._hbm.used <= self.sizes.hbm and self._nvme.used <= self.sizes.nvme
        assert self._fast.used - self._hbm.used <= self._dram_only
        for tier in (self._hbm, self._fast, self._nvme):
            assert tier.used == sum(tier.have.values())
            for node, have in tier.have.items():
                parent = self.nodes.parent[node]
                assert 0 < have <= self.nodes.pages[node]
                assert parent == ROOT or tier.have[parent] == self.nodes.pages[parent], "not prefix-closed"
        assert all(have <= self._fast.have.get(node, 0) for node, have in self._hbm.have.items())
        assert set(self._recent) == set(self._hbm.have)
        alone = {node for node, have in self._fast.have.items() if have > self._hbm.have.get(node, 0)}
        assert len(self._dram_order) == len(alone)
