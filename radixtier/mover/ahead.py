"""Work ahead of requests: who is expected back, and what comes up for it before it asks.

Owns the sessions, which end of the tree each of them reached, and when it is expected again. A session is what the
client says it is, or else a conversation: a request whose path goes through the end of an earlier one continues it.
The laws:

- when a turn ends, the tree's policies hear when its path is expected back;
- its pages that are on NVMe only come up :data:`MARGIN_S` and the time of reading them before the earliest likely
  return;
- one that did not come when expected is estimated again, :data:`PATIENCE` times, and then no longer expected;
- drives and frames that nobody wants bring up the hottest of what has no copy in DRAM, into free frames only.

Bounded by :data:`MOST_SESSIONS`. Scheduler thread only.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from radixtier.mover.promotion import Trigger
from radixtier.mover.promotions import Promotions
from radixtier.policy.bandwidth import ReadRate
from radixtier.policy.returns import Returns
from radixtier.tree.residency import NO_PAGES, Pages, State
from radixtier.tree.tiertree import TierTree

MOST_SESSIONS = 65536
"""Sessions remembered; the one that ended a turn longest ago is forgotten first."""

MARGIN_S = 0.5
"""How long before the earliest likely return a path is to be up."""

MOST_ASLEEP_S = 1.0
"""Between two looks of an idle scheduler, as SGLang's does with ``--sleep-on-idle``."""

LEAST_CHANCE = 0.3
"""Of coming back at all, below which nothing is brought up."""

LOOK_AGAIN_S, LOOK_AGAIN_SHARE = 0.5, 0.1
"""Until a path is looked at again: seconds at least, and share of the time until the session is expected."""

PATIENCE = 3
"""Estimates per turn."""

IDLE_RUNS = 64
"""Cold runs looked at in one idle step."""

IDLE_S = 0.1
"""Pause between two idle steps."""


@dataclass(slots=True)
class Session:
    """A conversation between two turns."""

    end: int
    """Run that its last turn ended with."""
    turn: int
    """Number of the turn, over all sessions."""
    tries: int = 0
    until: float = 0.0
    """When it is back in half of the cases; until then its path is looked at now and then."""


