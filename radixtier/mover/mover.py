"""Mover: brings pages up for requests, writes pages down behind them, and keeps every tier's accounts.

Owns the residency table, the TierTree and what waits between the tiers. Scheduler thread only; bytes move on the
store's threads, and :meth:`Mover.tick` commits what they report. Nothing here blocks but :meth:`Mover.drain`,
:meth:`Mover.clear` and :meth:`Mover.close`, and nothing raises for I/O reasons: a failed write stays in DRAM, a failed
read becomes ``LOST``.

Order of frames: a backup (HBM -> DRAM) and a promotion (NVMe -> DRAM) both take free frames first, then those of
pages that are in HBM as well, and then the coldest, which costs no I/O: write-behind keeps pages clean for that, and
a page that may not be written is given up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.identity import Stretch
from radixtier.mover.jobs import Jobs
from radixtier.mover.parking import Parking
from radixtier.mover.promotions import Promotions
from radixtier.mover.scrub import Scrub
from radixtier.mover.stats import MoverStats
from radixtier.mover.writebehind import WriteBehind
from radixtier.policy.admission import Admission, AdmitAll
from radixtier.policy.bandwidth import ReadRate
from radixtier.store.store import PageStore
from radixtier.tree.residency import COPY, DOOMED, HBM, NO_PAGES, NONE, Flags, Pages, ResidencyTable, State, Sums
from radixtier.tree.tiertree import TierTree, Warmth
from radixtier.tree.writequeue import Piece

logger = logging.getLogger(__name__)

EVICT_SHARE = 64
"""SGLang's leaf eviction scans all leaves, so at least 1/64 of the handles goes at once."""

HEAT_S = 60.0
"""How often the store learns which paths were used: what a restart brings back first."""

HEAT_RUNS = 256
"""Runs told of at a stretch, and in one step that has no time to spare."""

