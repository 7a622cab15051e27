"""Pages that go straight from NVMe to HBM, through landing frames in GPU memory instead of frames of DRAM.

Owns the choice of the way for each promotion, and whether that way is taken at all. Invariants: a page is read to a
landing frame only if its weighted sum is known, and only for a request that holds it; a read that fails there leaves
the page on NVMe, from where it comes through DRAM. Scheduler thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from radixtier.mover.promotion import Promotion
from radixtier.mover.stats import MoverStats
from radixtier.policy.bandwidth import ReadRate
from radixtier.policy.landing import Segment, Trust, straight
from radixtier.store.jobs import JobDone
from radixtier.tree.residency import COPY, NO_PAGES, READ, Flags, Pages
from radixtier.tree.tiertree import TierTree

logger = logging.getLogger(__name__)


class Landings:
    """The landing zone of one mover; with no landing frames, nothing ever goes there.

    Parameters
    ----------
    through
        What reads to DRAM were seen to do; ``rate`` is the same of reads that go straight.
    """

    def __init__(
        self, tree: TierTree, stats: MoverStats, through: ReadRate, *, page_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._tree = tree
        self._table = tree.table
        self._stats = stats
        self._through = through
        self._page_bytes = page_bytes
        self._clock = clock
        self._trust = Trust()
        self.rate = ReadRate()

    @property
    def given_up(self) -> bool:
        """Whether reads failed so often that nothing lands any more."""
        return self._trust.given_up

    def choose(self, pages: Pages) -> Pages:
        """Return those of a path's pages that are to go straight to HBM."""
        table = self._table
        if not table.free_landing or self.given_up:
            return NO_PAGES
        # What is being verified is read as soon as that is over; what comes to DRAM already stays there.
        elsewhere = table.flight[pages] & (READ | COPY) != 0
        cold = np.flatnonzero(table.is_cold(pages) & ~elsewhere & (table.weighted[pages] != 0))
        if not len(cold):
            return NO_PAGES
        chosen = straight(self._segments(pages), cold, table.free_landing, lambda n: self._has_room(n, pages))
        nbytes = len(chosen) * self._page_bytes
        if not len(chosen) or not self._trust.worth(nbytes, self.rate, self._through, self._clock()):
            return NO_PAGES
        return pages[chosen]

    def _segments(self, pages: Pages) -> list[Segment]:
        numbers = self._table.run[pages]
        starts = np.append(0, np.flatnonzero(np.diff(numbers)) + 1)
        lengths = np.diff(np.append(starts, len(pages))).tolist()
        runs = numbers[starts].tolist()
        return [Segment(n, self._wanted_again(run)) for n, run in zip(lengths, runs, strict=True)]

    def _wanted_again(self, number: int) -> bool:
        run, pinned = self._tree.runs.get(number), self._tree.pinned
        if run is None:
            return False
        return run.uses > 1 or run.children > 1 or (pinned is not None and pinned(number) > 0)

    def _has_room(self, n: int, pages: Pages) -> bool:
        """Whether DRAM has ``n`` frames that are free or hold what is less warm than the end of the path."""
        missing = n - self._table.free_frames
        run = self._tree.run_of(int(pages[-1]))
        if missing <= 0 or run is None:
            return missing <= 0
        return len(self._tree.victims(missing, self._tree.runs[run].warmth)) >= missing

    def leading(self, promotion: Promotion, pages: Pages) -> tuple[int, bool]:
        """Return how many leading pages are to be read the same way, and whether that is straight up."""
        chosen = np.isin(pages, promotion.straight)
        free = 0 if self.given_up else self._table.free_landing
        if chosen[0] and free:
            self._trust.taken(self._clock())
            return min(free, _same(chosen)), True
        if chosen[0]:
            self._stats.landing_full += (n := _same(chosen))
            promotion.straight = np.setdiff1d(promotion.straight, pages[:n])
            return n, False
        return _same(chosen), False

    def stopgap(self, pages: Pages) -> int:
        """How many leading pages may land although they belong in DRAM, since that has no frame at all."""
        if self.given_up or not self._table.free_landing:
            return 0
        known = self._table.weighted[pages] != 0
        return min(self._table.free_landing, _same(known)) if known[0] else 0

    def ended(self, promotion: Promotion, pages: Pages, job: JobDone) -> None:
        """A read to landing frames is over: learn from it, and have the rest come through DRAM if it failed."""
        failed = ~job.ok & ~job.corrupt
        self._stats.landed += int(job.ok.sum())
        if job.cancelled or not failed.any():
            if not job.cancelled:
                self._trust.worked()
            return
        promotion.straight = NO_PAGES
        self._stats.landing_failed += int(failed.sum())
        if self._trust.failed():
            logger.warning(
                "radixtier: reads straight to GPU memory fail (%s): everything goes through DRAM from now on. "
                "Run `radixtier doctor` to see what works.",
                job.error,
            )


def _same(flags: Flags) -> int:
    """Number of leading flags that are like the first."""
    other = np.flatnonzero(flags != flags[0])
    return int(other[0]) if len(other) else len(flags)