class Ahead:
    """Sessions and what is brought up for them."""

    def __init__(
        self,
        tree: TierTree,
        promotions: Promotions,
        rate: ReadRate,
        *,
        page_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._promotions = promotions
        self._rate = rate
        self._page_bytes = page_bytes
        self._clock = clock
        self._returns = Returns()
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()
        self._ends: OrderedDict[int, Hashable] = OrderedDict()
        """Session by the run that it ended with."""
        self._due: list[tuple[float, int, Hashable, bool]] = []
        """When to do something for a session, its turn, which, and whether to bring it up or to estimate again."""
        self._turns = 0
        self._idled = clock()

    def clear(self) -> None:
        """Forget every session."""
        self._sessions.clear()
        self._ends.clear()
        self._due.clear()

    def end_of(self, session: Hashable) -> int | None:
        """Return the run that a session's last turn ended with."""
        known = self._sessions.get(session)
        return None if known is None or known.end not in self._tree.runs else known.end

    def session_of(self, run: int) -> str | None:
        """Return the client's name of the session whose last turn ended with a run."""
        key = self._ends.get(run)
        return key if isinstance(key, str) else None

    def turn_ended(self, run: int, session: Hashable | None, began: float) -> Hashable:
        """A turn is over whose path ends with ``run``.

        Parameters
        ----------
        run
            The last run of prompt and answer.
        session
            The client's name for it, None to go by the path.
        began
            When its request arrived, seconds.

        Returns
        -------
        Hashable
            The session.
        """
        now = self._clock()
        key = session if session is not None else self._continued(run)
        before = self._sessions.pop(key, None)
        if before is not None:
            self._returns.began(key, began)
            if before.end in self._tree.runs:
                self._tree.expect(before.end, None)
            self._forget_end(key, before)
        self._turns += 1
        self._sessions[key] = Session(run, self._turns)
        self._ends[run] = key
        self._returns.ended(key, now)
        self._bound()
        self._estimate(key, now)
        return key

    def _continued(self, run: int) -> Hashable:
        for each in self._tree.path(run):
            if each in self._ends:
                return self._ends[each]
        return ("path", run)

    def _bound(self) -> None:
        if len(self._sessions) > MOST_SESSIONS:
            self._forget_end(*self._sessions.popitem(last=False))
        if len(self._due) > 4 * MOST_SESSIONS:
            self._due = [item for item in self._due if self._current(item[2], item[1])]
            heapq.heapify(self._due)

    def _forget_end(self, key: Hashable, session: Session) -> None:
        # Another session may have ended there since.
        if self._ends.get(session.end) == key:
            del self._ends[session.end]

    def _current(self, key: Hashable, turn: int) -> bool:
        session = self._sessions.get(key)
        return session is not None and session.turn == turn

    def _estimate(self, key: Hashable, now: float) -> None:
        session = self._sessions[key]
        window = self._returns.window(key, now) if session.tries < PATIENCE else None
        if session.end not in self._tree.runs:
            return
        if window is None:
            self._tree.expect(session.end, None)
            return
        session.tries += 1
        session.until = window.likeliest
        self._tree.expect(session.end, self._returns.expected(key, now))
        heapq.heappush(self._due, (max(now, window.likeliest) + MARGIN_S, session.turn, key, False))
        if window.chance < LEAST_CHANCE:
            return
        pages = sum(self._tree.runs[run].live for run in self._tree.path(session.end))
        # A scheduler that sleeps between two looks starts late, and learns late that pages have arrived.
        asleep = 2 * min(MOST_ASLEEP_S, self._promotions.between_looks)
        lead = MARGIN_S + asleep + self._rate.seconds(float(pages * self._page_bytes))
        heapq.heappush(self._due, (max(now, window.earliest - lead), session.turn, key, True))

    def step(self, idle: bool) -> None:
        """Do what is due; ``idle`` says that no request waits or runs."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, turn, key, bring = heapq.heappop(self._due)
            if not self._current(key, turn):
                continue
            if bring:
                session = self._sessions[key]
                self.bring(session.end, Trigger.RETURN)
                # It may still be in HBM, and be gone from there before it is wanted.
                again = now + max(LOOK_AGAIN_S, LOOK_AGAIN_SHARE * (session.until - now))
                if again < session.until:
                    heapq.heappush(self._due, (again, turn, key, True))
            else:
                self._estimate(key, now)
        if idle and now - self._idled >= IDLE_S:
            self._idled = now
            self._use_idle()

    def bring(self, run: int, trigger: Trigger) -> int:
        """Bring the path of a run up when nothing else is to be read; returns its pages that are on NVMe only."""
        pages = self.path_pages(run)
        lost = np.flatnonzero(self._tree.table.state[pages] == State.LOST)
        pages = pages[: lost[0]] if len(lost) else pages
        return self._promotions.ahead(pages, trigger) if len(pages) else 0

    def path_pages(self, run: int) -> Pages:
        """Return the pages from the root to the end of a run, root-side first."""
        parts = [self._tree.pages_of(each) for each in reversed(self._tree.path(run))]
        return np.concatenate(parts) if parts else NO_PAGES

    def _use_idle(self) -> None:
        room = self._promotions.spare_frames
        if not room or not self._promotions.idle or not self._tree.cold:
            return
        wanted = (run for run in reversed(self._tree.cold) if run not in self._tree.sunk)
        for run in list(islice(wanted, IDLE_RUNS)):
            pages = self.path_pages(run)
            cold = int(self._tree.table.only_on_nvme(pages).sum())
            if not cold or cold > room:
                if not self._tree.table.only_on_nvme(self._tree.pages_of(run)).any():
                    self._tree.cold.pop(run, None)
                continue
            self._promotions.ahead(pages, Trigger.IDLE)
            return
