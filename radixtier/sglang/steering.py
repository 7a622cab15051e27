"""Steering: carries out what clients know about the future (hints), within limits that no client can exceed.

Owns the pins, the retained ends of paths and what is to be demoted. A pin or a share keeps pages in DRAM as long as
others can go; a pin in NVMe or a retain keeps SGLang's leaf-first eviction from forgetting a path, by a host lock on
its last node. Both are capped as a share of the tier and end by themselves (:mod:`radixtier.policy.pins`); when
nothing else can go, they give way. The laws of each kind are in :mod:`radixtier.policy.hints`. Scheduler thread only.
"""

from __future__ import annotations

import heapq
import logging
import time
from array import array
from collections import deque
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radixtier.control import Target
from radixtier.mover import Trigger
from radixtier.policy.hints import Hint, Kind, Outcome, read_envelope
from radixtier.policy.pins import PinLedger, Tier
from radixtier.sglang.request import Request
from radixtier.tree.residency import HBM, Pages, State
from radixtier.units import BadValue

logger = logging.getLogger(__name__)

DEMOTE_S = 30.0
"""How long a demotion waits for pages to be written."""

MOST_LATER = 4096
"""Prefetches and demotions that may be outstanding; more push out the oldest."""


class _Demotion(NamedTuple):
    """Pages that could not go at once: until when, which, their keys at that time, and whether they leave HBM too."""

    until: float
    pages: Pages
    keys: npt.NDArray[np.uint64]
    hbm: bool


