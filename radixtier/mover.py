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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.policy.admission import AdmitAll, Verdict
from radixtier.store.jobs import JobDone, Priority
from radixtier.store.store import PageStore
from radixtier.tree.residency import DOOMED, NONE, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree

logger = logging.getLogger(__name__)

WRITE_CHUNK_PAGES = 256
"""Pages written as one extent at most."""

WRITE_BACKOFF_S = (1.0, 60.0)
"""Pause of write-behind after a failed write: first, and longest after doubling."""


@dataclass(eq=False)
class Promotion:
    """The pages one request waits for: its path below HBM, root-side first, held until it is released."""

    pages: Pages
    cold: Pages
    """Those of ``pages`` that were not in DRAM when the request came."""
    held: bool = False
    tags: set[int] = field(default_factory=set)

    def ready(self, table: ResidencyTable) -> bool:
        """Whether nothing is left to wait for: every page is in DRAM up to the first that is lost."""
        state = table.state[self.pages]
        lost = np.flatnonzero((state == State.LOST) | (table.flight[self.pages] & DOOMED != 0))
        state = state[: lost[0]] if len(lost) else state
        return not (state == State.COLD).any()


@dataclass
class MoverStats:
    """Counters since start, in pages unless said otherwise."""

    demoted: int = 0
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
        self.io_done = threading.Event()
        """Set by I/O threads when :meth:`tick` has something to commit."""
        self._page_bytes = page_bytes
        self._admission = admission or AdmitAll()
        self._max_write_pages = max_write_pages
        self._clock = clock
        self._tags = count()
        self._jobs: dict[Any, tuple[str, Pages]] = {}
        self._writes: deque[Pages] = deque()
        self._writing = 0
        self._backoff = 0.0
        self._paused_until = 0.0
        self._promotions: list[Promotion] = []
        self.frames_wanted = 0
        """Frames that the last backup could not get."""
        self.slots_wanted = 0
        """Slots that write-behind could not get."""
        self.hold_limit = max(1, table.n_frames - max(1, table.n_frames // 8))
        """Frames that waiting requests may hold in all; the rest is for backups."""

    # ---- handles ------------------------------------------------------------------------------------

    def alloc(self, n: int) -> Pages | None:
        """Take ``n`` handles with frames for a backup, demoting the coldest clean pages if need be."""
        if n > self.table.free_handles:
            return None
        if self.table.free_frames + int(self.table.count[State.CLEAN]) < n or not self._make_room(n):
            self.frames_wanted = max(self.frames_wanted, n - self.table.free_frames)
            self.stats.backups_declined += n
            return None
        return self.table.alloc(n)

    def _make_room(self, n: int) -> bool:
        """See that ``n`` frames are free, without I/O; where that is impossible, free what can be."""
        missing = n - self.table.free_frames
        if missing > 0 and self.table.count[State.CLEAN]:
            victims = self.tree.victims(missing)
            self.table.drop_frames(victims)
            self.stats.demoted += len(victims)
        return self.table.free_frames >= n

    def free(self, pages: Pages) -> None:
        """Release handles that the tree dropped."""
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
        """A backup was acknowledged: the pages are in DRAM now and wait to be written."""
        self._free_slots(self.table.filled(pages))

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

    def _admit(self, n: int) -> bool:
        return self._admission.admit(n, n * self._page_bytes) is Verdict.ADMIT

    @property
    def cannot_clean(self) -> bool:
        """Whether DRAM can only be emptied by forgetting: no store, no slots, or a store that fails."""
        return self.store is None or self.slots_wanted > 0 or self._clock() < self._paused_until

    def _pump_writes(self) -> None:
        if self.store is None or self._clock() < self._paused_until:
            return
        while self._writes and self._writing < self._max_write_pages:
            pages = self._writes.popleft()
            pages, rest = pages[:WRITE_CHUNK_PAGES], pages[WRITE_CHUNK_PAGES:]
            pages = pages[(self.table.state[pages] == State.DIRTY) & (self.table.flight[pages] == 0)]
            if len(rest):
                self._writes.appendleft(rest)
            if len(pages) and not self._write(pages):
                self._writes.appendleft(pages)
                return
        self.slots_wanted = 0

    def _write(self, pages: Pages) -> bool:
        assert self.store is not None
        slots = self.store.alloc(len(pages))
        if slots is None:
            self.slots_wanted = len(pages)
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
        promotion = Promotion(pages, pages[self.table.state[pages] == State.COLD])
        self._promotions.append(promotion)
        self._pump_promotions()
        return promotion

    def stop(self, promotion: Promotion) -> None:
        """Start no more reads for a path and cancel those that wait; what has arrived stays held."""
        if promotion in self._promotions:
            self._promotions.remove(promotion)
        if self.store is not None:
            for tag in promotion.tags & self._jobs.keys():
                self.store.cancel(tag)

    def drop(self, promotion: Promotion) -> None:
        """Stop, and release the path: the request was admitted or is gone."""
        self.stop(promotion)
        if promotion.held:
            promotion.held = False
            self._free_slots(self.table.release_hold(promotion.pages))

    def _pump_promotions(self) -> None:
        """Start what frames allow, in the order of arrival: what is needed first is read first."""
        for promotion in self._promotions:
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
        pages = promotion.cold
        pages = pages[(table.state[pages] == State.COLD) & (table.flight[pages] == 0)]
        if not len(pages) or self.store is None:
            return True
        room = self._make_room(len(pages))
        pages = pages[: table.free_frames]
        if len(pages):
            assert table.begin_read(pages)
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
        return room

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
        self._free_slots(self.table.end_write(pages, job.ok, job.checksums))
        self.stats.written += int(job.ok.sum())
        if job.ok.all():
            self._backoff = 0.0
            return
        failed = pages[~job.ok]
        failed = failed[self.table.state[failed] == State.DIRTY]
        self.stats.write_failures += len(failed)
        self._writes.appendleft(failed)
        low, high = WRITE_BACKOFF_S
        self._backoff = min(high, max(low, 2 * self._backoff))
        self._paused_until = self._clock() + self._backoff
        logger.warning(
            "radixtier: %d pages could not be written to NVMe (%s); they stay in DRAM, next try in %.0f s",
            len(failed), job.error, self._backoff,
        )  # fmt: skip

    def _commit_read(self, pages: Pages, job: JobDone) -> None:
        cancelled = np.full(len(pages), job.cancelled) & ~job.corrupt & ~job.ok
        freed = self.table.end_read(pages, job.ok, cancelled)
        self._free_slots(freed)
        self.stats.promoted += int(job.ok.sum())
        self.stats.corrupt += int(job.corrupt.sum())
        lost = int((~job.ok & ~cancelled).sum())
        self.stats.read_failures += lost
        if lost:
            logger.warning("radixtier: %d pages on NVMe are not usable (%s); they are recomputed", lost, job.error)
        arrived = pages[job.ok]
        arrived = arrived[self.table.run[arrived] != NONE]
        for number in np.unique(self.table.run[arrived]).tolist():
            self.tree.use(number)

    # ---- whole-tier operations ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether any read or write is in flight."""
        return bool(self._jobs)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, committing what ends; False when ``timeout`` seconds were not enough."""
        end = self._clock() + timeout
        while self.store is not None and self._jobs:
            idle = self.store.drain(max(0.0, end - self._clock()))
            for job in self.store.poll():
                self._commit(job)
            if not idle and self._jobs:
                return False
        return True

    def clear(self) -> None:
        """Forget every page on every tier; leases must be over. I/O in flight keeps its places until it ends."""
        for promotion in list(self._promotions):
            self.drop(promotion)
        table = self.table
        self.fill_failed(np.flatnonzero(table.state == State.FILLING))
        gone = np.flatnonzero((table.state != State.FREE) & (table.flight & DOOMED == 0))
        self._writes.clear()
        self.frames_wanted = self.slots_wanted = 0
        self.tree.clear()
        self._free_slots(table.free(gone))

    def close(self, timeout: float) -> bool:
        """Stop all I/O within ``timeout`` seconds and close the store; False when something was still in flight."""
        if self.store is None:
            return True
        self._writes.clear()
        for promotion in list(self._promotions):
            self.drop(promotion)
        over = self.drain(timeout)
        return self.store.close(timeout) and over