FLUSH_SHARE = 0.7
"""Of the time for closing, what write-behind may use up."""


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
        admission: Admission | None = None,
        max_write_pages: int = 1024,
        scrub_rate: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.tree = tree
        self.stats = MoverStats()
        self.io_done = threading.Event()
        """Set by I/O threads when :meth:`tick` has something to commit."""
        self.page_bytes = page_bytes
        self._clock = clock
        self._jobs = Jobs(store)
        self.rate = ReadRate()
        """What the drives have been seen to do."""
        self.writes = WriteBehind(
            tree, self._jobs, self.stats, self._free_slots, rate=self.rate, max_pages=max_write_pages, clock=clock
        )
        self.parking = Parking(
            tree, admission or AdmitAll(), self.stats, page_bytes=page_bytes, room=self._slots_free,
            still_dirty=self.writes.unwritten, enqueue=self.writes.add, clock=clock,
        )  # fmt: skip
        self.promotions = Promotions(
            tree, self._jobs, self.stats, self.rate, page_bytes=page_bytes, make_room=self._make_some_room,
            free_slots=self._free_slots, clock=clock,
        )  # fmt: skip
        self.writes.written, self.writes.dropped = self.parking.written, self.parking.unwritten
        self.scrub = Scrub(
            table, self._jobs, self.stats, self._free_slots, page_bytes=page_bytes, rate=scrub_rate, clock=clock
        )
        self._heat_told = clock()
        self.leaving = False
        """Whether NVMe is being given up, or has been: see :mod:`radixtier.mover.draining`."""

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

    def _make_room(self, n: int) -> bool:
        """See that ``n`` frames are free, without I/O; nothing leaves DRAM where that is not possible."""
        table, missing = self.table, n - self.table.free_frames
        if missing > 0:
            leaving = self._victims(missing)
            missing -= len(leaving)
            # Nothing gets clean: what is warm is worth more than what is cold.
            lossy = missing > 0 and self.writes.hopeless
            dirty = self.tree.dirty_victims(missing) if lossy else NO_PAGES
            if missing > len(dirty):
                return False
            self.give_up_frames(leaving)
            self.give_up_frames(dirty)
        return table.free_frames >= n

    def _make_some_room(self, n: int, limit: Warmth | None) -> bool:
        """Get as near to ``n`` free frames as can be without I/O, from pages that are less warm than ``limit``."""
        missing = n - self.table.free_frames
        if missing > 0:
            self.give_up_frames(self._victims(missing, limit))
        return self.table.free_frames >= n

    def _victims(self, need: int, limit: Warmth | None = None) -> Pages:
        table = self.table
        if not table.count[State.CLEAN] and not len(self.parking):
            return NO_PAGES
        return self.tree.victims(need, limit)

    def give_up_frames(self, pages: Pages) -> None:
        """Drop the frames of pages that nobody uses; the bytes of those that are not on NVMe are lost."""
        if not len(pages):
            return
        clean = self.table.state[pages] == State.CLEAN
        self.promotions.left(pages)
        self.tree.left_dram(pages)
        self.table.drop_frames(pages[clean])
        self.stats.demoted += int(clean.sum())
        self.tree.note(pages[clean], "left DRAM", self.tree.policy)
        if not clean.all():
            lost = pages[~clean]
            rule = "DRAM needed the room and they were not on NVMe"
            self.tree.note(lost, "lost", rule)
            self.tree.gave_up(lost, rule)
            self.parking.lost(lost)
            self.table.lose_frames(lost)
            self.stats.lost += len(lost)

    def _slots_free(self) -> float:
        store = self.store
        return 0.0 if store is None else sum(store.room()) / max(1, store.n_slots)

    def free(self, pages: Pages) -> None:
        """Release handles that the tree dropped."""
        self.promotions.cut(pages)
        self.parking.forgotten(pages[self.table.run[pages] != NONE])
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
        copied = pages[(self.table.flight[pages] & COPY) != 0]
        self._free_slots(self.table.filled(pages))
        self._free_slots(self.table.end_copy(copied, ok=True))
        self.stats.staged += len(copied)
        for run in self.tree.runs_of(copied):
            self.tree.enter(run)
        for run in self.tree.runs_of(pages[~np.isin(pages, copied)]):
            self.tree.use(run)

    def fill_failed(self, pages: Pages) -> None:
        """A backup did not happen."""
        self._free_slots(self.table.fill_failed(pages))
        self._free_slots(self.table.end_copy(pages, ok=False))

    def refill(self, pages: Pages) -> Pages:
        """Prepare pages that DRAM does not have to be filled from HBM: ``LOST`` ones, and ``COLD`` ones nobody uses.

        Returns those that found a frame, root-side first.
        """
        table = self.table
        lost = table.state[pages] == State.LOST
        pages = pages[lost | table.unused(pages, State.COLD)]
        if not len(pages) or not self._make_room(len(pages)):
            return NO_PAGES
        lost = table.state[pages] == State.LOST
        self.stats.refilled += int(lost.sum())
        table.refill(pages[lost])
        table.begin_copy(pages[~lost])
        return pages

    def reached_hbm(self, upwards: Iterable[Pages | None]) -> None:
        """Learn that HBM has a path, some of which may have been computed that is on NVMe.

        ``upwards`` has the pages of its nodes, the deepest first, None for a node without a backup.
        """
        for pages in upwards:
            if pages is None:
                continue
            if self.table.mark[pages[-1]] & HBM:
                return
            if self.table.run[pages[-1]] != NONE:
                self.tree.came_to_hbm(pages)

    def lost_of(self, pages: Pages) -> Flags:
        """Tell which pages of a path that HBM has are lost below it; those it had not before were computed again."""
        lost: Flags = self.table.state[pages] == State.LOST
        self.parking.computed(pages[lost & ~self.table.marked(pages, HBM)])
        return lost

    def left_hbm(self, pages: Pages) -> None:
        """HBM does not have pages any more; those that are lost below it are nowhere now."""
        self.tree.left_hbm(pages)
        self.parking.nowhere(pages[self.table.state[pages] == State.LOST])

    # ---- write-behind -------------------------------------------------------------------------------

    def write_behind(self, piece: Piece) -> None:
        """Queue consecutive pages of one run for NVMe, if they may be written."""
        if self.store is not None and len(piece):
            self.parking.ask(piece)

    @property
    def slots_wanted(self) -> int:
        """Slots that write-behind could not get: only forgetting something gives it room."""
        return self.writes.slots_wanted

    @property
    def to_forget(self) -> int:
        """Pages that the tree is to forget at once so that write-behind goes on, 0 for none."""
        wanted = 0 if self.leaving else self.slots_wanted
        return max(wanted, self.table.n_handles // EVICT_SHARE) if wanted else 0

    def used_by_request(self, page: int) -> None:
        """A request uses the path that ends with ``page``: call it once per request."""
        number = self.tree.run_of(page)
        if number is not None:
            self.tree.use(number, request=True)
            path = self.tree.path(number)
            self.promotions.used(path)
            self.parking.used(path)

    # ---- restart ------------------------------------------------------------------------------------

    def restore(
        self,
        stretch: Stretch,
        slots: npt.NDArray[np.int64],
        checksums: Sums,
        parent: int | None,
        weighted: Sums | None = None,
    ) -> Pages | None:
        """Take over pages that an earlier run stored, as ``COLD`` handles of a run behind the page ``parent``.

        Returns None, with the slots freed, when handles are short.
        """
        pages = self.table.adopt(slots, checksums, stretch.keys, weighted)
        if pages is None:
            self._free_slots(slots)
            return None
        self.tree.add(pages, parent, stretch.keys, used=False)
        self.stats.restored += len(pages)
        return pages

    def restore_again(
        self, pages: Pages, slots: npt.NDArray[np.int64], checksums: Sums, weighted: Sums | None = None
    ) -> None:
        """Of pages that were computed again before their turn came: spare them the write if it has not begun."""
        dirty = (self.table.state[pages] == State.DIRTY) & (self.table.flight[pages] == 0)
        weighted = None if weighted is None else weighted[dirty]
        self.table.adopt_slots(pages[dirty], slots[dirty], checksums[dirty], weighted)
        self._free_slots(slots[~dirty])

    def _tell_heat(self, seconds: float) -> None:
        """Let the store know which runs were used: every :data:`HEAT_S`, some of them, as many as there is time for."""
        touched, store = self.tree.touched, self.store
        now = self._clock()
        if store is None or not touched or now - self._heat_told < HEAT_S:
            return
        # Of this rank alone: the agreed time stands still within a step.
        end = time.perf_counter() + seconds
        while True:
            for number in list(islice(touched, HEAT_RUNS)):
                self._tell_used(store, number, touched.pop(number))
            if not touched:
                self._heat_told = now
                return
            if time.perf_counter() >= end:
                return

    def _tell_used(self, store: PageStore, run: int, used: float) -> None:
        slots = self.table.slot[self.tree.pages_of(run)]
        stored = slots[slots >= 0].astype(np.int64)
        if len(stored):
            store.touch(stored, used)

    # ---- commits ------------------------------------------------------------------------------------

    def tick(self, spare_s: float = 0.0) -> bool:
        """Commit what the I/O threads finished and start what can start; True if anything was committed.

        ``spare_s`` is the time in seconds for what could wait as well.
        """
        done = self._jobs.poll()
        self.promotions.look()
        if self.promotions:
            self.promotions.pump()
        self.parking.step()
        if self.writes.pending:
            self.writes.pump()
        if self.store is not None:
            if not self.leaving:
                self.scrub.step()
            self._tell_heat(spare_s)
        return done

    # ---- giving NVMe up -----------------------------------------------------------------------------

    def leave_nvme(self, store: PageStore, admission: Admission) -> None:
        """Read nothing from NVMe any more, and write only what waits for that; ``store`` stands for the one it had."""
        self.leaving = True
        self.promotions.close()
        self.writes.roots_first()
        self.store, self.parking.admission = store, admission
        self._heat_told = -math.inf

    @property
    def heat_told(self) -> bool:
        """Whether the store knows of every use up to :meth:`leave_nvme`."""
        return not self.tree.touched or math.isfinite(self._heat_told)

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
        self.parking.clear()
        self.promotions.drop_all()

    def clear(self) -> None:
        """Forget every page on every tier; leases must be over. I/O in flight keeps its places until it ends.

        No later restart finds any of them either.
        """
        self._give_up()
        if self.store is not None:
            self.store.clear()
        table = self.table
        self.fill_failed(np.flatnonzero((table.state == State.FILLING) | (table.flight & COPY != 0)))
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
        self.promotions.drop_all()
        self.writes.roots_first()
        self._flush(time.monotonic() + FLUSH_SHARE * timeout)
        self._give_up()
        over = self.drain(max(0.0, end - time.monotonic()) / 2)
        self._heat_told = -math.inf
        self._tell_heat(math.inf)
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
