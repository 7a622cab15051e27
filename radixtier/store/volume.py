"""What the store has open in one directory: lock, slab, engine and journal.

Owns them from `Volume` to `close`. Invariant: slab and journal carry the same store id, or the journal has no row that
counts. Transfers may run on any thread; all else is for one thread at a time, the owner's before the keeper starts and
after it has ended, the keeper's in between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radixtier.footprint import BLOCK, database_bytes, log_bytes
from radixtier.io.engine import Engine, transfer
from radixtier.io.frames import aligned_memory
from radixtier.machine import free_disk_bytes
from radixtier.store.header import Header
from radixtier.store.journal import Journal, JournalError
from radixtier.store.journal_files import read_ahead
from radixtier.store.paths import VOLATILE, StoreFiles, lock_path
from radixtier.store.slab import PATH_FLAG, Slab, StoreError, claim, lock, open_slab, unlock

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What is to be open in a directory."""

    files: StoreFiles
    header: Header
    """Of a slab that has to be made."""
    n_slots: int
    min_free: int
    """Bytes of the file system that are not ours to use."""
    make_engine: Callable[[Path], Engine]
    """From the directory to an engine that is not open yet."""

    @property
    def volatile(self) -> bool:
        """Whether nothing is kept for a restart."""
        return self.files.id == VOLATILE

    def open_journal(self, slab: Slab) -> Journal | None:
        """Open the journal that goes with a slab; raises `JournalError`."""
        if self.volatile:
            return None
        tokens = slab.header.page_tokens
        return Journal.open(
            self.files.db, store_id=slab.header.store_id, n_slots=self.n_slots, page_tokens=tokens,
            max_bytes=database_bytes(self.n_slots, tokens), log_bytes=log_bytes(self.n_slots, tokens),
        )  # fmt: skip


class Volume:
    """The open files of a plan, whose directory is claimed and locked by ``lock_fd``.

    Raises
    ------
    StoreError
        When something cannot be opened; the lock is then still held.
    """

    def __init__(self, plan: Plan, lock_fd: int) -> None:
        self.plan = plan
        self._locks = [lock_fd]
        self._open(afresh=plan.volatile)
        if self.slab.kept and self.journal is not None and self.journal.replaced:
            logger.warning("radixtier: the pages in %s cannot be found: %s", self.slab.path, self.journal.replaced)

    def _open(self, *, afresh: bool) -> None:
        plan = self.plan
        header = plan.header.renewed()
        slab = open_slab(plan.files, header, plan.n_slots, min_free=plan.min_free, afresh=afresh)
        with contextlib.ExitStack() as undo:
            undo.callback(slab.close, remove=afresh)
            try:
                engine = plan.make_engine(self.directory)
                engine.open(slab.path, slab.nbytes)
                undo.callback(engine.close)
                if not afresh and not plan.volatile and plan.files.db.exists():
                    read_ahead(plan.files.db)
                journal = plan.open_journal(slab)
            except Exception as e:  # engines are libraries of others
                raise StoreError(f"{PATH_FLAG} {self.directory}: cannot open the store there: {e}") from e
            undo.pop_all()
        self.slab, self.engine, self.journal = slab, engine, journal
        self._note_journal()

    def _note_journal(self) -> None:
        """Remember which file the database is; one that is gone already is missing."""
        self._db: os.stat_result | None = None
        with contextlib.suppress(OSError):
            self._db = os.stat(self.plan.files.db)

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.plan.files.directory

    @property
    def path(self) -> Path:
        """The slab."""
        return self.slab.path

    # Checks, which may take as long as the device pleases

    def crowded(self) -> str | None:
        """Return why the file system has too little free space; raises `OSError`."""
        if not self.plan.min_free:
            return None
        free = free_disk_bytes(self.directory)
        if free >= self.plan.min_free:
            return None
        return f"its file system has {free} bytes free, less than the {self.plan.min_free} that are to stay free"

    def test(self) -> str | None:
        """Write and read the scratch block; return what went wrong."""
        out, back = aligned_memory(BLOCK), aligned_memory(BLOCK)
        out[:] = secrets.token_bytes(BLOCK)
        for move, buffer in ((self.engine.writev, out), (self.engine.readv, back)):
            try:
                error = transfer(move, [buffer], BLOCK).error
            except Exception as e:  # engines are libraries of others
                error = f"{type(e).__name__}: {e}"
            if error is not None:
                return f"a test of {self.slab.path} failed: {error}"
        return None if out == back else f"a test of {self.slab.path} read something else than was written"

    def journal_missing(self) -> bool:
        """Whether the database at its path is not the open one any more; raises `OSError`."""
        if self.plan.volatile:
            return False
        try:
            return self._db is None or not os.path.samestat(os.stat(self.plan.files.db), self._db)
        except FileNotFoundError:
            return True

    # Repairs

    def reopen_journal(self) -> bool:
        """Open the journal again; return whether its rows are lost. Raises `JournalError` or `OSError`."""
        missing = self.journal_missing()
        self._close_journal()
        journal = self.plan.open_journal(self.slab)
        self.journal = journal
        self._note_journal()
        return missing or (journal is not None and journal.replaced is not None)

    def clear(self) -> None:
        """Remove all rows, durable on return; raises `JournalError` or `OSError`."""
        if self.plan.volatile:
            return
        if self.journal is None:
            raise JournalError(f"{self.plan.files.db} is closed")
        self.journal.clear()
        self._note_journal()  # it starts a new file

    def disown(self) -> None:
        """Make all rows worthless without the help of the journal, durably; raises `OSError`."""
        self.slab.disown()
        self._close_journal()

    def renew(self) -> None:
        """Make a new slab and a new journal, in place of what is gone from the directory; no transfer may run.

        Raises
        ------
        StoreError
            When that is not possible, or would put the store on another file system.
        OSError
            Likewise.
        """
        if self.slab.moved():
            raise StoreError(f"{self.directory} is on another file system than before: restart the server to use it")
        claim(self.directory)
        self._lock_again()
        old = self.slab, self.engine
        self._close_journal()
        self._open(afresh=True)
        _close(*old, remove=False)

    def _lock_again(self) -> None:
        """Lock the directory if the lock file there is none that we hold."""
        try:
            there = lock_path(self.directory, self.plan.files.rank).lstat()
            held = any(os.path.samestat(there, os.fstat(fd)) for fd in self._locks)
        except FileNotFoundError:
            held = False
        if not held:
            self._locks.append(lock(self.directory, self.plan.files.rank))

    # End

    def close(self) -> None:
        """Close everything and give the directory up; a store that nothing outlives leaves no slab."""
        self.close_files()
        while self._locks:
            unlock(self._locks.pop())

    def close_files(self) -> None:
        """Close everything but the lock."""
        self._close_journal()
        _close(self.slab, self.engine, remove=self.plan.volatile)

    def _close_journal(self) -> None:
        journal, self.journal = self.journal, None
        if journal is not None:
            try:
                journal.close()
            except JournalError as e:
                logger.warning("radixtier: %s", e)


def _close(slab: Slab, engine: Engine, *, remove: bool) -> None:
    try:
        engine.close()
    except Exception as e:  # engines are libraries of others, and there is nothing left to save
        logger.warning("radixtier: closing %s: %s", slab.path, e)
    slab.close(remove=remove)
