"""When a session's next turn comes: think times, learned from the pauses seen.

Owns, per session, when its last turn ended and the scale of its pauses; and over all sessions how pauses are spread
around their scale. Bounded: at most :data:`MAX_SESSIONS` sessions, the longest unseen is dropped. Scheduler thread
only. Any one clock, seconds.

The law, in three steps:

1. *Scale.* ``g = exp(mean log pause)``: the session's own mean (the last :data:`MEMORY` pauses weigh most), blended
   with the population's at the weight of :data:`PRIOR` pauses. Pauses span five decades, so all is done with
   logarithms.
2. *Spread.* ``u = pause / g`` goes into a histogram with :data:`BINS_PER_E` bins per factor of e, one per number of
   turns so far (1, 2, 3-4, more): whether a session ever returns depends on that most. Short pauses (tool calls)
   and long ones (people) are two humps of it. Sessions that have not returned count as long as they have been
   waiting and no longer (Kaplan-Meier), so nothing has to be known of how sessions end.
3. *Prediction*, given that it has been away for ``x`` seconds: the spread beyond ``x / g``.
   :meth:`Returns.expected` is its median among those that return, :meth:`Returns.window` the early quantile too,
   for a prefetcher, and the chance of a return at all. The expectation moves on while the session stays away, so it
   never lies in the past.

Where it loses: sessions are assumed to differ by scale only, so a session that mixes two kinds of pause is
predicted between them; and what is not yet a habit of :data:`LEAST` pauses is not predicted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_SESSIONS = 65536
"""Sessions remembered: about 20 MB."""

MEMORY = 7
"""Pauses over which a session's scale is averaged."""

PRIOR = 2.0
"""Pauses that the population's scale counts for."""

BINS_PER_E = 6
"""Bins of the histogram per factor of e: 17 % wide."""

LOWEST_U = math.exp(-6.0)
"""Lower end of the histogram, in units of the scale."""

BINS = 18 * BINS_PER_E
"""Bins of the histogram: up to e^12 scales."""

LEAST = 32
"""Pauses without which nothing is predicted, and a number of turns is not judged by itself."""

WINDOW = 8192.0
"""Pauses after which older ones weigh half."""

STAGES = 4
"""Classes of numbers of turns."""

EARLY = 0.1
"""Share of the returns that come before the early end of a window."""

EDGES = np.concatenate(([0.0], LOWEST_U * np.exp(np.arange(1, BINS + 1) / BINS_PER_E)))
"""Bounds of the bins, in scales."""

Histogram = npt.NDArray[np.float64]


class Window(NamedTuple):
    """When a session may come back, if it does."""

    earliest: float
    """Time before which :data:`EARLY` of the returns come."""
    likeliest: float
    """Time before which half of the returns come."""
    chance: float
    """Probability that it comes back at all."""


class Session:
    """What is known of one session."""

    __slots__ = ("ended", "log_mean", "pauses", "turns")

    def __init__(self) -> None:
        self.ended: float | None = None
        self.turns = 0
        self.pauses = 0
        self.log_mean = 0.0

    @property
    def stage(self) -> int:
        """Class of the number of turns so far."""
        return min(STAGES - 1, max(0, (self.turns - 1).bit_length()))


def bin_of(u: float) -> int:
    """Return the bin of a pause of ``u`` scales."""
    if u <= LOWEST_U:
        return 0
    return min(BINS - 1, int(math.log(u / LOWEST_U) * BINS_PER_E))


class Spread:
    """How pauses are spread around their scale, from those that ended and those that still last."""

    def __init__(self, ended: Histogram, lasting: Histogram) -> None:
        at_risk = (ended + lasting)[::-1].cumsum()[::-1]
        # A session that is waiting has, on average, been at risk for half of its bin.
        hazard = np.where(at_risk > 0, ended / np.maximum(at_risk - lasting / 2, 1e-9), 0.0)
        self.alive: Histogram = np.concatenate(([1.0], np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0))))
        """Share that has not returned at each of :data:`EDGES`."""

    def quantile(self, u: float, share: float) -> float:
        """Return the pause before which ``share`` of those come that are longer than ``u``, scales."""
        start = self._alive_at(u)
        level = start - share * (start - float(self.alive[-1]))
        place = int(np.searchsorted(-self.alive, -level))
        if place == 0 or place > BINS:
            return u
        above, below = float(self.alive[place - 1]), float(self.alive[place])
        part = (above - level) / (above - below) if above > below else 1.0
        return max(u, float(EDGES[place - 1] + part * (EDGES[place] - EDGES[place - 1])))

    def chance(self, u: float) -> float:
        """Return the share that returns of those still away after ``u`` scales."""
        start = self._alive_at(u)
        return (start - float(self.alive[-1])) / start if start > 0 else 0.0

    def _alive_at(self, u: float) -> float:
        return float(np.interp(u, EDGES, self.alive))


