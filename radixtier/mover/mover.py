"""Mover: brings pages up for requests, writes pages down behind them, and keeps every tier's accounts.

Owns the residency table, the TierTree and what waits between the tiers. Scheduler thread only; bytes move on the
store's threads, and :meth:`Mover.tick` commits what they report. Nothing here blocks but :meth:`Mover.drain`,
:meth:`Mover.clear` and :meth:`Mover.close`, and nothing raises for I/O reasons: a failed write stays in DRAM, a failed
read becomes ``LOST``.

Order of frames: a backup (HBM -> DRAM) and a promotion (NVMe -> DRAM) both take free frames first and then the
coldest clean ones, which costs no I/O; write-behind keeps pages clean for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.identity import Stretch
from radixtier.mover.jobs import Jobs
from radixtier.mover.promotion import Promotion
from radixtier.mover.scrub import Scrub
from radixtier.mover.stats import MoverStats
from radixtier.mover.writebehind import WriteBehind
from radixtier.policy.admission import AdmitAll, Verdict
from radixtier.store.jobs import JobDone, Priority
from radixtier.store.store import PageStore
from radixtier.tree.residency import DOOMED, NONE, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree
from radixtier.tree.writequeue import Piece

logger = logging.getLogger(__name__)

QUIET_S = 10.0
"""Pause between two warnings about pages that could not be read."""

HEAT_S = 60.0
"""How often the store learns which paths were used: what a restart brings back first."""

HEAT_RUNS = 256
"""Runs told of in one step."""

READ_JOB_BYTES = 8 << 20
"""Bytes of one read job: large enough for the drive, small enough that a deadline loses little."""

FLUSH_SHARE = 0.7
"""Of the time for closing, what write-behind may use up."""

NO_PAGES: Pages = np.empty(0, np.int64)


class Mover:
    """All moves below HBM for one rank.

    Parameters
    ----------
    table, tree
        The accounts this mover keeps.
    store
        The NVMe tier, or None for DRAM only.
    page_bytes
        Bytes of one page over all layers, for admission.
    max_write_pages
        Pages that may be on their way to NVMe at once.
    scrub_rate
        Bytes per second that are read in the background to find pages that went bad; 0 for none.
    """

    def __init__(
        self,
        table: ResidencyTable,
        tree: TierTree,
        store: PageStore | None,
        *,
        page_bytes: int = 0,
        admission: AdmitAll | None = None,
        max_write_pages: int = 1024,
        scrub_rate: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.tree = tree
        self.stats = MoverStats()
        self.io_done = threading.Event()
        """Set by I/O threads when :meth:`tick` has something to commit."""
        self._page_bytes = page_bytes
        self.read_job_pages = max(1, READ_JOB_BYTES // max(1, page_bytes))
        """Pages that arrive together: a request whose deadline passes takes the jobs that are over."""
        self._admission = admission or AdmitAll()
        self._clock = clock
        self._jobs = Jobs(store)
        self.writes = WriteBehind(
            table, self._jobs, self.stats, self._free_slots, max_pages=max_write_pages, clock=clock
        )
        self.scrub = Scrub(
            table, self._jobs, self.stats, self._free_slots, page_bytes=page_bytes, rate=scrub_rate, clock=clock
        )
        self._quiet_until = 0.0
        self._heat_told = clock()
        self._promotions: list[Promotion] = []
        self.hold_limit = max(1, table.n_frames - max(1, table.n_frames // 8))
        """Frames that waiting requests may hold in all; the rest is for backups."""

    @property
    def store(self) -> PageStore | None:
        """The NVMe tier, None without one."""
        return self._jobs.store

    @store.setter
    def store(self, store: PageStore) -> None:
        self._jobs.store = store

    # ---- handles ------------------------------------------------------------------------------------

    def alloc(self, n: int) -> Pages | None:
        """Take ``n`` handles with frames for a backup, demoting the coldest clean pages if need be."""
        table = self.table
        if n > table.free_handles or n > table.n_frames:
            return None
        if not self._make_room(n):
            self.stats.backups_declined += n
            return None
        return table.alloc(n)

    def _make_room(self, n: int, partly: bool = False) -> bool:
        """See that ``n`` frames are free, without I/O; all or nothing, unless ``partly`` will do."""
        table, missing = self.table, n - self.table.free_frames
        if missing > 0:
            clean = self.tree.victims(missing) if table.count[State.CLEAN] else NO_PAGES
            missing -= len(clean)
            # Nothing gets clean: what is warm is worth more than what is cold.
            lossy = missing > 0 and not partly and self.writes.hopeless
            dirty = self.tree.victims(missing, State.DIRTY) if lossy else NO_PAGES
            if missing > len(dirty) and not partly:
                return False
            table.drop_frames(clean)
            table.lose_frames(dirty)
            self.stats.demoted += len(clean)
            self.stats.lost += len(dirty)
        return table.free_frames >= n

    def free(self, pages: Pages) -> None:
        """Release handles that the tree dropped."""
        for promotion in self._promotions:
            if not promotion.held:
                promotion.cut(pages)
        self.tree.forget(pages)
        self._free_slots(self.table.free(pages))

    def _free_slots(self, slots: npt.NDArray[Any]) -> None:
        if len(slots) and self.store is not None:
            self.store.free(slots.astype(np.int64))

    def acquire(self, pages: Pages) -> None:
        """Lease pages for a transfer to or from HBM."""
        self.table.acquire(pages)

    def release(self, pages: Pages) -> None:
        """End a transfer's lease."""
        self._free_slots(self.table.release(pages))

    def filled(self, pages: Pages) -> None:
        """A backup was acknowledged: the pages are in DRAM now, and their runs can be demoted again."""
        self._free_slots(self.table.filled(pages))
        self._use_runs(pages)

    def fill_failed(self, pages: Pages) -> None:
        """A backup did not happen."""
        self._free_slots(self.table.fill_failed(pages))

    def refill(self, pages: Pages) -> bool:
        """Prepare ``LOST`` pages to be filled from HBM again."""
        if not self._make_room(len(pages)):
            return False
        self.stats.refilled += len(pages)
        return self.table.refill(pages)

    # ---- write-behind -------------------------------------------------------------------------------

    def write_behind(self, piece: Piece) -> None:
        """Queue consecutive pages of one run for NVMe."""
        if self.store is not None and len(piece) and self._admit(len(piece)):
            self.writes.add(piece)

    def _admit(self, n: int) -> bool:
        return self._admission.admit(n, n * self._page_bytes) is Verdict.ADMIT

    @property
    def slots_wanted(self) -> int:
        """Slots that write-behind could not get: only forgetting something gives it room."""
        return self.writes.slots_wanted

    # ---- restart ------------------------------------------------------------------------------------

    def restore(
        self, stretch: Stretch, slots: npt.NDArray[np.int64], checksums: npt.NDArray[np.uint64], parent: int | None
    ) -> Pages | None:
        """Take over pages that an earlier run stored, as ``COLD`` handles of a run behind the page ``parent``.

        Returns None, with the slots freed, when handles are short.
        """
        pages = self.table.adopt(slots, checksums, stretch.keys)
        if pages is None:
            self._free_slots(slots)
            return None
        self.tree.add(pages, parent, stretch.keys, used=False)
        self.stats.restored += len(pages)
        return pages

    def restore_again(
        self, pages: Pages, slots: npt.NDArray[np.int64], checksums: npt.NDArray[np.uint64]
    ) -> None:
        """Of pages that were computed again before their turn came: spare them the write if it has not begun."""
        dirty = (self.table.state[pages] == State.DIRTY) & (self.table.flight[pages] == 0)
        self.table.adopt_slots(pages[dirty], slots[dirty], checksums[dirty])
        self._free_slots(slots[~dirty])

    def _tell_heat(self, everything: bool = False) -> None:
        """Let the store know which runs were used: every :data:`HEAT_S`, :data:`HEAT_RUNS` per step."""
        touched, store = self.tree.touched, self.store
        now = self._clock()
        if store is None or not touched or (now - self._heat_told < HEAT_S and not everything):
            return
        most = len(touched) if everything else HEAT_RUNS
        for number in list(islice(touched, most)):
            used = touched.pop(number)
            slots = self.table.slot[self.tree.pages_of(number)]
            stored = slots[slots != NONE].astype(np.int64)
            if len(stored):
                store.touch(stored, used)
        if not touched:
            self._heat_told = now

    # ---- promotion ----------------------------------------------------------------------------------

    def promote(self, pages: Pages) -> Promotion:
        """Start bringing a path up to DRAM, root-side first, and hold it until :meth:`drop`.

        Parameters
        ----------
        pages
            Handles of the path below HBM, root-side first; cut to what may be held at once.
        """
        pages = pages[: self.hold_limit]
        promotion = Promotion(pages, pages[self.table.is_cold(pages)])
        self._promotions.append(promotion)
        self._pump_promotions()
        return promotion

    def drop(self, promotion: Promotion) -> None:
        """Release a path and cancel its reads that have not started: the request was admitted or is gone."""
        if promotion in self._promotions:
            self._promotions.remove(promotion)
        if self.store is not None:
            for tag in promotion.tags:
                if tag in self._jobs:
                    self.store.cancel(tag)
        if promotion.held:
            promotion.held = False
            self._free_slots(self.table.release_hold(promotion.pages))

    def _pump_promotions(self) -> None:
        """Start what frames allow, in the order of arrival: what is needed first is read first."""
        for promotion in self._promotions:
            if promotion.ready(self.table):
                continue
            if not promotion.held:
                newly = int((self.table.hold[promotion.pages] == 0).sum())
                if self.table.held + newly > self.hold_limit:
                    return
                self.table.acquire_hold(promotion.pages)
                promotion.held = True
            if not self._read(promotion):
                return

    def _read(self, promotion: Promotion) -> bool:
        """Read the cold pages of a path; False when frames are short."""
        table = self.table
        pages = promotion.pages
        pages = pages[table.is_cold(pages) & (table.flight[pages] == 0)]
        if not len(pages) or self.store is None:
            return True
        room = self._make_room(len(pages), partly=True)
        pages = pages[: table.free_frames]
        if len(pages):
            table.begin_read(pages)
        for start in range(0, len(pages), self.read_job_pages):
            self._start_read(promotion, pages[start : start + self.read_job_pages])
        return room

    def _start_read(self, promotion: Promotion, pages: Pages) -> None:
        assert self.store is not None
        table = self.table
        tag = self._jobs.start(partial(self._commit_read, pages))
        promotion.tags.add(tag)
        self.store.read(
            table.frame[pages].astype(np.int64),
            table.slot[pages].astype(np.int64),
            table.key[pages, 0],
            table.checksum[pages],
            tag,
            Priority.DEMANDED,
        )

    # ---- commits ------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Commit what the I/O threads finished and start what can start; True if anything was committed."""
        done = self._jobs.poll()
        if done or self._promotions:
            self._pump_promotions()
        if self.writes.pending:
            self.writes.pump()
        if self.store is not None:
            self.scrub.step()
            self._tell_heat()
        return done

    def _commit_read(self, pages: Pages, job: JobDone) -> None:
        cancelled = np.full(len(pages), job.cancelled) & ~job.corrupt & ~job.ok
        failed = int((~job.ok & ~cancelled).sum())
        self._free_slots(self.table.end_read(pages, job.ok, cancelled))
        self.stats.promoted += int(job.ok.sum())
        self.stats.corrupt += int(job.corrupt.sum())
        self.stats.read_failures += failed
        if failed and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + QUIET_S
            logger.warning(
                "radixtier: %d pages on NVMe are not usable (%s) and will be recomputed; %d since the start",
                failed, job.error or "wrong checksum", self.stats.read_failures,
            )  # fmt: skip
        self._use_runs(pages[job.ok])

    def _use_runs(self, pages: Pages) -> None:
        runs = self.table.run[pages]
        for number in np.unique(runs[runs != NONE]).tolist():
            self.tree.use(number)

    # ---- whole-tier operations ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether any read or write is in flight."""
        return bool(len(self._jobs))

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, committing what ends; False when ``timeout`` seconds were not enough."""
        return self._jobs.drain(timeout)

    def _give_up(self) -> None:
        """Forget all work that has not started."""
        self.writes.clear()
        for promotion in list(self._promotions):
            self.drop(promotion)

    def clear(self) -> None:
        """Forget every page on every tier; leases must be over. I/O in flight keeps its places until it ends.

        No later restart finds any of them either.
        """
        self._give_up()
        if self.store is not None:
            self.store.clear()
        table = self.table
        self.fill_failed(np.flatnonzero(table.state == State.FILLING))
        gone = np.flatnonzero((table.state != State.FREE) & (table.flight & DOOMED == 0))
        self.tree.clear()
        self._free_slots(table.free(gone))

    def close(self, timeout: float) -> bool:
        """Store what is dirty, roots first, stop all I/O, and close the store, within ``timeout`` seconds.

        Returns False when something was still in flight.
        """
        if self.store is None:
            return True
        end = time.monotonic() + timeout
        for promotion in list(self._promotions):
            self.drop(promotion)
        self.writes.roots_first()
        self._flush(time.monotonic() + FLUSH_SHARE * timeout)
        self._give_up()
        over = self.drain(max(0.0, end - time.monotonic()) / 2)
        self._tell_heat(everything=True)
        return self.store.close(max(0.0, end - time.monotonic())) and over

    def _flush(self, end: float) -> None:
        """Write what waits until it is done, fails, finds no room, or ``end`` has come."""
        assert self.store is not None
        while self.writes.pending and time.monotonic() < end:
            self._jobs.poll()
            self.writes.pump()
            if not self.store.writable or (self.writes.slots_wanted and not self.busy):
                return
            self.io_done.wait(0.01)
            self.io_done.clear()
