"""A promotion: the pages one request waits for.

Owns nothing; the mover keeps the promotions and moves their pages. Scheduler thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from radixtier.tree.residency import DOOMED, Pages, ResidencyTable, State


@dataclass(eq=False)
class Promotion:
    """A request's path below HBM, root-side first, held until it is released."""

    pages: Pages
    cold: Pages
    """Those of ``pages`` that were not in DRAM when the request came."""
    held: bool = False
    done: bool = False
    whole: bool = False
    """Every page is in DRAM and stays there until the promotion is dropped."""
    tags: set[int] = field(default_factory=set)

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
            # Held pages do not leave DRAM again, so once ready is ready for good.
            self.done = self.held and not (state == State.COLD).any()
            self.whole = self.done and len(state) == len(self.pages)
        return self.done