class Returns:
    """Predicts when sessions return."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max = max_sessions
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()
        self._ended = np.zeros((STAGES, BINS))
        self._dropped = np.zeros((STAGES, BINS))
        self._log_mean = 0.0
        self._pauses = 0
        self._spreads: list[Spread] = []
        self._seen = 0
        self._due = LEAST

    def ended(self, session: Hashable, now: float) -> None:
        """Note that a turn of ``session`` is over at ``now``."""
        entry = self._touch(session, now)
        entry.ended = now
        entry.turns += 1

    def began(self, session: Hashable, now: float) -> None:
        """Note that the next turn of ``session`` came at ``now``."""
        entry = self._sessions.get(session)
        if entry is None or entry.ended is None:
            return
        pause = max(now - entry.ended, 1e-3)
        self._ended[entry.stage, bin_of(pause / self._scale(entry))] += 1
        log_pause = math.log(pause)
        entry.pauses += 1
        entry.log_mean += (log_pause - entry.log_mean) / min(entry.pauses, MEMORY)
        self._pauses += 1
        self._log_mean += (log_pause - self._log_mean) / min(self._pauses, WINDOW)
        entry.ended = None
        self._seen += 1
        if self._seen >= self._due:
            self._learn(now)

    def expected(self, session: Hashable, now: float) -> float | None:
        """Return when the next turn comes, if it does: never before ``now``, None when nothing is known."""
        window = self.window(session, now)
        return None if window is None else window.likeliest

    def window(self, session: Hashable, now: float) -> Window | None:
        """Return when the next turn comes if it does, given that it has not come until ``now``."""
        entry, spread = self._judge(session)
        if entry is None or spread is None or entry.ended is None:
            return None
        scale = self._scale(entry)
        u = max(0.0, now - entry.ended) / scale
        early, middle = (entry.ended + scale * spread.quantile(u, share) for share in (EARLY, 0.5))
        return Window(max(now, early), max(now, middle), spread.chance(u))

    def __len__(self) -> int:
        """Return the number of sessions remembered."""
        return len(self._sessions)

    def _judge(self, session: Hashable) -> tuple[Session | None, Spread | None]:
        entry = self._sessions.get(session)
        return entry, self._spreads[entry.stage] if entry is not None and self._spreads else None

    def _scale(self, entry: Session) -> float:
        own = min(entry.pauses, MEMORY)
        return math.exp((own * entry.log_mean + PRIOR * self._log_mean) / (own + PRIOR))

    def _touch(self, session: Hashable, now: float) -> Session:
        entry = self._sessions.get(session)
        if entry is None:
            entry = self._sessions[session] = Session()
            if len(self._sessions) > self._max:
                _, old = self._sessions.popitem(last=False)
                if old.ended is not None:
                    self._dropped[old.stage, bin_of((now - old.ended) / self._scale(old))] += 1
        self._sessions.move_to_end(session)
        return entry

    def _learn(self, now: float) -> None:
        """Draw the spreads anew; the next time after as many pauses as it looked at sessions."""
        lasting = self._dropped.copy()
        for entry in self._sessions.values():
            if entry.ended is not None:
                lasting[entry.stage, bin_of(max(0.0, now - entry.ended) / self._scale(entry))] += 1
        pooled = Spread(self._ended.sum(axis=0), lasting.sum(axis=0))
        self._spreads = [
            Spread(ended, still) if ended.sum() >= LEAST else pooled
            for ended, still in zip(self._ended, lasting, strict=True)
        ]
        if self._ended.sum() > WINDOW:
            self._ended /= 2
            self._dropped /= 2
        self._due = self._seen + max(4 * LEAST, len(self._sessions))
