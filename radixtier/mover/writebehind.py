"""Write-behind: dirty pages go down to NVMe, a run at a time, and what arrived is entered for a restart.

Owns the queue of what waits and the pages on their way. A page counts as written, and is entered, only when the store
reported its bytes as moved; one that failed stays in DRAM and in the queue. Scheduler thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from radixtier.mover.jobs import Jobs
from radixtier.mover.stats import MoverStats
from radixtier.policy.bandwidth import ReadRate
from radixtier.store.jobs import JobDone
from radixtier.store.store import PageStore
from radixtier.tree.residency import DOOMED, NO_PAGES, NONE, Flags, Pages, Slots, State
from radixtier.tree.tiertree import TierTree
from radixtier.tree.writequeue import Piece, WriteQueue

logger = logging.getLogger(__name__)

WRITE_CHUNK_PAGES = 256
"""Pages written as one extent at most."""

PAUSE_S = 1.0
"""Pause after a failed write; the store itself keeps a drive that goes on failing closed for longer."""

LOSSY_AFTER_S = 5.0
"""Seconds of failing after which what is warm is worth more than what is cold and has no other copy."""

QUIET_S = 10.0
"""Pause between two warnings about pages that could not be written."""


class WriteBehind:
    """Takes pieces in, and writes at most ``max_pages`` pages at once.

    ``free_slots`` gives slots back that a write did not use, or whose page is gone.
    """

    def __init__(
        self,
        tree: TierTree,
        jobs: Jobs,
        stats: MoverStats,
        free_slots: Callable[[Slots], None],
        *,
        rate: ReadRate,
        max_pages: int,
        clock: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._table = tree.table
        self._jobs = jobs
        self._stats = stats
        self._free_slots = free_slots
        self._rate = rate
        self._max_pages = max_pages
        self._clock = clock
        self._queue = WriteQueue()
        self._writing = 0
        self._paused_until = 0.0
        self._failing_since: float | None = None
        self._quiet_until = 0.0
        self.written: Callable[[int], None] = lambda n_pages: None
        """Is told how many queued pages were written."""
        self.dropped: Callable[[int], None] = lambda n_pages: None
        """Is told how many queued pages were not written: they were freed, or written by another request."""
        self.slots_wanted = 0
        """Slots that could not be had, beyond those that are free or on their way back."""

    @property
    def pending(self) -> bool:
        """Whether pages wait to be written."""
        return bool(self._queue)

    @property
    def failing(self) -> bool:
        """Whether nothing is written at the moment, because it would fail."""
        store = self._jobs.store
        return store is not None and (self._clock() < self._paused_until or not store.writable)

    @property
    def hopeless(self) -> bool:
        """Whether it has been failing for so long that nothing will get clean soon."""
        if not self.failing:
            return False
        if self._failing_since is None:
            self._failing_since = self._clock()
        return self._clock() - self._failing_since >= LOSSY_AFTER_S

    def add(self, piece: Piece) -> None:
        """Queue consecutive pages of a run."""
        self._queue.append(piece)
        if self._queue.pages > 2 * self._table.n_frames:
            before = self._queue.pages
            self._queue.compact(self.unwritten)
            self.dropped(before - self._queue.pages)

    def unwritten(self, piece: Piece) -> Flags:
        """Whether each page is still to be written: it may have been freed, and its handle reused, while it waited."""
        table, pages = self._table, piece.pages
        wanted: Flags = (table.state[pages] == State.DIRTY) & (table.flight[pages] == 0)
        wanted &= table.run[pages] != NONE
        if piece.stretch is not None:
            wanted &= (table.key[pages] == piece.stretch.keys.view("<u8")).all(axis=1)
        return wanted

    def pump(self) -> None:
        """Start what can start."""
        self.slots_wanted = 0
        store = self._jobs.store
        if store is None or self.failing:
            return
        while self._queue and self._writing < self._max_pages:
            most = min(WRITE_CHUNK_PAGES, max(1, store.room()[0]))
            pieces = self._next(most)
            if pieces and not self._write(store, pieces):
                for piece in reversed(pieces):
                    self._queue.push_front(piece)
                return

    def _next(self, most: int) -> list[Piece]:
        """Take up to ``most`` pages that are to be written, of as many pieces as that takes: they become one extent."""
        pieces: list[Piece] = []
        while self._queue and most > 0:
            taken = self._queue.take(most)
            parts = taken.where(self.unwritten(taken))
            self.dropped(len(taken) - sum(map(len, parts)))
            pieces += parts
            most -= sum(map(len, parts))
        # A page may be queued twice.
        pages = np.concatenate([piece.pages for piece in pieces]) if pieces else NO_PAGES
        if len(np.unique(pages)) == len(pages):
            return pieces
        for piece in reversed(pieces[1:]):
            self._queue.push_front(piece)
        return pieces[:1]

    def _write(self, store: PageStore, pieces: list[Piece]) -> bool:
        pages = np.concatenate([piece.pages for piece in pieces])
        slots = store.alloc(len(pages))
        if slots is None:
            wanted = min(self._max_pages, len(pages) + self._queue.pages)
            self.slots_wanted = max(0, wanted - sum(store.room()))
            return False
        self._table.begin_write(pages, slots)
        tag = self._jobs.start(lambda job: self._commit(pieces, pages, job))
        self._writing += len(pages)
        store.write(self._table.frame[pages].astype("i8"), slots, self._table.key[pages, 0], tag)
        return True

    def _commit(self, pieces: list[Piece], pages: Pages, job: JobDone) -> None:
        table = self._table
        self._writing -= len(pages)
        table.placed(pages, job.slots)
        freed = table.end_write(pages, job.ok, job.checksums, job.weighted)
        alive = table.flight[pages] & DOOMED == 0
        stored = job.ok & alive & (table.state[pages] == State.CLEAN)
        failed = ~job.ok & alive & (table.state[pages] == State.DIRTY)
        again: list[Piece] = []
        at = 0
        for piece in pieces:
            end = at + len(piece)
            self._enter(piece, stored[at:end])
            again += piece.where(failed[at:end])
            at = end
        self._free_slots(freed)
        self.dropped(int((~job.ok & ~failed).sum()))
        self._stats.written += int(job.ok.sum())
        self.written(int(job.ok.sum()))
        if not again:
            self._rate.observe_write(job.nbytes, job.service_seconds)
            if not self.failing:
                self._failing_since = None
            return
        for part in again:
            self._queue.append(part)
        self._note_failure(sum(map(len, again)), job)

    def _enter(self, piece: Piece, stored: Flags) -> None:
        """Let a restart find what was stored."""
        store, table = self._jobs.store, self._table
        assert store is not None
        self._tree.note(piece.pages[stored], "written to NVMe")
        for part in piece.where(stored):
            if part.stretch is not None:
                slots = table.slot[part.pages].astype("i8")
                weighted = table.weighted[part.pages] if table.n_landing else None
                store.record(part.stretch, slots, table.checksum[part.pages], time.time(), weighted)

    def _note_failure(self, n: int, job: JobDone) -> None:
        now = self._clock()
        self._stats.write_failures += n
        self._paused_until = now + PAUSE_S
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not job.cancelled and now >= self._quiet_until:
            self._quiet_until = now + QUIET_S
            logger.warning("radixtier: %d pages could not be written to NVMe (%s); they stay in DRAM", n, job.error)

    def roots_first(self) -> None:
        """Put what waits in the order in which it is worth most to a restart: no page before those in front of it."""
        # Runs are numbered as they are learnt, parents before children.
        self._queue.sort(lambda piece: int(self._table.run[piece.pages[0]]))

    def clear(self) -> None:
        """Forget what has not started."""
        self.dropped(self._queue.pages)
        self._queue.clear()
        self.slots_wanted = 0
