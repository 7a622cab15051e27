"""Three tiers as the server runs them: what a request finds, what goes down, what is forgotten.

Owns which page is where. The laws:

- HBM: SGLang's own LRU, leaf-first. All of a request's path is there after it, as far as it fits.
- DRAM: what HBM evicts. A page in HBM needs no frame, so that the two are exclusive; with ``mirror`` every page in HBM
  takes a frame as well, as stock write-through keeps it, and DRAM shrinks by HBM. The eviction order is told of every
  use, ranks what is in DRAM alone, and takes a demotion for a touch.
- NVMe: inclusive. An admitted page is written once and stays until NVMe's own order gives it up. No page is
  written behind one that is not there. A page that is the coldest itself is not written at all.
- A page that no tier has is gone; the next request that needs it computes it again. The orders remember the last
  :data:`REMEMBERED` nodes that are gone: more than on a server, where they are forgotten with their handles.

Invariants (:meth:`Tiers.check`): every tier, and all together, hold prefix-closed parts of the tree; capacities hold
after every request.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from radixtier.lab.gathered import Gathered
from radixtier.lab.tier import Tier
from radixtier.lab.traces.trace import ROOT, Nodes
from radixtier.policy.admission import Admission, Candidate, Verdict
from radixtier.policy.eviction.order import EvictionOrder

RETRIES = 64
"""Throttled nodes that are offered again after a request."""

REMEMBERED = 1 << 18
"""Nodes that the eviction orders remember when no tier has them: about 180 MB."""


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
        self.hbm, self.dram, self.nvme = hbm, dram, nvme


@dataclass
class Counts:
    """What happened, in blocks."""

    requests: int = 0
    blocks: int = 0
    hbm_hits: int = 0
    dram_hits: int = 0
    nvme_hits: int = 0
    computed: int = 0
    """In no tier: prefilled, or written by an answer."""
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


class Found(NamedTuple):
    """Blocks of one request, from the root on: first those in HBM, then in DRAM, then on NVMe."""

    hbm: int
    dram: int
    nvme: int


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
        self._recent: OrderedDict[int, None] = OrderedDict()
        """Nodes in HBM, least recently used first."""
        self._fast = Tier()
        """HBM and DRAM together."""
        self._nvme = Tier()
        self._uses = array("i")
        """Requests by node, since it was nowhere."""
        self._throttled: OrderedDict[int, None] = OrderedDict()
        self._nowhere: OrderedDict[int, None] = OrderedDict()
        """Nodes that no tier has any more and the orders still know, the longest gone first."""
        self._gone, self._missed, self._evicted = Gathered(nodes), Gathered(nodes), Gathered(nodes)
        """Pages that this request made disappear, that it missed, and that had to leave NVMe."""
        self._leaving: list[int] = []
        """What this request made leave HBM, where there is no DRAM below."""
        self._was_full = False
        self._tell: Tell | None = None

    def request(self, path: Sequence[int], now: float, tell: Tell | None = None, answer: Sequence[int] = ()) -> Found:
        """Serve one request.

        Parameters
        ----------
        path
            Its nodes, from the root on; may be empty.
        now
            Seconds.
        tell
            Tells an order what is predicted for the path, once it knows of the use and before it has to make room: on
            a server, room is made when HBM lets go of the path, which is after the turn.
        answer
            Nodes behind the path that the answer adds. They are no references, but in HBM afterwards like the path.
        """
        self._tell = tell
        self._cover()
        found = self._count(path, now)
        whole = [*path, *answer]
        uses = self._uses
        for node in whole:
            uses[node] += 1
        self._fill(whole, now, found.nvme)
        self._shrink_hbm(now)
        if self.sizes.nvme:
            self._offer(whole, now)
            self._retry(now)
        self._shrink_dram()
        if self._gone:
            self._admission.gone(self._gone.take(), now)
        self._forget()
        return found

    def _cover(self) -> None:
        """Follow the tree, which may have grown."""
        nodes = len(self.nodes)
        if nodes > len(self._uses):
            self._uses.extend([0] * (nodes - len(self._uses)))
            for tier in (self._hbm, self._fast, self._nvme):
                tier.cover(nodes)

    # ---- what is found ------------------------------------------------------------------------------

    def _count(self, path: Sequence[int], now: float) -> Found:
        counts, pages_of, first = self.counts, self.nodes.pages, self.nodes.first
        hbm, fast, nvme, missed = self._hbm.have, self._fast.have, self._nvme.have, self._missed
        in_hbm = in_fast = found = blocks = 0
        complete, learns = True, self.sizes.nvme > 0
        for node in path:
            pages = pages_of[node]
            blocks += pages
            there = 0
            if complete:
                in_hbm += hbm[node]
                there = fast[node]
                in_fast += there
                if there < pages:
                    if nvme[node] > there:
                        there = nvme[node]
                    complete = there == pages
                found += there
            if there < pages and learns:
                missed.add(first[node] + there, first[node] + pages)
        counts.requests += 1
        counts.blocks += blocks
        counts.hbm_hits += in_hbm
        counts.dram_hits += in_fast - in_hbm
        counts.nvme_hits += found - in_fast
        if missed:
            self._admission.wanted(missed.take(), now)
        if found > in_fast:
            self._admission.served(found - in_fast, now)
        return Found(in_hbm, in_fast - in_hbm, found - in_fast)

    # ---- HBM and DRAM -------------------------------------------------------------------------------

    def _fill(self, path: Sequence[int], now: float, on_nvme: int) -> None:
        """Bring all of a path into HBM, its root as the most recent; so many pages of it come from NVMe."""
        pages_of, hbm, fast, recent = self.nodes.pages, self._hbm.have, self._fast.have, self._recent
        upwards = path[::-1]
        if self._dram_only:
            self._dram_order.pass_by(upwards, now)
        to_hbm = to_fast = 0
        for node in upwards:
            pages = pages_of[node]
            there = hbm[node]
            if there != pages:
                to_hbm += pages - there
                hbm[node] = pages
                there = fast[node]
                if there != pages:
                    to_fast += pages - there
                    fast[node] = pages
                    if node in self._nowhere:
                        del self._nowhere[node]
            recent[node] = None
            recent.move_to_end(node)
        self._hbm.used += to_hbm
        self._fast.used += to_fast
        self.counts.computed += to_fast - on_nvme
        if self._tell is not None:
            self._tell(self._dram_order)

    def _shrink_hbm(self, now: float) -> None:
        """Let HBM go of what does not fit, each stretch of a path in one go."""
        have, parent, recent = self._hbm.have, self.nodes.parent, self._recent
        over = self._hbm.used - self.sizes.hbm
        if over <= 0:
            return
        self._hbm.used -= over
        if self._dram_only:
            self.counts.demoted += over
        chain: list[int] = []
        while over > 0:
            node = next(iter(recent))
            pages = have[node]
            if pages > over:
                have[node] = pages - over
            else:
                have[node] = 0
                del recent[node]
            over -= pages
            if not self._dram_only:
                self._leaving.append(node)
                continue
            if chain and parent[chain[-1]] != node:
                self._dram_order.use(chain, now, request=False)
                chain = []
            chain.append(node)
        if chain:
            self._dram_order.use(chain, now, request=False)

    def _shrink_dram(self) -> None:
        for node in self._leaving:
            self._leave_dram(node, self._fast.have[node])
        self._leaving.clear()
        over = self._fast.used - self._hbm.used - self._dram_only
        while over > 0:
            coldest = self._dram_order.first()
            assert coldest is not None, "what is over is in the order"
            over -= self._leave_dram(coldest, over)

    def _leave_dram(self, node: int, most: int) -> int:
        fast = self._fast.have
        have, kept = fast[node], self._hbm.have[node]
        left = max(kept, have - most)
        self._fast.used -= have - left
        fast[node] = left
        if left == kept:
            self._dram_order.remove(node)
        on_nvme = self._nvme.have[node]
        if on_nvme > left:
            on_nvme = min(have, on_nvme)
            self.counts.dropped += on_nvme - left
            self._lose(node, on_nvme, have)
        else:
            self._lose(node, left, have)
        return have - left

    def _lose(self, node: int, lo: int, hi: int) -> None:
        if lo < hi:
            self.counts.lost += hi - lo
            if lo == 0:
                self._uses[node] = 0
                self._nowhere[node] = None
            if self.sizes.nvme:
                first = self.nodes.first[node]
                self._gone.add(first + lo, first + hi)

    def _forget(self) -> None:
        while len(self._nowhere) > REMEMBERED:
            node, _ = self._nowhere.popitem(last=False)
            self._dram_order.forget(node)
            self._nvme_order.forget(node)

    # ---- NVMe ---------------------------------------------------------------------------------------

    def _offer(self, path: Sequence[int], now: float) -> None:
        """Offer what is not on NVMe, from the end to the root, and write it as far as nothing in front is missing."""
        have, pages_of = self._nvme.have, self.nodes.pages
        stored = next((n for n, node in enumerate(path) if have[node] < pages_of[node]), len(path))
        missing = path[stored:]
        admitted = self._admitted(missing[::-1], now) if missing else set()
        before: dict[int, int] = {}
        for node in missing:
            if node not in admitted:
                stored += have[node] > 0
                break
            before[node] = have[node]
            self._nvme.set(node, pages_of[node])
            stored += 1
        for node in admitted - before.keys():
            self._admission.refund((pages_of[node] - have[node]) * self._block_bytes, now)
        if stored:
            self._nvme_order.use(path[:stored][::-1], now)
            if self._tell is not None:
                self._tell(self._nvme_order)
        self._shrink_nvme(now)
        if before:
            self._account(before, now)

    def _account(self, before: dict[int, int], now: float) -> None:
        """Count as written what is there now and was not: what was the coldest itself is gone again."""
        have, pages_of = self._nvme.have, self.nodes.pages
        asked = written = 0
        for node, there in before.items():
            asked += pages_of[node] - there
            written += max(0, have[node] - there)
        self.counts.written += written
        if self._was_full:
            self.counts.written_full += written
        if written:
            self._admission.wrote(written * self._block_bytes, now)
        if asked > written:
            self._admission.refund((asked - written) * self._block_bytes, now)

    def _admitted(self, upwards: Sequence[int], now: float) -> set[int]:
        """Ask for nodes of a path, the deepest first."""
        nodes, have, uses = self.nodes, self._nvme.have, self._uses
        first, lead, pages_of = nodes.first, nodes.lead, nodes.pages
        every = nodes.keys(0, 0, nodes.n_pages)
        room = max(0.0, 1.0 - self._nvme.used / self.sizes.nvme)
        admitted: set[int] = set()
        for node in upwards:
            at, there, pages = first[node], have[node], pages_of[node]
            keys = every[at + there : at + pages]
            nbytes = (pages - there) * self._block_bytes
            verdict = self._admission.admit(Candidate(keys, nbytes, uses[node], room, now, lead[node], bool(admitted)))
            if verdict is Verdict.ADMIT:
                admitted.add(node)
            if verdict is Verdict.THROTTLED:
                self._throttled[node] = None
            elif self._throttled:
                self._throttled.pop(node, None)
        return admitted

    def _retry(self, now: float) -> None:
        """Ask again for what was throttled and is still in a faster tier."""
        for node in list(self._throttled)[:RETRIES]:
            del self._throttled[node]
            parent = self.nodes.parent[node]
            pages = self.nodes.pages[node]
            behind = parent == ROOT or self._nvme.have[parent] == self.nodes.pages[parent]
            if behind and self._fast.have[node] == pages:
                there = self._nvme.have[node]
                if there < pages and self._admitted([node], now):
                    self._nvme.set(node, pages)
                    self._nvme_order.use(list(self._up(node)), now, request=False)
                    self._shrink_nvme(now)
                    self._account({node: there}, now)

    def _up(self, node: int) -> Iterator[int]:
        while node != ROOT:
            yield node
            node = self.nodes.parent[node]

    def _shrink_nvme(self, now: float) -> None:
        nvme, fast, first, order = self._nvme, self._fast.have, self.nodes.first, self._nvme_order
        over = nvme.used - self.sizes.nvme
        while over > 0:
            self._was_full = True
            node = order.first()
            assert node is not None, "what is over is in the order"
            have = nvme.have[node]
            gone = have if have < over else over
            left = have - gone
            nvme.used -= gone
            over -= gone
            nvme.have[node] = left
            if not left:
                order.remove(node)
            self._evicted.add(first[node] + left, first[node] + have)
            kept = fast[node]
            if kept < have:
                self._lose(node, kept if kept > left else left, have)
        if self._evicted:
            self._admission.evicted(self._evicted.take(), now)

    # ---- tests --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant from scratch; for tests."""
        assert self._hbm.used <= self.sizes.hbm and self._nvme.used <= self.sizes.nvme
        assert self._fast.used - self._hbm.used <= self._dram_only
        for tier in (self._hbm, self._fast, self._nvme):
            assert tier.used == sum(tier.have)
            for node, have in tier.items():
                parent = self.nodes.parent[node]
                assert 0 < have <= self.nodes.pages[node]
                assert parent == ROOT or tier.have[parent] == self.nodes.pages[parent], "not prefix-closed"
        assert all(have <= self._fast.have[node] for node, have in self._hbm.items())
        assert set(self._recent) == {node for node, _ in self._hbm.items()}
        alone = {node for node, have in self._fast.items() if have > self._hbm.have[node]}
        assert len(self._dram_order) == len(alone)
