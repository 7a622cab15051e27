"""Explains: from which tier a request was served, why the rest was computed, and where a node is.

Owns the history of requests, and which request inserted a node until that is backed up: only then its page keys are
known, and with them whether such pages were there before. Scheduler thread only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import numpy as np
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

from radixtier.explain import History, NodeReport, Reason, RequestRecord, Totals
from radixtier.mover.waiting import Waiting
from radixtier.policy.pins import Tier
from radixtier.policy.promotion import Why
from radixtier.sglang.request import Request
from radixtier.tree.residency import HBM, Pages, State

INSERTED_REMEMBERED = 4096
"""Nodes whose backup is outstanding."""

PLACES = {
    State.FILLING: "on the way to DRAM",
    State.DIRTY: "DRAM",
    State.CLEAN: "DRAM and NVMe",
    State.COLD: "NVMe",
    State.LOST: "nowhere below HBM",
}


class Explaining:
    """What the cache can tell about requests and nodes."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._mover = cache.mover
        self.history = History()
        self.totals = Totals()
        self._inserted: OrderedDict[int, RequestRecord] = OrderedDict()

    def clear(self) -> None:
        """Forget the nodes, whose numbers may be given out again; what was told of requests stays true."""
        self._inserted.clear()

    def loaded(self, request: Request | None, dram_tokens: int, nvme_tokens: int) -> None:
        """A request's load begins."""
        if request is not None and not request.admitted:
            request.record.dram, request.record.nvme = dram_tokens, nvme_tokens

    def admitted(self, request: Request, waiting: Waiting | None) -> None:
        """A request is admitted: what is known and yet recomputed has its reason now."""
        record, page_size = request.record, self._cache.page_size
        left = record.recomputed
        if waiting is None or waiting.plan is None or waiting.promotion is None:
            return
        record.waited_s = waiting.waited_s
        known = waiting.hbm_tokens + waiting.known * page_size
        behind = min(left, max(0, known - record.hbm - record.dram - record.nvme))
        if waiting.plan.why is Why.DRAINED:
            record.because(Reason.DECLINED, behind, Why.DRAINED.value)
        elif waiting.expired:
            record.because(Reason.NOT_WORTH_WAITING, behind, "the deadline came before the pages")
        elif waiting.plan.why is Why.NO_FRAMES:
            record.because(Reason.DECLINED, behind, "frames of DRAM for waiting requests")
        elif not waiting.promotion.whole:
            record.because(Reason.LOST, behind, "a page could not be read from NVMe; those behind it are of no use")
        elif waiting.plan.why in (Why.TOO_SLOW, Why.TOO_SHORT):
            record.because(Reason.NOT_WORTH_WAITING, behind, waiting.plan.why.value)
        else:
            record.because(Reason.DECLINED, behind, "room in HBM to load them")

    def inserted(self, path: list[Any], request: Request | None) -> None:
        """A request inserted a path of nodes, root first."""
        if request is None:
            return
        for info in reversed(path):
            page = self._cache.last_page(info.node_id)
            if page is not None and self._mover.tree.run_of(page) is not None:
                break
            self._inserted[info.node_id] = request.record
        while len(self._inserted) > INSERTED_REMEMBERED:
            self._inserted.popitem(last=False)

    def gone(self, node: int) -> None:
        """A node that was never backed up is gone."""
        self._inserted.pop(node, None)

    def computed(self, node: int, pages: Pages) -> None:
        """New pages that end with ``node`` are backed up: was there ever anything like them?"""
        record = self._inserted.pop(node, None)
        if record is None:
            return
        tree, page_size = self._mover.tree, self._cache.page_size
        untold = record.recomputed - sum(cause.tokens for cause in record.causes)
        for rule, when, n in tree.forgotten.summary(self._mover.table.key[pages, 0]):
            tokens = max(0, min(untold, n * page_size))
            record.because(Reason.EVICTED, tokens, when=when, rule=rule)
            untold -= tokens
        # Of what is new, the rest of the prompt; the answer is no recomputation.
        tokens = max(0, min(untold, len(pages) * page_size))
        record.because(Reason.NEVER_SEEN, tokens)
        self.keep(record)

    def copied_again(self, request: Request | None, pages: Pages) -> None:
        """A request computed pages whose bytes were lost."""
        if request is None:
            return
        record = request.record
        untold = record.recomputed - sum(cause.tokens for cause in record.causes)
        for rule, when, n in self._mover.tree.forgotten.summary(self._mover.table.key[pages, 0]):
            tokens = max(0, min(untold, n * self._cache.page_size))
            record.because(Reason.LOST, tokens, rule, when)
            untold -= tokens

    def over(self, request: Request) -> None:
        """A request has ended."""
        record = request.record
        untold = record.recomputed - sum(cause.tokens for cause in record.causes)
        if 0 < untold <= self._cache.page_size:
            record.because(Reason.ALWAYS, untold)
        if self.keep(record):
            self.totals.add(record)

    def keep(self, record: RequestRecord) -> bool:
        """Enter what is known of a request by now; False for SGLang's own health checks, which are none."""
        if not record.prompt_tokens or record.rid.startswith(HEALTH_CHECK_RID_PREFIX):
            return False
        self.history.add(record)
        self.totals.explained(record)
        return True

    def node(self, run: int) -> NodeReport:
        """Report on a run."""
        tree, table, cache = self._mover.tree, self._mover.table, self._cache
        known = tree.runs[run]
        pages = tree.pages_of(run)
        states, counts = np.unique(table.state[pages], return_counts=True)
        places = {PLACES[State(s)]: n * cache.page_size for s, n in zip(states.tolist(), counts.tolist(), strict=True)}
        above = int(table.marked(pages, HBM).sum()) * cache.page_size
        now = cache.ranks.now()
        offset = time.time() - now
        pins = {tier.value: cache.steering.pins.strength(run, now, tier) for tier in Tier}
        return NodeReport(
            node=run,
            parent=known.parent if known.parent in tree.runs else None,
            start_token=known.depth * cache.page_size,
            tokens=len(pages) * cache.page_size,
            places=({"HBM": above} if above else {}) | places,
            last_used=known.used + offset if known.used > 0 else None,
            hits=known.uses,
            session=cache.ahead.session_of(run),
            expected=None if known.expected is None else known.expected + offset,
            pinned={tier: left for tier, left in pins.items() if left > 0},
            events=tree.events.of(run),
        )
