"""One drive of another rank's store: the slab there, the threads that read it, and a watcher.

Owns them from construction to `join`. The watcher opens the slab again when its owner has made a new one, and tries a
drive that had trouble until it works. Invariant: once the scheduler knows that a slab is new, no read starts before
that one is open. The scheduler's thread calls everything here; no call but `join` waits for the device.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path

from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.store.board import Board
from radixtier.store.health import ADVICE, DriveHealth, Health, Trouble
from radixtier.store.lent import LentSlab
from radixtier.store.slab import StoreError
from radixtier.store.transfers import Transfers

logger = logging.getLogger(__name__)

RETRY_S = 0.05
"""Seconds between two looks whether the last read of an old slab has ended."""


class ReaderHealth(Health):
    """The verdict on a drive that this rank only reads."""

    def _log(self, trouble: Trouble) -> None:
        logger.warning(
            "radixtier: another rank's pages in %s cannot be read: %s. It is tried again every now and then; %s",
            self._directory, trouble.text, ADVICE[trouble.kind],
        )  # fmt: skip

    def _log_back(self, seconds: float) -> None:
        logger.info("radixtier: another rank's pages in %s can be read again after %.0f s", self._directory, seconds)


class BorrowedDrive:
    """Reads a slab, whose first slot is ``base`` of the store, on ``threads`` threads."""

    def __init__(
        self,
        slab: LentSlab,
        frames: FrameBuffer,
        board: Board,
        *,
        base: int,
        threads: int,
        pages_per_chunk: int,
        landing: LandingZone | None = None,
    ) -> None:
        self._slab = slab
        self.health = ReaderHealth(slab.files.directory, self._ring)
        self.transfers = Transfers(
            slab, frames, board, self.health, base=base, pages_per_chunk=pages_per_chunk, threads=threads,
            landing=landing,
        )  # fmt: skip
        self._renewals = self._opened = 0
        self._bell = threading.Condition()
        self._due = math.inf
        self._closing = self._closed = False
        self._watcher = threading.Thread(target=self._watch, name=f"radixtier-watch-{self.directory}", daemon=True)

    @property
    def directory(self) -> Path:
        """Where the slab lies."""
        return self._slab.files.directory

    def start(self) -> None:
        """Start the threads."""
        self.transfers.start()
        self._watcher.start()

    def follow(self, renewals: int) -> None:
        """Learn how often the owner has made a new slab; reads fail from then on until the newest is open."""
        if renewals != self._renewals:
            self._renewals = renewals
            self.transfers.stop()
            self._ring(time.monotonic())

    def look(self) -> None:
        """Find out whether the device hangs."""
        hanging = self.transfers.longest()
        if self.health.hangs(hanging) and self.health.kind != "stalled":
            text = f"a read from {self._slab.path} has been going on for {hanging:.0f} s"
            self.health.fail(Trouble("stalled", text), override=True)
            self.transfers.abandon("the drive hangs")

    def figures(self) -> DriveHealth:
        """Return how it is; slots are the owner's affair."""
        trouble = self.health.trouble
        return DriveHealth(
            self.directory, trouble is None, None if trouble is None else trouble.text, self.health.since, 0, 0, 0, 0,
            0, self._slab.engine.name, None if trouble is None else trouble.kind,
        )  # fmt: skip

    def close(self) -> None:
        """Cancel what waits, and have the threads end."""
        self.transfers.close()
        with self._bell:
            self._closing = True
            self._bell.notify()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the threads, then close the file; False if a thread is stuck."""
        end = time.monotonic() + timeout
        over = self.transfers.join(timeout)
        if self._watcher.ident is not None:
            self._watcher.join(max(0.0, end - time.monotonic()))
        over &= not self._watcher.is_alive()
        if over and not self._closed:
            self._slab.close()
            self._closed = True
        return over

    # The watcher's thread

    def _ring(self, due: float) -> None:
        with self._bell:
            self._due = min(due, self._due)
            self._bell.notify()

    def _watch(self) -> None:
        while self._wait():
            try:
                due = self._step()
            except Exception:  # nobody else would open the slab again
                logger.exception("radixtier: what watches %s stumbled", self._slab.path)
                due = time.monotonic() + 1.0
            self._ring(due)

    def _wait(self) -> bool:
        with self._bell:
            while not self._closing and (left := self._due - time.monotonic()) > 0:
                self._bell.wait(None if left == math.inf else left)
            self._due = math.inf
            return not self._closing

    def _step(self) -> float:
        """Do what is to be done; return when to look again."""
        trouble = self.health.trouble
        if trouble is not None and time.monotonic() >= self.health.next_probe:
            self.health.probed(self._examine())
        elif trouble is None and self._renewals != self._opened and (found := self._reopen()):
            self.health.fail(found)
        if self.health.trouble is not None:
            return self.health.next_probe
        return math.inf if self._renewals == self._opened else time.monotonic() + RETRY_S

    def _examine(self) -> Trouble | None:
        if self.health.hangs(seconds := self.transfers.longest()):
            return Trouble("stalled", f"a read has been going on for {seconds:.0f} s")
        if trouble := self._reopen():
            return trouble
        why = self._slab.test()
        return Trouble("io", why) if why else None

    def _reopen(self) -> Trouble | None:
        """Open the newest slab once no read of the one before runs; return why that is not possible."""
        renewals = self._renewals
        if renewals == self._opened or not self.transfers.stop():
            return None
        try:
            self._slab.reopen()
        except StoreError as e:
            return Trouble("vanished", str(e))
        self._opened = renewals
        if renewals == self._renewals:
            self.transfers.resume()
        return None
