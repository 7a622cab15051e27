"""Staging: what HBM is about to lose is in DRAM before it does.

Owns nothing but when it last looked. While pages are in HBM their frames are the first that DRAM gives up, so that
the two tiers hold different pages. The price is paid here: when HBM gets full, the pages that it will evict next and
that DRAM does not have are copied down once more, behind their old handles. The law: of the coldest :data:`SHARE` of
HBM, but at least two prefill chunks and at most the frames that no request holds, :data:`STEP_BYTES` per step.
Which pages HBM evicts next is SGLang's choice; the order of last use is our guess of it, and a wrong guess costs a
read from NVMe. A node that is being copied cannot be evicted, so at least half of what HBM could free is left alone.
Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from radixtier.mover.mover import Mover
from radixtier.tree.residency import HBM, Pages

SHARE = 8
"""One page of HBM in so many is kept copied, from the cold end."""

SPARE_SHARE = 8
"""One frame in so many is left to backups."""

STEP_BYTES = 128 << 20
"""Bytes copied in one step: some milliseconds of a PCIe link, beside the running batch."""

SCAN_RUNS = 64
"""Runs looked at in one step."""

PAUSE_S = 0.02
"""Until the next look, after one that left nothing to do."""


class Hbm(Protocol):
    """What is above: the cache that owns HBM."""

    @property
    def free_pages(self) -> int:
        """Pages of HBM that hold nothing."""

    @property
    def evictable_pages(self) -> int:
        """Pages of HBM that could be evicted now."""

    def copy_down(self, run: int, pages: Pages) -> int:
        """Copy pages of a run that are in HBM to DRAM once more; returns how many are on their way."""

    def copied_down(self) -> None:
        """Have the copies begin."""


class Staging:
    """Watches the free room of HBM for one cache.

    Parameters
    ----------
    mover
        Its mover.
    hbm
        The cache.
    capacity, chunk
        Of HBM and of a chunk of prefill, pages.
    clock
        Seconds.
    """

    def __init__(self, mover: Mover, hbm: Hbm, capacity: int, chunk: int, *, clock: Callable[[], float]) -> None:
        self._mover = mover
        self._hbm = hbm
        self._clock = clock
        self._margin = min(max(capacity // SHARE, 2 * chunk), capacity // 2, mover.table.n_frames // 2)
        self._step_pages = max(1, STEP_BYTES // max(1, mover.page_bytes))
        self._again_at = 0.0

    def step(self) -> None:
        """Copy some of what HBM will evict next, if it is getting full."""
        mover, hbm, table = self._mover, self._hbm, self._mover.table
        now = self._clock()
        if mover.store is None or now < self._again_at or not mover.stats.demoted + mover.stats.lost:
            return
        free = hbm.free_pages
        most = (free + hbm.evictable_pages) // 2 - table.copying
        left = most = min(self._step_pages, most)
        # HBM loses whole nodes, so whole runs are copied; but never so many pages that what was copied has to make room
        # for what is: that would go on for ever.
        most_kept = max(0, table.n_frames - table.n_frames // SPARE_SHARE - table.held)
        for run in mover.tree.leaving_hbm(min(self._margin, most_kept) - free, SCAN_RUNS):
            there = mover.tree.pages_of(run)
            there = there[table.marked(there, HBM)]
            # The end of a path leaves first.
            kept = there[max(0, len(there) - most_kept) :]
            missing = kept[~table.in_dram(kept)]
            most_kept = max(0, most_kept - len(there))
            mover.tree.stays(run)
            if left <= 0:
                break
            if len(missing):
                left -= hbm.copy_down(run, missing[-left:])
        if left < most:
            hbm.copied_down()
        if left > 0:
            self._again_at = now + PAUSE_S
