"""How much of a scheduler's step may go to what can wait: pages of a listing, what a drain looks through.

Owns that law: a small share of the time since the step before, but at least :data:`LEAST_S`; in a step of a scheduler
that has nothing to do, :data:`IDLE_S`. Steps are short and many under load, seconds long on a slow machine, and one per
second where an idle scheduler sleeps: a fixed piece of work per step would take minutes there. Scheduler thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_S = 0.0025
SHARE = 0.03
IDLE_S = 0.05
"""Also the most: a request that comes just then waits for so long."""


class Pace:
    """Knows when the steps of one scheduler are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def step(self, idle: bool) -> float:
        """Return the seconds that this step has for what can wait; call it once per step."""
        now = self._clock()
        since, self._last = now - self._last, now
        return IDLE_S if idle else min(IDLE_S, max(LEAST_S, SHARE * since))
