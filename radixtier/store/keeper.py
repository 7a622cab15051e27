"""The keeper of one drive: a thread that does all its I/O but the transfers of pages.

Owns the order in which things become durable: what `Ledger.take` returns is synced, then committed, and only then are
the slots of deleted rows reported free. Also looks after the drive's health, tests quarantined slots and notes the
store's figures in the journal. Invariant: the thread never dies, and a device that hangs stops the keeper of its own
drive and nothing else. `ring`, `clear`, `close` and `join` are for other threads; what the keeper finds out goes to the
scheduler's through ``post``.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from radixtier.store.health import Health, Kind, Trouble
from radixtier.store.jobs import Ints
from radixtier.store.journal import Batch, JournalError
from radixtier.store.ledger import Ledger
from radixtier.store.quarantine import Quarantine
from radixtier.store.slab import StoreError
from radixtier.store.transfers import Transfers
from radixtier.store.volume import Volume

logger = logging.getLogger(__name__)

CHECK_S = 1.0
"""Seconds between two looks at a drive that is well."""

STATUS_S = 10.0
"""Seconds between two notes of the figures, if they changed."""

RETRY_S = 1.0
"""Seconds until a batch that failed is tried again."""

NO_COMMITS: tuple[Kind | None, ...] = ("stalled", "vanished", "journal")
"""Troubles during which nothing is committed."""

NO_SLOTS: Ints = np.empty(0, dtype=np.int64)

MOST_NOTED = 512
"""Quarantined slots that are noted for a restart."""


Finding = Literal["freed", "sound", "renewed"]
"""Slots of the drive are free, or work after all, or what was in any of them is gone."""


class Keeper:
    """Looks after one volume. ``figures`` returns what is noted in the journal beside the keeper's own figures."""

    def __init__(
        self,
        volume: Volume,
        transfers: Transfers,
        health: Health,
        ledger: Ledger,
        quarantine: Quarantine,
        *,
        post: Callable[[Finding, Ints], None],
        figures: Callable[[], dict[str, float]],
    ) -> None:
        self._volume = volume
        self._transfers = transfers
        self._health = health
        self._ledger = ledger
        self._quarantine = quarantine
        self._post = post
        self._figures = figures
        self._bell = threading.Condition()
        self._due = time.monotonic() + CHECK_S
        self._check_at = self._status_at = self._due
        self._closing = False
        self._clears: list[threading.Event] = []
        self._noted: dict[str, Any] = {}
        self._told_full = self._told_filled = False
        self.busy_since = 0.0
        """When the step began that the thread is at; 0.0 while it waits."""
        self._thread = threading.Thread(target=self._run, name=f"radixtier-keeper-{volume.directory}", daemon=True)

    # Any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ring(self, due: float) -> None:
        """See that the thread looks around at ``due`` (monotonic) or before."""
        if due >= self._due:
            return
        with self._bell:
            self._due = min(due, self._due)
            self._bell.notify()

    def clear(self) -> threading.Event:
        """Have all rows deleted; return what is set when none can come back."""
        self._ledger.forget()
        done = threading.Event()
        with self._bell:
            self._clears.append(done)
        self.ring(0.0)
        return done

    def close(self) -> None:
        """Have the thread end once everything that waits is committed."""
        with self._bell:
            self._closing = True
            self._bell.notify()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end; return whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # The keeper's thread

    def _run(self) -> None:
        while self._wait():
            now = self.busy_since = time.monotonic()
            try:
                self._step(now)
                due = self._next(time.monotonic())
            except Exception:  # nobody else would do this drive's work
                logger.exception("radixtier: the keeper of %s stumbled", self._volume.directory)
                due = now + CHECK_S
            self.busy_since = 0.0
            self.ring(due)
        try:
            self._finish()
        except Exception:
            logger.exception("radixtier: the keeper of %s could not finish", self._volume.directory)

    def _wait(self) -> bool:
        with self._bell:
            while not self._closing and (left := self._due - time.monotonic()) > 0:
                self._bell.wait(left)
            self._due = math.inf
            return not self._closing

    def _step(self, now: float) -> None:
        self._clear_if_asked()
        if self._health.trouble is not None:
            if now >= self._health.next_probe:
                self._health.probed(self._examine())
        elif now >= self._check_at:
            self._check_at = now + CHECK_S
            if trouble := self._look():
                self._health.fail(trouble)
        if self._ledger.due <= now and self._health.kind not in NO_COMMITS:
            self._commit()
        if self._health.trouble is None and (slots := self._quarantine.due(now)):
            self._post("sound", self._quarantine.test(self._volume.engine, slots))
        if now >= self._status_at and self._health.kind not in NO_COMMITS:
            self._status_at = now + STATUS_S
            self._note()

    def _next(self, now: float) -> float:
        due = now + CHECK_S
        if self._health.kind not in NO_COMMITS:
            due = min(due, self._ledger.due)
        if self._health.trouble is not None:
            due = min(due, self._health.next_probe)
        elif self._quarantine.due(now):
            due = now
        return due

    def _finish(self) -> None:
        self._clear_if_asked()
        while self._commit():
            pass
        self._note()

    # Rows

    def _commit(self) -> bool:
        """Make the next batch durable; return whether there was one and it is."""
        work = self._ledger.take()
        if work is None:
            return False
        if work.batch.adds and not self._synced():
            self._ledger.drop(work.batch)  # nobody knows whether the bytes of these rows have arrived
        committed = False
        try:
            committed = self._apply(work.batch)
        finally:
            if not committed:
                self._ledger.failed(work, RETRY_S)
        if not committed:
            return False
        self._ledger.committed(work.freed)
        self._post("freed", work.freed)
        return True

    def _synced(self) -> bool:
        try:
            self._volume.engine.sync()
        except Exception as e:  # engines are libraries of others
            self._health.fail(Trouble("io", f"{self._volume.slab.path} cannot be synced: {e}"))
            return False
        return True

    def _apply(self, batch: Batch) -> bool:
        """Commit a batch, without its rows if there is no room for them; return whether the deletions are durable."""
        journal = self._volume.journal
        if journal is None:
            self._health.fail(Trouble("journal", "its journal is closed"))
            return False
        try:
            journal.apply(batch)
        except JournalError as e:
            if e.full and (batch.adds or e.freed):
                self._tell_full(e)
                self._ledger.drop(batch)
                return e.freed or self._apply(Batch(frees=batch.frees))
            self._fail_journal(e)
            return False
        self._told_full &= not batch.adds
        return True

    def _tell_full(self, error: JournalError) -> None:
        if not self._told_full:
            logger.warning("radixtier: new pages will not be found after a restart until there is room: %s", error)
        self._told_full = True

    def _fail_journal(self, error: Exception) -> None:
        # SQLite refuses to write a file that has been moved away, but that is another kind of trouble.
        self._health.fail(self._look() or Trouble("journal", str(error)))

    def _clear_if_asked(self) -> None:
        with self._bell:
            asked = list(self._clears)
        if not asked or not self._emptied():
            return
        with self._bell:
            self._clears = self._clears[len(asked) :]
        for done in asked:
            done.set()

    def _emptied(self) -> bool:
        """See that no row comes back; return whether that is certain."""
        if not self._cleared() and not self._disowned():
            return False
        self._told_filled = False
        self._post("freed", self._ledger.emptied())
        return True

    def _cleared(self) -> bool:
        try:
            self._volume.clear()
        except (JournalError, OSError) as e:
            self._fail_journal(e)
            return False
        return True

    def _disowned(self) -> bool:
        try:
            self._volume.disown()
        except OSError as e:
            if not self._told_filled:
                logger.warning("radixtier: %s cannot be emptied yet: %s", self._volume.slab.path, e)
            self._told_filled = True
            return False
        return True

    # Health

    def _look(self) -> Trouble | None:
        """Look whether the files are there and the file system has room."""
        volume = self._volume
        try:
            if why := volume.slab.missing():
                return Trouble("vanished", why)
            if volume.journal_missing():
                return Trouble("journal", f"{volume.plan.files.db} has vanished")
            if why := volume.crowded():
                return Trouble("space", why)
        except OSError as e:
            return Trouble("io", f"{volume.directory} cannot be read: {e}")
        return None

    def _examine(self) -> Trouble | None:
        """Try everything out, and mend what can be mended; return what is still wrong."""
        if self._health.hangs(seconds := self._transfers.longest()):
            return Trouble("stalled", f"a transfer has been running for {seconds:.0f} s")
        trouble = self._look()
        if trouble is not None and trouble.kind == "vanished":
            trouble = self._renew(trouble)
        elif self._health.kind == "journal" or (trouble is not None and trouble.kind == "journal"):
            trouble = self._reopen_journal()
        if trouble is not None:
            return trouble
        why = self._volume.test()
        return Trouble("io", why) if why else None

    def _reopen_journal(self) -> Trouble | None:
        self.busy_since = 0.0  # checking a large database takes its time, and is no sign of a drive that hangs
        try:
            lost = self._volume.reopen_journal()
            self._note(force=True)
        except (JournalError, OSError) as e:
            return Trouble("journal", str(e))
        if lost:
            logger.warning("radixtier: the journal of %s had to be made anew", self._volume.slab.path)
            self._post("freed", self._ledger.emptied())
        return None

    def _renew(self, trouble: Trouble) -> Trouble | None:
        """Make a new slab where the old one is missing, if the directory is there."""
        if not os.path.isdir(self._volume.directory):
            return trouble
        self.busy_since = 0.0  # so does making a slab on some file systems
        ready = self._transfers.stop()
        self._ledger.suspend()
        try:
            if ready:
                self._volume.renew()
        except (StoreError, OSError) as e:
            ready = False
            trouble = Trouble("vanished", f"{trouble.text}, and no new one can be made: {e}")
        if not ready:
            self._ledger.resume()
            self._transfers.resume()
            return trouble
        # The scheduler lets transfers start again when it knows that nothing is where it was.
        self._post("renewed", NO_SLOTS)
        self._post("freed", self._ledger.emptied())
        self._post("sound", self._quarantine.empty())
        return None

    # Figures

    def _note(self, *, force: bool = False) -> None:
        """Write the figures into the journal if they changed; with ``force`` in any case, and raise what goes wrong."""
        journal, health, slots = self._volume.journal, self._health, self._quarantine.slots
        figures = {
            **self._figures(),
            "journal_dropped": self._ledger.dropped,
            "quarantined": len(slots),
            "quarantined_slots": slots[:MOST_NOTED],
            "reason": None if health.trouble is None else health.trouble.text,
            "since": health.since,
        }
        if journal is None or (figures == self._noted and not force):
            return
        try:
            journal.set_status(figures)
        except JournalError as e:
            if force:
                raise
            if not e.full:
                self._fail_journal(e)
        else:
            self._noted = figures