class Steering:
    """Hints for one cache."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._mover = cache.mover
        self._now = cache.ranks.now
        table = self._mover.table
        self.pins = PinLedger({Tier.DRAM: table.n_frames, Tier.NVME: table.n_handles - table.n_frames})
        self._retained: dict[int, tuple[int, Any]] = {}
        """Runs whose last node has a host lock of ours: the node and what unlocks it."""
        self._pinned: set[int] = set()
        """Runs that were granted a pin, as long as it may hold."""
        self._demoting: deque[_Demotion] = deque()
        self._later: list[tuple[float, int, int]] = []
        """Prefetches: when, a number, and the run."""
        self._numbers = count()
        self._mover.tree.pinned = self._pinned_pages

    def clear(self) -> None:
        """Forget every hint; SGLang's tree is emptied, and its locks with it."""
        self.pins.clear()
        self._pinned.clear()
        self._retained.clear()
        self._demoting.clear()
        self._later.clear()

    def _pinned_pages(self, run: int) -> int:
        if self._mover.promotions.awaited(run):
            return int(self._mover.tree.runs[run].live)
        return self.pins.pages(run, self._now(), Tier.DRAM)

    # ---- where ---------------------------------------------------------------------------------------

    def path_of(self, target: Target) -> Pages:
        """Return the pages of a path, root-side first, as far as it is known below HBM.

        Raises
        ------
        BadValue
            For a target that means nothing here.
        """
        cache = self._cache
        if target.node is not None:
            if target.node not in self._mover.tree.runs:
                raise BadValue(f"node {target.node} does not exist", "Take a number from an explanation")
            pages: Pages = cache.ahead.path_pages(target.node)
            return pages
        if target.session is not None:
            run = cache.ahead.end_of(target.session)
            if run is None:
                raise BadValue(f"session {target.session!r} is not known", "Send its requests with session_id")
            pages = cache.ahead.path_pages(run)
            return pages
        tokens = target.tokens
        if tokens is None:
            assert target.text is not None
            tokens = self._encode(target.text)
        key = RadixKey(tokens, target.extra_key, cache.tree_core.is_eagle, cache_salt=target.cache_salt)
        key = key.page_aligned(cache.page_size)
        if not len(key):
            raise BadValue(f"{len(tokens)} tokens are less than a page of {cache.page_size}", "Give a longer prefix")
        found = cache.match_all(MatchPrefixParams(key=key))
        pages = cache.last_pages(found.best_match_node, len(key) // cache.page_size)
        if len(pages):
            self._mover.tree.ends(int(pages[-1]), found.best_match_node)
        return pages

    def _encode(self, text: str) -> array[int]:
        if self._cache.tokenizer is None:
            raise BadValue("the scheduler has no tokenizer", "Give tokens instead of text")
        return array("q", self._cache.tokenizer.encode(text))

    # ---- what ----------------------------------------------------------------------------------------

    def at_turn_end(self, request: Request, run: int) -> None:
        """Carry out the hints that came with a request, on its whole path."""
        hints, refused = read_envelope(request.hints)
        pages = self._cache.ahead.path_pages(run)
        outcomes = [*refused, *(self.carry_out(hint, pages) for hint in hints)]
        request.record.hints += [outcome.to_json() for outcome in outcomes]
        self._cache.explain.keep(request.record)
        for outcome in outcomes:
            logger.debug("radixtier: hint of request %s: %s", request.record.rid, outcome)

    def carry_out(self, hint: Hint, path: Pages) -> Outcome:
        """Do what a hint asks for on a path; never raises."""
        page_size = self._cache.page_size
        start, end = hint.span(len(path) * page_size)
        asked = end - start
        span = path[start // page_size : -(-end // page_size)]
        if not len(span):
            return hint.rejected("nothing of this path is known below HBM", asked)
        do = {
            Kind.PREFETCH: self._prefetch,
            Kind.DEMOTE: self._demote,
            Kind.PIN: self._keep,
            Kind.SHARE: self._keep,
            Kind.RETAIN: self._keep,
            Kind.RELEASE: self._release,
        }[hint.kind]
        try:
            return do(hint, span, asked)
        except Exception:  # advice must not stop a server
            logger.exception("radixtier: hint %s failed", hint.kind.value)
            return hint.rejected("it failed in the server; its log says why", asked)

    def _tokens(self, n_pages: int, asked: int) -> int:
        return min(asked, n_pages * self._cache.page_size)

    def _prefetch(self, hint: Hint, span: Pages, asked: int) -> Outcome:
        run = self._mover.tree.run_of(int(span[-1]))
        if run is None:
            return hint.rejected("its backup is not over yet", asked)
        self._mover.tree.expect(run, self._now() + hint.by_s)
        if hint.by_s > 0:
            nbytes = len(span) * self._mover.page_bytes
            at = self._now() + hint.by_s - 2 * float(self._mover.rate.seconds(float(nbytes)))
            heapq.heappush(self._later, (at, next(self._numbers), run))
            if len(self._later) > MOST_LATER:
                self._later.pop()
            return hint.deferred(asked, f"until {hint.by_s:g} s from now")
        cold = self._cache.ahead.bring(run, Trigger.HINT)
        if cold:
            return hint.deferred(asked, f"{cold * self._cache.page_size} tokens are being read from NVMe")
        there = int(self._mover.table.in_dram(span).sum())
        rest = "NVMe is drained" if self._mover.leaving else "the rest is in HBM only"
        return hint.granted(asked, self._tokens(there, asked), "" if there == len(span) else rest)

    def _demote(self, hint: Hint, span: Pages, asked: int) -> Outcome:
        tree, table = self._mover.tree, self._mover.table
        for run in tree.runs_of(span):
            self.pins.release(run, Tier.DRAM)
            tree.expect(run, None)
            tree.sink(run)
        self._mover.parking.admit(tree.runs_of(span))
        left = self._give_up(span, hint.hbm)
        if len(left):
            self._demoting.append(_Demotion(self._now() + DEMOTE_S, left, table.key[left], hint.hbm))
            if len(self._demoting) > MOST_LATER:
                self._demoting.popleft()
            tokens = len(left) * self._cache.page_size
            return hint.deferred(asked, f"{tokens} tokens are in use or still to be written; they go afterwards")
        return hint.granted(asked, asked)

    def _give_up(self, pages: Pages, hbm: bool) -> Pages:
        """Give up the frames of those pages that can do without, and their places in HBM; returns what is left."""
        table = self._mover.table
        if hbm:
            self._cache.leave_hbm(pages)
        self._mover.give_up_frames(pages[table.unused(pages, State.CLEAN)])
        there = table.in_dram(pages) | (table.state[pages] == State.FILLING)
        if hbm:
            there |= table.mark[pages] & HBM != 0
        kept: Pages = pages[there]
        return kept

    def _keep(self, hint: Hint, span: Pages, asked: int) -> Outcome:
        """Pin, share or retain, from the root on, so that what a cap leaves is a prefix."""
        tree = self._mover.tree
        tier = Tier.NVME if hint.kind is Kind.RETAIN else hint.tier
        if tier is Tier.NVME and self._mover.store is None:
            return hint.rejected("this server has no NVMe tier", asked)
        if tier is Tier.NVME and self._mover.leaving:
            return hint.rejected("NVMe is drained", asked)
        now = self._now()
        self._settle_pins(now)
        runs = list(dict.fromkeys(self._mover.table.run[span].tolist()))
        granted, last = 0, None
        for run in runs:
            if run not in tree.runs:
                break
            wanted = int((self._mover.table.run[span] == run).sum())
            got = self.pins.grant(run, wanted, tier, now, hint.ttl_s)
            granted += got
            if got:
                last = run
                self._pinned.add(run)
                tree.events.note(run, time.time(), hint.kind.value, "hint")
            if got < wanted:
                break
        if last is None:
            return hint.rejected(f"the cap of pins in {tier.value} is reached", asked)
        if tier is Tier.NVME and not self._retain(last):
            for run in runs:
                self.pins.release(run, tier)
            return hint.rejected("where it ends in SGLang's tree is not known yet", asked)
        if hint.kind is not Kind.PIN or tier is Tier.NVME:
            self._mover.parking.admit(runs)
        if tier is Tier.DRAM and self._cache.ahead.bring(last, Trigger.HINT):
            return hint.deferred(asked, f"{self._tokens(granted, asked)} tokens are pinned and come up to DRAM")
        return hint.granted(asked, self._tokens(granted, asked), f"the cap of pins in {tier.value}")

    def _settle_pins(self, now: float) -> None:
        """What pages that the tree freed were granted is free again for others."""
        runs = self._mover.tree.runs
        for run in self._pinned:
            if run in runs:
                self.pins.shrink(run, runs[run].live)
            else:
                self.pins.forget(run)
        self._pinned = {run for run in self._pinned if self.pins.pinned(run, now)}

    def _retain(self, run: int) -> bool:
        if run in self._retained:
            return True
        node = self._mover.tree.node_of(run)
        if node is None:
            return False
        self._retained[run] = node, self._cache.inc_host_lock_ref(node).to_dec_params()
        return True

    def _unretain(self, run: int) -> None:
        node, lock = self._retained.pop(run, (None, None))
        if node is not None:
            self._cache.dec_host_lock_ref(node, lock)

    def _release(self, hint: Hint, span: Pages, asked: int) -> Outcome:
        pages = 0
        for run in self._mover.tree.runs_of(span):
            pages += self.pins.release(run)
            self._unretain(run)
        if not pages:
            return hint.rejected("nothing of it was pinned, shared or retained", asked)
        return hint.granted(asked, asked)

    # ---- time ----------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """Nothing but retained paths is left below HBM: the weakest goes."""
        run = self.pins.yield_weakest(self._now(), Tier.NVME)
        if run is not None:
            self._unretain(run)

    def step(self) -> None:
        """Do what is due, and end what is over."""
        if not (self._retained or self._demoting or self._later):
            return
        now = self._now()
        for run in [run for run in self._retained if not self.pins.pinned(run, now, Tier.NVME)]:
            self._unretain(run)
        while self._later and self._later[0][0] <= now:
            _, _, run = heapq.heappop(self._later)
            self._cache.ahead.bring(run, Trigger.HINT)
        for _ in range(len(self._demoting)):
            due = self._demoting.popleft()
            table = self._mover.table
            same = (table.key[due.pages] == due.keys).all(axis=1)
            left = self._give_up(due.pages[same & (table.state[due.pages] != State.FREE)], due.hbm)
            if len(left) and now < due.until:
                self._demoting.append(due._replace(pages=left, keys=table.key[left]))
