"""Mover: brings pages up for requests, writes pages down behind them, and keeps every tier's accounts.

Owns the residency table, the TierTree and what waits between the tiers. Scheduler thread only; bytes move on the
store's threads, and :meth:`Mover.tick` commits what they report. Nothing here blocks but :meth:`Mover.drain`, and
nothing raises for I/O reasons: a failed write stays in DRAM, a failed read becomes ``LOST``.

Order of frames: a backup (HBM -> DRAM) and a promotion (NVMe -> DRAM) both take free frames first and then the
coldest clean ones, which costs no I/O; write-behind keeps pages clean for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.policy.admission import AdmitAll, Verdict
from radixtier.store.jobs import JobDone, Priority
from radixtier.store.store import PageStore
from radixtier.tree.residency import DOOMED, NONE, Flags, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree
from radixtier.tree.writequeue import WriteQueue

logger = logging.getLogger(__name__)

WRITE_CHUNK_PAGES = 256
"""Pages written as one extent at most."""

ASIDE_SHARE = 64
"""At most 1/64 of all slots are put aside."""

QUIET_S = 10.0
"""Pause between two warnings about pages that could not be read."""

READ_JOB_BYTES = 8 << 20
"""Bytes of one read job: large enough for the drive, small enough that a deadline loses little."""

NO_PAGES: Pages = np.empty(0, np.int64)


@dataclass(eq=False)
class Promotion:
    """The pages one request waits for: its path below HBM, root-side first, held until it is released."""

    pages: Pages
    cold: Pages
    """Those of ``pages`` that were not in DRAM when the request came."""
    held: bool = False
    done: bool = False
    whole: bool = False
    """Every page is in DRAM and stays there until :meth:`Mover.drop`."""
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


@dataclass
class MoverStats:
    """Counters since start, in pages unless said otherwise."""

    demoted: int = 0
    lost: int = 0
    promoted: int = 0
    written: int = 0
    write_failures: int = 0
    read_failures: int = 0
    corrupt: int = 0
    backups_declined: int = 0
    refilled: int = 0


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.tree = tree
        self.store = store
        self.stats = MoverStats()
        self._aside: npt.NDArray[np.int64] = NO_PAGES
        self._quiet_until = 0.0
        self.io_done = threading.Event()
        """Set by I/O threads when :meth:`tick` has something to commit."""
        self._page_bytes = page_bytes
        self.read_job_pages = max(1, READ_JOB_BYTES // max(1, page_bytes))
        """Pages that arrive together: a request whose deadline passes takes the jobs that are over."""
        self._admission = admission or AdmitAll()
        self._max_write_pages = max_write_pages
        self._clock = clock
        self._tags = count()
        self._jobs: dict[Any, tuple[str, Pages]] = {}
        self._writes = WriteQueue()
        self._writing = 0
        self.write_backoff_s = (1.0, 60.0)
        """Pause of write-behind after a failed write: the first, and the longest after doubling."""
        self._backoff = 0.0
        self._paused_until = 0.0
        self._promotions: list[Promotion] = []
        self.slots_wanted = 0
        """Slots that write-behind could not get."""
        self.hold_limit = max(1, table.n_frames - max(1, table.n_frames // 8))
        """Frames that waiting requests may hold in all; the rest is for backups."""

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
            # Writing fails again and again, so nothing gets clean: what is warm is worth more than what is cold.
            lossy = missing > 0 and not partly and self.failing and self._backoff > self.write_backoff_s[0]
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

    def _free_slots(self, slots: npt.NDArray[Any], bad: npt.NDArray[Any] | None = None) -> None:
        """Give slots back to the store, but put those in ``bad`` aside: a device that failed there will again.

        When more than a small share would be aside the whole device fails, and setting aside helps nobody.
        """
        if not len(slots) or self.store is None:
            return
        if bad is not None and len(bad):
            failed = np.isin(slots, bad)
            self._aside = np.concatenate([self._aside, slots[failed].astype(np.int64)])
            slots = slots[~failed]
        if len(self._aside) > self.store.n_slots // ASIDE_SHARE:
            slots, self._aside = np.concatenate([slots, self._aside]), NO_PAGES
        self.store.free(slots.astype(np.int64))

    @property
    def quarantined(self) -> int:
        """Slots put aside because a read or a write failed there; a flush tries them again."""
        return len(self._aside)

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

    def write_behind(self, pages: Pages) -> None:
        """Queue pages of one run for NVMe."""
        if self.store is not None and self._admit(len(pages)):
            self._writes.append(pages)
            if self._writes.pages > 2 * self.table.n_frames:
                self._writes.compact(self._unwritten)

    def _unwritten(self, pages: Pages) -> Flags:
        """Whether each page is to be written: it may have been freed, and its handle reused, while it waited."""
        table = self.table
        wanted: Flags = (table.state[pages] == State.DIRTY) & (table.flight[pages] == 0)
        wanted &= table.run[pages] != NONE
        return wanted

    def _admit(self, n: int) -> bool:
        return self._admission.admit(n, n * self._page_bytes) is Verdict.ADMIT

    @property
    def pending_writes(self) -> bool:
        """Whether pages wait to be written."""
        return bool(self._writes)

    @property
    def failing(self) -> bool:
        """Whether write-behind pauses after a failed write."""
        return self._clock() < self._paused_until

    def _pump_writes(self) -> None:
        self.slots_wanted = 0
        if self.store is None or self.failing:
            return
        while self._writes and self._writing < self._max_write_pages:
            pages = self._writes.take(min(WRITE_CHUNK_PAGES, max(1, self.store.free_slots)))
            pages = pages[self._unwritten(pages)]
            if len(pages) and not self._write(pages):
                self._writes.push_front(pages)
                return

    def _write(self, pages: Pages) -> bool:
        assert self.store is not None
        slots = self.store.alloc(len(pages))
        if slots is None:
            self.slots_wanted = min(self._max_write_pages, len(pages) + self._writes.pages)
            return False
        self.table.begin_write(pages, slots)
        tag = self._start("write", pages)
        self._writing += len(pages)
        self.store.write(self.table.frame[pages].astype(np.int64), slots, self.table.key[pages, 0], tag)
        return True

    def _start(self, kind: str, pages: Pages) -> int:
        tag = next(self._tags)
        self._jobs[tag] = (kind, pages)
        return tag

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
            for tag in promotion.tags & self._jobs.keys():
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
        tag = self._start("read", pages)
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
        done = self.store.poll() if self.store is not None else []
        for job in done:
            self._commit(job)
        if done or self._promotions:
            self._pump_promotions()
        if self._writes:
            self._pump_writes()
        return bool(done)

    def _commit(self, job: JobDone) -> None:
        kind, pages = self._jobs.pop(job.tag)
        if kind == "write":
            self._commit_write(pages, job)
        else:
            self._commit_read(pages, job)

    def _commit_write(self, pages: Pages, job: JobDone) -> None:
        self._writing -= len(pages)
        bad = NO_PAGES if job.cancelled else self.table.slot[pages[~job.ok]].copy()
        self._free_slots(self.table.end_write(pages, job.ok, job.checksums), bad)
        self.stats.written += int(job.ok.sum())
        failed = pages[~job.ok]
        failed = failed[self.table.state[failed] == State.DIRTY]
        if not len(failed):
            self._backoff = self._backoff if self.failing else 0.0
            return
        self.stats.write_failures += len(failed)
        self._writes.append(failed)
        if self.failing:
            return
        low, high = self.write_backoff_s
        self._backoff = min(high, max(low, 2 * self._backoff))
        self._paused_until = self._clock() + self._backoff
        logger.warning(
            "radixtier: %d pages could not be written to NVMe (%s); they stay in DRAM, next try in %.0f s",
            len(failed), job.error, self._backoff,
        )  # fmt: skip

    def _commit_read(self, pages: Pages, job: JobDone) -> None:
        cancelled = np.full(len(pages), job.cancelled) & ~job.corrupt & ~job.ok
        bad = self.table.slot[pages[~job.ok & ~cancelled]].copy()
        self._free_slots(self.table.end_read(pages, job.ok, cancelled), bad)
        self.stats.promoted += int(job.ok.sum())
        self.stats.corrupt += int(job.corrupt.sum())
        self.stats.read_failures += len(bad)
        if len(bad) and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + QUIET_S
            logger.warning(
                "radixtier: %d pages on NVMe are not usable (%s) and will be recomputed; %d since the start",
                len(bad), job.error or "wrong checksum", self.stats.read_failures,
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
        return bool(self._jobs)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, committing what ends; False when ``timeout`` seconds were not enough."""
        if self.store is None or not self._jobs:
            return True
        self.store.drain(timeout)
        for job in self.store.poll():
            self._commit(job)
        return not self._jobs

    def _give_up(self) -> None:
        """Forget all work that has not started."""
        self._writes.clear()
        self.slots_wanted = 0
        for promotion in list(self._promotions):
            self.drop(promotion)

    def clear(self) -> None:
        """Forget every page on every tier; leases must be over. I/O in flight keeps its places until it ends."""
        self._give_up()
        table = self.table
        self.fill_failed(np.flatnonzero(table.state == State.FILLING))
        gone = np.flatnonzero((table.state != State.FREE) & (table.flight & DOOMED == 0))
        self.tree.clear()
        aside, self._aside = self._aside, NO_PAGES
        self._free_slots(np.concatenate([table.free(gone), aside]))

    def close(self, timeout: float) -> bool:
        """Stop all I/O within ``timeout`` seconds and close the store; False when something was still in flight."""
        if self.store is None:
            return True
        self._give_up()
        end = self._clock() + timeout
        over = self.drain(timeout)
        return self.store.close(max(0.0, end - self._clock())) and over
