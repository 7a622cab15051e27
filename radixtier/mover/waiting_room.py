"""The waiting room: what a request waits for between arrival and admission, and for how long.

Owns one record per waiting request. When a request asks, the cost model says how many of the cold pages in front are
worth the wait (the split point) and by when they must be there; its path up to the split is promoted and held. It may
be admitted when that is up, when it has waited as long as recomputing would take, or when the drive turned out to be
slower than that. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from radixtier.mover.mover import Mover
from radixtier.mover.promotion import Trigger
from radixtier.mover.waiting import Cut, Path, Waiting
from radixtier.policy.bandwidth import CopyRate
from radixtier.policy.prefill import PrefillCost
from radixtier.policy.promotion import LONGEST_S, Ask, Plan, Probe, Why, plan
from radixtier.tree.residency import NO_PAGES, Pages, State

BY_COST, ALWAYS, NEVER = "timeout", "wait_complete", "best_effort"
"""What SGLang calls its policies of waiting for storage; the first is its default, and ours is the cost model."""

DECLINED = Plan(0, 0.0, 0.0, Why.DRAINED)
"""For pages on NVMe when that is being given up."""


class Prefill(Protocol):
    """Whoever learns what prefill costs."""

    cost: PrefillCost


class WaitingRoom:
    """Waiting requests of one cache, by their handles.

    Parameters
    ----------
    mover
        Brings their pages up.
    prefill, copies
        What recomputing and loading cost.
    page_tokens
        Tokens of a page.
    clock
        Seconds.
    law
        One of SGLang's names above.
    """

    def __init__(
        self,
        mover: Mover,
        prefill: Prefill,
        copies: CopyRate,
        *,
        page_tokens: int,
        clock: Callable[[], float],
        law: str = BY_COST,
    ) -> None:
        self._mover = mover
        self._prefill = prefill
        self._copies = copies
        self._page_tokens = page_tokens
        self._clock = clock
        self._law = law
        self._waiting: dict[Hashable, Waiting] = {}
        self._probe = Probe()
        self._asked = 0
        """Requests that the scheduler asked for since its last step: their order is that of admission."""

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, handle: Hashable) -> Waiting | None:
        """Return the record of a request, None without one."""
        return self._waiting.get(handle)

    def cut(self, waiting: Waiting | None, end: int, tokens: int, read: Callable[[], Path]) -> Cut | None:
        """Say where a match is cut: in front of the first page that cannot be delivered; None for not at all.

        Parameters
        ----------
        waiting
            Record of the request, None without one. Once it may be admitted, only what is in DRAM counts.
        end
            Node of SGLang's tree that the match ends with.
        tokens
            That it found below HBM.
        read
            Looks up where their pages are; not called where that is known.
        """
        admissible = waiting if waiting is not None and waiting.admissible else None
        covered = admissible is None or admissible.covers(end, tokens, self._page_tokens)
        if covered and not self._mover.table.count[State.LOST]:
            return None
        path = read()
        deliverable = path.known if admissible is None else path.loadable
        if deliverable == len(path.pages):
            return None
        return Cut(deliverable, waiting is not None and (waiting.expired or deliverable == path.known))

    @property
    def for_nvme(self) -> int:
        """Requests whose pages are not all up and that may not be admitted without them yet."""
        return sum(
            each.promotion is not None and not each.admissible and not each.promotion.done
            for each in self._waiting.values()
        )

    @property
    def blocked(self) -> bool:
        """Whether the scheduler wants to admit a request and cannot."""
        return any(each.blocked_at is not None and not each.admissible for each in self._waiting.values())

    def step(self) -> None:
        """The scheduler begins a step."""
        self._asked = 0

    def enter(self, handle: Hashable, path: Path, node: int, matched: int, new: int) -> None:
        """A request asks for its path, the first time or again.

        Parameters
        ----------
        handle
            SGLang's, of the request.
        path
            What its prompt matches below HBM; some of it exists.
        node
            Where that ends in SGLang's tree.
        matched, new
            Tokens of the prompt that match on some tier, and that do not; the last one is always computed and not among
            them.
        """
        waiting = self._record(handle)
        if waiting.promotion is not None:
            self._mover.promotions.drop(waiting.promotion)
        waiting.known = path.known
        waiting.prompt_tokens = matched + new + 1
        waiting.hbm_tokens = matched - len(path.pages) * self._page_tokens
        self._promote(waiting, path.pages[: path.known])
        waiting.node = node
        waiting.admissible = False

    def _record(self, handle: Hashable) -> Waiting:
        waiting = self._waiting.get(handle)
        if waiting is None:
            waiting = self._waiting[handle] = Waiting(NO_PAGES)
        return waiting

    def may_admit(self, handle: Hashable) -> bool:
        """Whether a request may be admitted now; asked for all that wait in the order of admission."""
        waiting = self._record(handle)
        if waiting.promotion is None or waiting.admissible:
            waiting.admissible = True
            return True
        self._asked += 1
        waiting.promotion.rank = float(self._asked)
        if not waiting.promotion.ready(self._mover.table):
            now = self._clock()
            waiting.blocked_at = now if waiting.blocked_at is None else waiting.blocked_at
            if self._mover.leaving:
                waiting.plan = DECLINED
            elif self._law != NEVER and now - waiting.blocked_at < self._deadline(waiting, now - waiting.blocked_at):
                return False
            # What arrives until there is room for the request in HBM is taken along.
            waiting.expired = True
        if waiting.blocked_at is not None:
            waiting.waited_s = self._clock() - waiting.blocked_at
        waiting.admissible = True
        return True

    def leave(self, handle: Hashable) -> None:
        """A request was admitted, or is gone: nothing is held for it any more."""
        waiting = self._waiting.pop(handle, None)
        if waiting is not None and waiting.promotion is not None:
            if waiting.admissible:
                self._settle(waiting)
            self._mover.promotions.drop(waiting.promotion)

    def _settle(self, waiting: Waiting) -> None:
        """Count what of its promotion was up in time; pages that the drive failed are neither."""
        table, stats = self._mover.table, self._mover.stats
        stats.in_time += int(table.in_dram(waiting.cold).sum())
        stats.late += int(table.is_cold(waiting.cold).sum())

    def clear(self) -> None:
        """Forget every request."""
        for handle in list(self._waiting):
            self.leave(handle)

    def _promote(self, waiting: Waiting, pages: Pages) -> None:
        promotions = self._mover.promotions
        waiting.plan = self._plan(waiting, pages)
        cold = np.flatnonzero(self._mover.table.is_cold(pages))
        wait = waiting.plan.wait_pages
        upto = len(pages) if wait == len(cold) else int(cold[wait])
        # Until the scheduler asks, the last to arrive is the last to be admitted.
        waiting.promotion = promotions.start(pages[:upto], rank=float(len(self._waiting)))
        waiting.cold = np.union1d(waiting.cold, waiting.promotion.cold)
        if waiting.plan.why is Why.TOO_SLOW and wait == 0:
            self._try_again(pages[cold])

    def _plan(self, waiting: Waiting, pages: Pages, underway: bool = False) -> Plan:
        mover = self._mover
        cold = np.flatnonzero(mover.table.is_cold(pages))
        if mover.leaving and len(cold):
            return DECLINED
        ask = Ask(
            prompt_tokens=waiting.prompt_tokens,
            hbm_tokens=waiting.hbm_tokens,
            pages=len(pages),
            cold=cold,
            page_tokens=self._page_tokens,
            page_bytes=mover.page_bytes,
            # Whatever is in front of a cold page is held as well.
            frames=int((cold < mover.promotions.hold_limit).sum()),
            queued_bytes=0 if underway else mover.promotions.demanded_bytes,
            waiting=underway,
            straight=np.isin(pages[cold], self._straight(waiting, pages, underway)),
        )
        if self._law == BY_COST:
            return plan(ask, self._prefill.cost, mover.rate, self._copies, mover.promotions.landings.rate)
        return Plan(ask.frames, LONGEST_S, LONGEST_S, Why.WORTH_IT if ask.frames == len(cold) else Why.NO_FRAMES)

    def _straight(self, waiting: Waiting, pages: Pages, underway: bool) -> Pages:
        if underway and waiting.promotion is not None:
            return waiting.promotion.straight
        return self._mover.promotions.landings.choose(pages)

    def _deadline(self, waiting: Waiting, waited_s: float) -> float:
        """Seconds that a request may wait in all; what was learnt of the drive meanwhile only ever shortens it."""
        assert waiting.plan is not None and waiting.promotion is not None
        if waited_s > waiting.plan.expected_s:
            left = self._plan(waiting, waiting.promotion.pages, underway=True)
            waiting.plan = waiting.plan.revised(left, waited_s)
        return waiting.plan.deadline_s

    def _try_again(self, cold: Pages) -> None:
        """Now and then read some of what nobody waits for, to notice when the drive has recovered."""
        now, mover = self._clock(), self._mover
        if self._probe.due(now):
            some = cold[: mover.promotions.job_pages]
            self._probe.started(now, float(mover.rate.seconds(float(len(some) * mover.page_bytes))))
            mover.promotions.ahead(some, Trigger.PROBE, lambda seconds: self._probe.finished(self._clock(), seconds))
