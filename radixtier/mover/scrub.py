"""Scrubbing: reads stored pages in the background, a few at a time, and finds the ones that went bad.

Owns the place in the table where it is. The law: at most ``rate`` bytes per second, only while nothing else is in
flight, one window of :data:`WINDOW_BYTES` at a time; a pass over all handles starts over at the end. Only pages without
a copy in DRAM are read. A bad one is ``LOST`` from then on, and its slot is tested by the store before anybody gets it.
Scheduler thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from radixtier.mover.jobs import Jobs
from radixtier.mover.stats import MoverStats
from radixtier.store.jobs import JobDone
from radixtier.tree.residency import Pages, ResidencyTable, Slots, State

logger = logging.getLogger(__name__)

WINDOW_BYTES = 4 << 20
"""Read at once at most, and what a pause may save up: a promotion of these very pages waits for it."""

SCAN_HANDLES = 65536
"""Handles looked at in one step."""


class Scrub:
    """Walks over the table; ``rate`` in bytes per second, 0 for never."""

    def __init__(
        self,
        table: ResidencyTable,
        jobs: Jobs,
        stats: MoverStats,
        free_slots: Callable[[Slots], None],
        *,
        page_bytes: int,
        rate: int,
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._jobs = jobs
        self._stats = stats
        self._free_slots = free_slots
        self._page_bytes = max(1, page_bytes)
        self._rate = rate
        self._clock = clock
        self._last = clock()
        self._budget = 0.0
        self._at = 0

    def step(self) -> None:
        """Start the next window if there is time and budget for it."""
        now = self._clock()
        window = max(WINDOW_BYTES, self._page_bytes)
        self._budget = min(window, self._budget + self._rate * (now - self._last))
        self._last = now
        # A window that is not full is worth a transfer only when the rate allows no more.
        if not self._table.count[State.COLD]:
            self._budget = 0.0
        elif len(self._jobs) or self._budget < min(window, max(self._page_bytes, self._rate)):
            return
        elif len(pages := self._next(int(self._budget // self._page_bytes))):
            self._start(pages)
        else:
            self._budget = 0.0  # looking costs time, too

    def _next(self, most: int) -> Pages:
        table = self._table
        here = np.arange(self._at, min(self._at + SCAN_HANDLES, table.n_handles))
        pages: Pages = here[table.is_cold(here) & (table.flight[here] == 0)][:most]
        self._at = int(pages[-1]) + 1 if len(pages) == most else int(here[-1]) + 1
        if self._at >= table.n_handles:
            self._at = 0
        return pages

    def _start(self, pages: Pages) -> None:
        table, store = self._table, self._jobs.store
        assert store is not None
        self._budget -= len(pages) * self._page_bytes
        # Not in the order of their slots, which each rank has others of: what became of a page goes by its place here.
        table.begin_verify(pages)
        tag = self._jobs.start(lambda job: self._commit(pages, job))
        store.verify(table.slot[pages].astype("i8"), table.key[pages, 0], table.checksum[pages], tag)

    def _commit(self, pages: Pages, job: JobDone) -> None:
        bad = job.corrupt if job.cancelled else ~job.ok
        n = int(bad.sum())
        self._stats.scrubbed += int(job.ok.sum())
        self._stats.scrubbed_bad += n
        if n:
            logger.warning("radixtier: scrubbing found %d bad pages on NVMe (%s)", n, job.error or "wrong checksum")
        self._free_slots(self._table.end_verify(pages, bad))
