"""A promotion: pages that are to come up to DRAM, for a request that waits or for one that is expected.

Owns nothing; :class:`~radixtier.mover.promotions.Promotions` keeps them and moves their pages. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from radixtier.tree.residency import DOOMED, NO_PAGES, Pages, ResidencyTable, State


class Trigger(Enum):
    """Why pages come up."""

    ARRIVAL = "arrival"
    HINT = "hint"
    RETURN = "return"
    IDLE = "idle"
    PROBE = "probe"


@dataclass(eq=False)
class Promotion:
    """A path below HBM, root-side first. One that a request waits for is held until it is released."""

    pages: Pages
    cold: Pages
    """Those of ``pages`` that were not in DRAM when it began."""
    trigger: Trigger = Trigger.ARRIVAL
    rank: float = 0.0
    """Place in the order in which requests will be admitted, the first the least."""
    held: bool = False
    done: bool = False
    whole: bool = False
    """Every page is in DRAM and stays there until the promotion is dropped."""
    straight: Pages = field(default_factory=lambda: NO_PAGES)
    """Those that go straight to HBM, through landing frames."""
    tags: set[int] = field(default_factory=set)
    over: Callable[[float], None] | None = None
    """Is told how many seconds the first read took; infinity where there was none, or it failed."""

    def tell(self, seconds: float) -> None:
        """Tell whoever wants to know, once."""
        if self.over is not None:
            over, self.over = self.over, None
            over(seconds)

    def cut(self, gone: Pages) -> None:
        """Forget pages from the first of ``gone`` on: the tree freed them before they were held."""
        for name in ("pages", "cold"):
            kept = getattr(self, name)
            hit = np.flatnonzero(np.isin(kept, gone))
            if len(hit):
                setattr(self, name, kept[: hit[0]])

    def ready(self, table: ResidencyTable) -> bool:
        """Whether nothing is left to wait for: every page is in DRAM up to the first that is lost."""
        if not self.done:
            state = table.state[self.pages]
            lost = np.flatnonzero((state == State.LOST) | (table.flight[self.pages] & DOOMED != 0))
            state = state[: lost[0]] if len(lost) else state
            # Held pages leave neither DRAM nor the landing zone again, so once ready is ready for good.
            self.done = self.held and not (state == State.COLD).any()
            self.whole = self.done and len(state) == len(self.pages)
        return self.done
