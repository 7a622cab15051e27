"""Promotions: what is needed first is read first, and what may be needed waits until nobody needs anything.

Owns the promotions, their holds and their reads. The laws:

- reads that a request waits for start in the order in which the scheduler will admit the requests, and no more bytes
  are on their way than the drives move until the scheduler looks again (:data:`AHEAD_S`, or twice the time between
  two looks), so that a request that moves to the front does not queue behind the others' pages;
- a read ahead of any request starts only when none of those is on its way or waiting, gives way to those in the
  drives' queues, and takes only free frames or those of pages that are less warm than what it brings, and never the
  last :data:`SPARE_SHARE`;
- what a request waits for may go straight to HBM (:mod:`radixtier.mover.landings`), what nobody waits for never does.

Scheduler thread only.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from radixtier.mover.jobs import Jobs
from radixtier.mover.landings import Landings
from radixtier.mover.promotion import Promotion, Trigger
from radixtier.mover.stats import MoverStats
from radixtier.policy.bandwidth import ReadRate
from radixtier.store.jobs import JobDone, Priority
from radixtier.tree.residency import Pages, Slots
from radixtier.tree.tiertree import COLDEST, TierTree, Warmth

logger = logging.getLogger(__name__)

READ_JOB_BYTES = 8 << 20
"""Bytes of one read job: large enough for the drive, small enough that a deadline loses little."""

AHEAD_S = 0.05
"""Seconds of reading that may be on their way at least."""

LOOK_WINDOW = 0.2
"""Weight of the newest interval between two looks of the scheduler."""

AWAITED_S = 2.0
"""How long after the expected return what came up for it is still spared."""

AHEAD_PROMOTIONS = 256
"""Promotions ahead of requests that may wait; more push out the oldest."""

SPARE_SHARE = 16
"""One frame in so many is left to backups by reads that nobody waits for."""

QUIET_S = 10.0
"""Pause between two warnings about pages that could not be read."""


class _Reading(NamedTuple):
    began: float
    nbytes: int
    ahead: int
    """Bytes of reads that were on their way when it began."""
    rate: ReadRate
    """Of its way."""


class _Brought(NamedTuple):
    trigger: Trigger
    pages: int


MakeRoom = Callable[[int, Warmth | None], bool]
"""Makes frames free: as many of those asked for as can be, from pages less warm than a limit if one is given."""


class Promotions:
    """All reads from NVMe, to DRAM and to the landing zone."""

    def __init__(
        self,
        tree: TierTree,
        jobs: Jobs,
        stats: MoverStats,
        rate: ReadRate,
        *,
        page_bytes: int,
        make_room: MakeRoom,
        free_slots: Callable[[Slots], None],
        clock: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._table = tree.table
        self._jobs = jobs
        self._stats = stats
        self._rate = rate
        self._page_bytes = max(1, page_bytes)
        self._make_room = make_room
        self._free_slots = free_slots
        self._clock = clock
        self.landings = Landings(tree, stats, rate, page_bytes=self._page_bytes, clock=clock)
        self.job_pages = max(1, READ_JOB_BYTES // self._page_bytes)
        """Pages that arrive together: a request whose deadline passes takes the jobs that are over."""
        table = self._table
        self.hold_limit = max(1, table.n_frames - max(1, table.n_frames // 8))
        """Frames that waiting requests may hold in all; the rest is for backups."""
        self._demanded: list[Promotion] = []
        self._ahead: deque[Promotion] = deque()
        self._reading: dict[int, _Reading] = {}
        """Jobs on their way that requests wait for."""
        self._began_ahead: dict[int, _Reading] = {}
        """Jobs on their way that nobody waited for when they began; a request may come to wait for one of these."""
        self._looked = clock()
        self.between_looks = 0.0
        """Seconds between two looks of the scheduler, of late."""
        self._quiet_until = 0.0
        self._brought: dict[int, _Brought] = {}
        """By run, what came up ahead of a request and was neither used nor demoted since."""
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._demanded or self._ahead)

    @property
    def demanded_bytes(self) -> int:
        """Bytes that requests wait for, on their way or still to start."""
        table = self._table
        cold = sum(int(table.is_cold(p.pages).sum()) for p in self._demanded if not p.done)
        return cold * self._page_bytes

    # ---- for requests ------------------------------------------------------------------------------

    def start(self, pages: Pages, rank: float) -> Promotion:
        """Begin to bring a path up for a request, and hold it until :meth:`drop`.

        Parameters
        ----------
        pages
            Handles of the path below HBM, root-side first; cut to what may be held at once.
        rank
            Place of the request among those that wait.
        """
        pages = pages[: self.hold_limit]
        promotion = Promotion(pages, pages[self._table.is_cold(pages)], Trigger.ARRIVAL, rank)
        promotion.straight = self.landings.choose(pages)
        self._demanded.append(promotion)
        self.pump()
        return promotion

    def drop(self, promotion: Promotion) -> None:
        """Release a path and cancel its reads that have not started: the request was admitted or is gone."""
        if promotion in self._demanded:
            self._demanded.remove(promotion)
        store = self._jobs.store
        if store is not None:
            for tag in promotion.tags:
                if tag in self._jobs:
                    store.cancel(tag)
        if promotion.held:
            promotion.held = False
            self._free_slots(self._table.release_hold(promotion.pages))

    def drop_all(self) -> None:
        """Forget every promotion; what is on its way arrives for nobody."""
        for promotion in list(self._demanded):
            self.drop(promotion)
        for promotion in self._ahead:
            promotion.tell(math.inf)
        self._ahead.clear()
        self._brought.clear()

    def close(self) -> None:
        """Start no read any more; what is on its way arrives."""
        self._closed = True
        while self._ahead:
            self._ahead.popleft().tell(math.inf)

    def cut(self, gone: Pages) -> None:
        """The tree is about to free pages: nobody waits for them any more."""
        self.left(gone)
        for promotion in self._demanded:
            if not promotion.held:
                promotion.cut(gone)
        for promotion in self._ahead:
            promotion.cut(gone)

    # ---- ahead of requests -------------------------------------------------------------------------

    def ahead(self, pages: Pages, trigger: Trigger, over: Callable[[float], None] | None = None) -> int:
        """Queue a path to be brought up when nobody waits for anything.

        Parameters
        ----------
        pages
            Handles of a path, or a part of one, root-side first.
        trigger
            Why.
        over
            Called with the seconds that the first read took, infinity where there was none.

        Returns
        -------
        int
            How many of the pages are on NVMe only.
        """
        pages = pages[self._table.only_on_nvme(pages)]
        promotion = Promotion(pages, pages, trigger, over=over)
        if not len(promotion.cold) or self._jobs.store is None or self._closed:
            promotion.tell(math.inf)
            return 0
        if len(self._ahead) >= AHEAD_PROMOTIONS:
            self._ahead.popleft().tell(math.inf)
        self._ahead.append(promotion)
        return len(promotion.cold)

    @property
    def idle(self) -> bool:
        """Whether nothing is read or about to be."""
        return not (self._demanded or self._ahead or self._reading or self._reading_ahead)

    @property
    def spare_frames(self) -> int:
        """Frames that a read nobody waits for may take without anything having to leave."""
        return max(0, self._table.free_frames - self._table.n_frames // SPARE_SHARE)

    def awaited(self, run: int) -> bool:
        """Whether a run came up for a session that is still expected: to let it go again would waste the read."""
        expected = self._tree.runs[run].expected if run in self._brought else None
        return expected is not None and expected > self._clock() - AWAITED_S

    def used(self, path: list[int]) -> None:
        """A request uses runs: those that were brought up ahead of it were worth it."""
        for run in path:
            brought = self._brought.pop(run, None)
            if brought is not None:
                self._stats.ahead_used[brought.trigger.value] += brought.pages

    def left(self, pages: Pages) -> None:
        """Pages left DRAM: those that were brought up ahead and not used were wasted."""
        if not self._brought:
            return
        for run, n in self._by_run(pages):
            brought = self._brought.pop(run, None)
            if brought is None:
                continue
            # Which pages of a run they were is not kept: the first to leave are taken for these.
            wasted = min(n, brought.pages)
            self._stats.ahead_wasted[brought.trigger.value] += wasted
            if wasted < brought.pages:
                self._brought[run] = _Brought(brought.trigger, brought.pages - wasted)

    def _by_run(self, pages: Pages) -> list[tuple[int, int]]:
        numbers, counts = np.unique(self._table.run[pages], return_counts=True)
        return [each for each in zip(numbers.tolist(), counts.tolist(), strict=True) if each[0] in self._tree.runs]

    # ---- reading -----------------------------------------------------------------------------------

    def look(self) -> None:
        """The scheduler looks in: learn how often it does, and what a read that is still running says of the drive."""
        now = self._clock()
        gap, self._looked = now - self._looked, now
        self.between_looks += LOOK_WINDOW * (gap - self.between_looks)
        if gap > self.between_looks:
            self.between_looks = gap
        for jobs in (self._reading, self._began_ahead if self._demanded else {}):
            if not jobs:
                continue
            oldest = next(iter(jobs.values()))
            oldest.rate.overdue(oldest.nbytes, now - oldest.began, oldest.ahead)

    def _allowed_bytes(self) -> float:
        seconds = max(AHEAD_S, 2 * self.between_looks)
        return max(2.0 * READ_JOB_BYTES, self._rate.rate * seconds)

    def pump(self) -> None:
        """Start what may start."""
        if self._demanded:
            self._pump_demanded()
        if self._ahead and not self._reading and self._settled():
            allowed = self._allowed_bytes()
            while self._reading_ahead < allowed and self._pump_ahead():
                pass

    @property
    def _underway(self) -> int:
        """Bytes on their way that requests wait for."""
        return sum(reading.nbytes for reading in self._reading.values())

    @property
    def _reading_ahead(self) -> int:
        """Bytes on their way that nobody waited for when they began."""
        return sum(reading.nbytes for reading in self._began_ahead.values())

    def _settled(self) -> bool:
        return all(promotion.ready(self._table) for promotion in self._demanded)

    def _pump_demanded(self) -> None:
        table = self._table
        allowed = self._allowed_bytes()
        underway = self._underway
        full = False
        for promotion in sorted(self._demanded, key=lambda each: each.rank):
            if promotion.ready(table):
                continue
            if not promotion.held and (full or not self._hold(promotion)):
                # Those behind it that are held already go on: only their end makes room for it.
                full = True
                continue
            while underway < allowed and not self._closed and len(pages := self._next(promotion.pages)):
                n, landing = self._place(promotion, pages)
                if not n:
                    return
                pages = pages[:n]
                self._read(promotion, pages, Priority.DEMANDED, landing)
                underway += len(pages) * self._page_bytes

    def _place(self, promotion: Promotion, pages: Pages) -> tuple[int, bool]:
        """Return how many leading pages find a place, 0 for none, and whether that is in the landing zone."""
        n, landing = self.landings.leading(promotion, pages)
        if landing:
            return n, True
        self._make_room(n, None)
        if self._table.free_frames:
            return min(n, self._table.free_frames), False
        return self.landings.stopgap(pages[:n]), True

    def _hold(self, promotion: Promotion) -> bool:
        table = self._table
        newly = int((table.hold[promotion.pages] == 0).sum())
        if table.held + newly > self.hold_limit:
            return False
        table.acquire_hold(promotion.pages)
        promotion.held = True
        return True

    def _next(self, pages: Pages) -> Pages:
        table = self._table
        pages = pages[table.is_cold(pages) & (table.flight[pages] == 0)]
        return pages[: self.job_pages]

    def _pump_ahead(self) -> bool:
        """Start one read that nobody waits for; False where there is nothing to read, or no room."""
        while self._ahead:
            promotion = self._ahead[0]
            pages = self._next(promotion.pages)
            pages = pages[: self._room_ahead(pages, promotion)]
            if len(pages):
                # Each page once: what leaves again before the last has come was not worth its frame.
                promotion.pages = promotion.pages[np.flatnonzero(promotion.pages == pages[-1])[0] + 1 :]
                self._read(promotion, pages, Priority.SPECULATIVE)
                return True
            self._ahead.popleft().tell(math.inf)
        return False

    def _room_ahead(self, pages: Pages, promotion: Promotion) -> int:
        """How many of ``pages`` find a frame without anything warmer having to go."""
        if not len(pages):
            return 0
        wanted = len(pages) + self._table.n_frames // SPARE_SHARE
        if wanted > self._table.free_frames and promotion.trigger is Trigger.PROBE:
            self._make_room(wanted, None)
        elif wanted > self._table.free_frames and promotion.trigger is not Trigger.IDLE:
            run = self._tree.run_of(int(promotion.pages[-1]))
            warmth = COLDEST if run is None else self._tree.runs[run].warmth
            self._make_room(wanted, warmth)
        return min(len(pages), self.spare_frames)

    def _read(self, promotion: Promotion, pages: Pages, priority: Priority, landing: bool = False) -> None:
        table, store = self._table, self._jobs.store
        assert store is not None
        table.begin_read(pages, landing)
        before = self._underway + (self._reading_ahead if priority is Priority.SPECULATIVE else 0)
        rate = self.landings.rate if landing else self._rate
        job = _Reading(self._clock(), len(pages) * self._page_bytes, before, rate)
        tag = self._jobs.start(partial(self._commit, promotion, pages, priority, job))
        promotion.tags.add(tag)
        (self._reading if priority is Priority.DEMANDED else self._began_ahead)[tag] = job
        store.read(
            table.frame[pages].astype(np.int64),
            table.slot[pages].astype(np.int64),
            table.key[pages, 0],
            (table.weighted if landing else table.checksum)[pages],
            tag,
            priority,
        )

    def _commit(self, promotion: Promotion, pages: Pages, priority: Priority, begun: _Reading, job: JobDone) -> None:
        assert isinstance(job.tag, int)
        promotion.tags.discard(job.tag)
        del (self._reading if priority is Priority.DEMANDED else self._began_ahead)[job.tag]
        promotion.tell(job.queue_seconds + job.service_seconds if job.ok.all() else math.inf)
        landed = begun.rate is self.landings.rate
        if landed:
            self.landings.ended(promotion, pages, job)
        # What failed on the way straight up may still come through DRAM.
        cancelled = np.full(len(pages), job.cancelled or landed) & ~job.corrupt & ~job.ok
        failed = int((~job.ok & ~cancelled).sum())
        if job.ok.all():
            begun.rate.observe(job.nbytes, job.queue_seconds, job.service_seconds, begun.ahead)
        self._free_slots(self._table.end_read(pages, job.ok, cancelled))
        self._stats.promoted += int(job.ok.sum())
        self._stats.promoted_by[promotion.trigger.value] += int(job.ok.sum())
        self._stats.corrupt += int(job.corrupt.sum())
        self._stats.read_failures += failed
        if failed and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + QUIET_S
            logger.warning(
                "radixtier: %d pages on NVMe are not usable (%s) and will be recomputed; %d since the start",
                failed, job.error or "wrong checksum", self._stats.read_failures,
            )  # fmt: skip
        came = "came up to the landing zone" if landed else "came up to DRAM"
        self._tree.note(pages[job.ok], came, promotion.trigger.value)
        if failed:
            lost = pages[~job.ok & ~cancelled]
            self._tree.note(lost, "lost", "could not be read from NVMe")
            self._tree.gave_up(lost, "could not be read from NVMe")
        for run, n in [] if landed else self._by_run(pages[job.ok]):
            self._tree.enter(run)
            if priority is Priority.SPECULATIVE:
                before = self._brought.get(run, _Brought(promotion.trigger, 0))
                self._brought[run] = _Brought(before.trigger, before.pages + n)
