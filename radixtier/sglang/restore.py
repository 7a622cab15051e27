"""After a restart: what an earlier run stored goes back into SGLang's tree, while the server serves.

Owns the reader of the journals until everything is back. The rows come parents first and hottest first; each becomes
a node without a copy in HBM, whose pages are on NVMe only. Of one rank; several go by
:mod:`radixtier.sglang.restore_ranks`. Scheduler thread only; reading and checking the rows is done by a thread of the
store.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from radixtier.sglang.restore_insert import Inserter
from radixtier.store.restorer import Restorer

logger = logging.getLogger(__name__)

FIRST_S = 2.0
"""How long a server restores before it takes requests: the hottest paths are there for the first of them."""

STEP_S = 0.005
"""How long it restores in one step of a scheduler that has work."""

IDLE_STEP_S = 0.1
"""And in one step of a scheduler that has none, which takes such steps only a few times per second."""


class Restoration:
    """Puts back what ``restorer`` reads.

    Parameters
    ----------
    cache
        The cache to fill.
    """

    def __init__(self, cache: Any, restorer: Restorer) -> None:
        self._inserter = Inserter(cache)
        self._restorer = restorer
        self._mover = cache.mover
        self._warmest: list[Any] | None = None
        self._cancelled = False
        self._begun = time.monotonic()
        self.over = False

    def first(self) -> None:
        """Restore for :data:`FIRST_S` at most."""
        end = self._begun + FIRST_S
        while not self.over and (left := end - time.monotonic()) > 0:
            self.step(left)
            if not self.over:
                self._restorer.wait(left)

    def step(self, seconds: float) -> None:
        """Restore for about so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.over:
            done = self._restorer.done
            for slots in self._restorer.take_dropped():
                self._mover.store.free(slots)
            if self._cancelled:
                self.over = done
                return
            if rows := self._restorer.take(1):
                self._inserter.insert(rows[0])
            elif not done or not self._touch_next():
                return

    def _touch_next(self) -> bool:
        """Once every row was taken, put the tree's order of last uses right, a path at a time; False at the end."""
        if self._warmest is None:
            self._warmest = self._restorer.warmest
        if not self._warmest:
            self._end()
            return False
        space, tokens = self._warmest.pop()
        self._inserter.touch(space, tokens)
        return True

    def _end(self) -> None:
        self.over = True
        if self._restorer.rows_total:
            logger.info(
                "radixtier: %d of %d stored pages are back, %.1f s after the start of the cache",
                self._mover.stats.restored, self._restorer.pages_total, time.monotonic() - self._begun,
            )  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether it is over, and needs no step any more."""
        return self.over

    @property
    def reading(self) -> bool:
        """Whether the journals are still being read."""
        return not self._restorer.done

    def abandon(self) -> None:
        """Stop; what is not back yet stays on record for the next restart."""
        self.over = True
        self._restorer.cancel()

    def cancel(self) -> None:
        """Give up what is not back yet; its slots are given back in the next steps."""
        if not self._cancelled and not self.over:
            self._cancelled = True
            self._restorer.cancel()
            self.step(0.001)
