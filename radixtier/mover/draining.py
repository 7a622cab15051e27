"""Draining: NVMe is given up while the server goes on, so that its file systems can be unmounted.

Owns how far that is. The laws:

- from the start on nothing is read from NVMe, and nothing that comes new is written to it: it is parked, so DRAM keeps
  it as long as it is warm;
- what is admitted already is written, until the time for that is over; a write that runs is waited for, since it uses a
  frame;
- nothing that is on record leaves it, except that somebody empties the cache: slots that the tree frees are kept;
- the files are closed on a thread of its own, once no transfer runs;
- a step costs about as long as it is given, however large the table is, and telling how far it is costs nothing.

Nothing here waits, and whatever a drive does ends in a drain that says what it waits for. Scheduler thread only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import cast

import numpy as np

from radixtier.mover.leaving import LeavingStore, NothingMore
from radixtier.mover.mover import Mover
from radixtier.store.store import PageStore
from radixtier.tree.residency import NONE, PARKED, State
from radixtier.tree.writequeue import Piece

logger = logging.getLogger(__name__)

DRAINING, DRAINED = "draining", "drained"

RUNS_AT_ONCE = 16
HANDLES_AT_ONCE = 1 << 17
"""Runs that are parked, and handles that are looked at, at a stretch: some tenths of a millisecond."""

CLOSE_S = (10.0, 60.0)
"""Seconds that the first attempt to close the files may take, and each later one."""


class Drain:
    """Gives up the NVMe tier of a mover.

    Parameters
    ----------
    mover
        Has a store.
    ready
        Says what else still has files open below the directories, None for nothing.
    closed
        Called on another thread, once the store's files are closed, to give up whatever else is there; returns what
        stays, None for nothing.
    clock
        Seconds.

    Attributes
    ----------
    status : str or None
        None before the start, then :data:`DRAINING`, then :data:`DRAINED`.
    reason : str or None
        What a drain that is not over waits for; then what still keeps the file systems from being unmounted.
    """

    def __init__(
        self,
        mover: Mover,
        *,
        ready: Callable[[], str | None] = lambda: None,
        closed: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mover = mover
        self._ready = ready
        self._closed = closed
        self._clock = clock
        self._until = 0.0
        self._phase: Callable[[], str | None] | None = None
        self._looked = 0
        """Handles that were looked at."""
        self._parking: list[int] = []
        """Runs found there."""
        self._unwritten = 0
        self._still_there: str | None = None
        self._thread: threading.Thread | None = None
        self.status: str | None = None
        self.reason: str | None = None

    @property
    def unwritten(self) -> int:
        """Pages that are to be written and are not; in the end, those that were not."""
        if self.status == DRAINED:
            return self._unwritten
        mover = self._mover
        return self._unwritten + max(0, int(mover.table.count[State.DIRTY]) - len(mover.parking))

    def start(self, timeout: float) -> None:
        """Begin, with ``timeout`` seconds for what is to be written; a later call can only shorten that."""
        until = self._clock() + timeout
        if self.status is not None:
            self._until = min(self._until, until)
            return
        mover = self._mover
        assert mover.store is not None
        store, admission = LeavingStore(mover.store), NothingMore(mover.parking.admission)
        self._dropped = store.rows_dropped
        mover.leave_nvme(cast(PageStore, store), admission)
        self._store, self._until = store, until
        self._phase, self.reason = self._write, "it has only begun"
        self.status = DRAINING
        logger.info(
            "radixtier: NVMe is being drained: nothing is read from it and nothing new is written to it from now on; "
            "%d pages are still to be written", self.unwritten,
        )  # fmt: skip

    def step(self, seconds: float = 0.0) -> None:
        """Go on as far as that is possible now, for about so long; call it after the mover's tick."""
        if self._phase is None:
            return
        self._pause = self._clock() + seconds
        try:
            while self._phase is not None:
                before = self._phase
                self.reason = before()
                if self._phase is before:
                    return
        except Exception:  # the scheduler goes on
            logger.exception("radixtier: draining NVMe failed")
            self.reason, self._phase = "it failed in the server, whose log says why", None

    # Each phase returns what it waits for, or names the next one.

    def _write(self) -> str | None:
        mover, store = self._mover, self._store
        full = mover.writes.slots_wanted > 0 and not mover.busy and not store.room()[1]
        if (mover.writes.pending or mover.busy) and not full and self._clock() < self._until:
            return "pages are being written" if store.writable else "pages are to be written, and no drive takes any"
        store.full = True
        self._phase = self._settle
        return None

    def _settle(self) -> str | None:
        if self._mover.busy:
            return "transfers have not ended"
        self._mover.writes.clear()
        self._phase = self._park
        return None

    def _park(self) -> str | None:
        """Let DRAM do with pages that were not written what it does with those that may not be."""
        table = self._mover.table
        while self._parking or (self._looked < table.n_handles and table.count[State.DIRTY]):
            if self._parking:
                for run in self._parking[:RUNS_AT_ONCE]:
                    self._park_run(run)
                del self._parking[:RUNS_AT_ONCE]
            else:
                self._parking = self._look()
            if self._clock() >= self._pause:
                return "pages that were not written are being looked through"
        self._phase = self._leave
        return None

    def _look(self) -> list[int]:
        """Return the runs of some pages that are to be written, or were, and are in DRAM alone."""
        table, first = self._mover.table, self._looked
        self._looked = end = first + HANDLES_AT_ONCE
        pages = first + np.flatnonzero(table.state[first:end] == State.DIRTY)
        runs = table.run[pages[table.mark[pages] & PARKED == 0]]
        found: list[int] = np.unique(runs[runs != NONE]).tolist()
        return found

    def _park_run(self, run: int) -> None:
        mover = self._mover
        if run not in mover.tree.runs:
            return
        piece = Piece(mover.tree.pages_of(run))
        admitted = mover.writes.unwritten(piece) & ~mover.table.marked(piece.pages, PARKED)
        self._unwritten += int(admitted.sum())
        for part in piece.where(admitted):
            mover.parking.ask(part)

    def _leave(self) -> str | None:
        if not self._mover.heat_told:
            return "the record learns what was used last"
        if what := self._ready():
            return what
        self._store.closing = True
        self._thread = threading.Thread(target=self._close, name="radixtier-drain", daemon=True)
        self._thread.start()
        self._phase = self._end
        return None

    def _end(self) -> str | None:
        assert self._thread is not None
        if self._thread.is_alive():
            return "the files are being closed"
        if not self._store.gone:
            self._phase = None
            return "closing failed in the server, whose log says why"
        self._unwritten += self._store.rows_dropped - self._dropped
        left = self._still_there
        now = "its file systems can be unmounted"
        if left is not None:
            now = f"its file systems cannot all be unmounted before the server ends, because of {left}"
        self.status, self._phase = DRAINED, None
        logger.info(
            "radixtier: NVMe is drained, %d pages were not written: %s. What is on record there comes back when the "
            "server is started again", self._unwritten, now,
        )  # fmt: skip
        return left

    def _close(self) -> None:
        seconds = CLOSE_S[0]
        try:
            while not self._store.close(seconds):
                seconds = CLOSE_S[1]
            self._still_there = self._closed()
        except Exception:
            self._store.gone = False
            logger.exception("radixtier: the files on NVMe cannot be closed")
