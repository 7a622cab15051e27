"""``auto``: everything while there is room; once there is none, what is used again; a share of the paths when that
thrashes.

Three laws, each taking over where the one before stops paying:

1. *Room.* While more than :data:`FULL` of NVMe is free everything is admitted: an empty slot costs no hit. From there
   until more than :data:`ROOMY` is free again (the load shrank, the store was cleared) the next two hold.
2. *Reuse.* As `second-hit`.
3. *Share.* When what is used again does not fit either, every write pushes out pages that come back, and none stays
   long enough to serve. So the pages that are missed although they were on NVMe before are weighed against the pages
   that NVMe serves: whenever the two together make :data:`STEP` of its capacity, the share of the paths that are
   admitted at all falls by a fifth if missed ones are more than :data:`TOLERATED` of the served, else it grows by a
   quarter. A path's lead key draws, so a share of the paths is kept whole rather than a part of each; paths that are
   out stay out while the share falls.

Where it loses: once the disk is full, pages that return once, after DRAM forgot them, as with `second-hit`, even if
what fills the disk is dead (conversation trace at 5,000 / 10,000 / 40,000 blocks, LRU: 0.323 of the blocks found
against 0.351 with `all`, for 2.6 times fewer writes, 4.7 times since the disk was full). Where nearly every page
comes back and the disk almost holds what is in use, it neither filters nor thrashes (agent sessions, same sizes:
0.850 against 0.860, 1.2 times fewer writes): only a write budget saves the drive there, at the price of hits.
"""

from __future__ import annotations

from radixtier.policy.admission.ghosts import Ghosts
from radixtier.policy.admission.second_hit import SecondHit
from radixtier.policy.admission.verdict import Candidate, Keys, Verdict
from radixtier.policy.draw import draw

FULL = 0.02
"""Free share of NVMe at which filtering begins."""

ROOMY = 0.10
"""Free share at which it ends."""

STEP = 0.25
"""Pages served or missed between two corrections of the share, in capacities of NVMe."""

TOLERATED = 0.5
"""Missed pages per served page beyond which it thrashes."""

DOWN, UP = 0.8, 1.25
"""Factors of the share for one correction."""

LEAST_SHARE = 1 / 64


class Auto(SecondHit):
    """Admit by room, reuse and share.

    Parameters
    ----------
    capacity_pages
        Pages of NVMe.
    """

    name = "auto"

    def __init__(self, capacity_pages: int) -> None:
        super().__init__(capacity_pages)
        self._evicted = Ghosts(capacity_pages)
        self._step = max(64, int(STEP * capacity_pages))
        self._served = self._missed = 0
        self.filtering = False
        """Whether the disk is full and laws 2 and 3 hold."""
        self.share = 1.0
        """Part of the paths that may be admitted then."""

    def admit(self, candidate: Candidate) -> Verdict:
        """Decide by room, then by share, then by reuse."""
        if candidate.room <= FULL:
            self.filtering = True
        elif candidate.room >= ROOMY:
            self.filtering = False
        if not self.filtering:
            return Verdict.ADMIT
        if not candidate.needed and draw(candidate.lead) >= self.share:
            return Verdict.REJECT
        return super().admit(candidate)

    def evicted(self, keys: Keys, now: float) -> None:
        """Remember what was on NVMe."""
        self._evicted.note(keys)

    def wanted(self, keys: Keys, now: float) -> None:
        """Count what is missed and was on NVMe."""
        self._missed += self._evicted.recall(keys)
        self._steer()

    def served(self, pages: int, now: float) -> None:
        """Count what NVMe is good for."""
        self._served += pages
        self._steer()

    def _steer(self) -> None:
        if self._served + self._missed < self._step:
            return
        thrashing = self._missed > TOLERATED * self._served
        self.share = max(LEAST_SHARE, self.share * DOWN) if thrashing else min(1.0, self.share * UP)
        self._served = self._missed = 0
