"""The journal of one drive: which pages its slots hold, for a restart.

Owns one SQLite database in WAL mode and its log. Invariants: the rows' slots are disjoint and lie within the drive; a
change is durable when its call returns; the database never takes more than ``max_bytes``, the log and the shared index
never more than ``log_bytes``. Synchronous, without threads: one thread at a time may call, and other processes may
read meanwhile (`JournalReader.open_readonly`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from radixtier.store import journal_files as files
from radixtier.store.journal_reader import ANYWHERE, JournalReader
from radixtier.store.journal_writer import JournalWriter
from radixtier.store.rows import Batch, Index, JournalError, Row, valid

__all__ = ["Batch", "Index", "Journal", "JournalError", "JournalReader", "Row"]


class Journal(JournalReader):
    """The rows of one drive, open for writing. Every method may raise `JournalError`, and nothing else.

    Attributes
    ----------
    replaced : str or None
        Why the database that was found has been replaced by an empty one.
    dropped : int
        Damaged rows that were deleted at open.
    """

    def __init__(
        self, path: Path, *, store_id: str, n_slots: int, page_tokens: int, max_bytes: int, log_bytes: int
    ) -> None:
        """Connect; callers use `open`."""
        self.replaced: str | None = None
        self.dropped = 0
        self._n_slots = n_slots
        self._caps = max_bytes, log_bytes
        self._meta = {"store_id": store_id, "page_tokens": str(page_tokens)}
        found = files.check_owner(path)
        db = files.create(path, self._meta) if found is None else files.connect(path, "rw")
        super().__init__(path, db, store_id=store_id, n_slots=n_slots, page_tokens=page_tokens)
        try:
            self.replaced = None if found is None else self._adopt()
            if self.replaced:
                self._start_empty({})
            elif found is None:
                self._start_writing()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def open(
        cls, path: Path, *, store_id: str, n_slots: int, page_tokens: int, max_bytes: int, log_bytes: int
    ) -> Journal:
        """Open a database for writing, or make one.

        One of another store, page size or format, or that is damaged, is replaced by an empty one (`replaced`). Single
        damaged rows are deleted (`dropped`), and rows that reach beyond the last slot are cut.

        Parameters
        ----------
        path : Path
            The database; files with ``-wal`` and ``-shm`` behind its name come beside it.
        store_id : str
            Which slab the rows belong to.
        n_slots, page_tokens : int
            Slots of the drive, tokens per page.
        max_bytes, log_bytes : int
            Caps of the database, and of its log and shared index together.

        Raises
        ------
        JournalError
            When a file is a symbolic link or not ours, or cannot be read or written.
        """
        with files.guarded(path, "opening"):
            return cls(
                path,
                store_id=store_id,
                n_slots=n_slots,
                page_tokens=page_tokens,
                max_bytes=max_bytes,
                log_bytes=log_bytes,
            )

    def _adopt(self) -> str | None:
        """Take over the database that was found, or say why it cannot be."""
        try:
            files.settle(self._db)
            if why := files.complaint(self._db, self._meta) or files.damage(self._db):
                return why
            files.checkpoint(self._db)  # what was found may be longer than the log may become
            self._start_writing()
            return None if self._tidy() else "it does not fit into the smaller store"
        except sqlite3.Error as e:
            if not files.is_damage(e):
                raise
            return f"it is damaged: {e}"

    def _start_writing(self) -> None:
        self._writer = JournalWriter(self.path, self._db, self.page_tokens, *self._caps)

    def _start_empty(self, status: dict[str, Any]) -> None:
        """Replace all files by those of an empty journal."""
        try:
            files.remove(self.path)
        finally:
            if not os.path.lexists(self.path):  # else it could not be removed, and stays in use
                with contextlib.suppress(sqlite3.Error):
                    self._db.close()
        self._db = files.create(self.path, self._meta)
        self._start_writing()
        if status:
            self._writer.set_meta("status", json.dumps(status).encode())

    def _tidy(self) -> bool:
        """Delete damaged rows, cut those beyond the last slot; False if the rest is more than the cap."""
        sound = valid(ANYWHERE, self.page_tokens)
        bad = [slot for (slot,) in self._db.execute(f"SELECT slot FROM runs WHERE {sound} IS NOT 1").fetchall()]
        found = self._numbers(sound)
        bad += found[0, ~self._good(*found)].tolist()
        self.dropped = len(bad)
        if bad:
            self._writer.delete(bad)
        self._writer.run(frees=[(self._n_slots, ANYWHERE)])
        return self._writer.shrink()

    def apply(self, batch: Batch) -> None:
        """Make the changes of a batch, durable on return: frees first, then adds, then touches.

        It is one transaction unless the log is too small for it; each part of it is then there or not. An add takes
        the place of what its slots held. The part of a row behind a range that is freed becomes a row of its own.

        Raises
        ------
        JournalError
            ``full`` with ``freed``: the frees are durable and none of the adds is there. Any other: part of the batch
            may be there; applying it once more, later, completes it.
        """
        for row in batch.adds:
            assert row.slot >= 0 and row.slot + len(row.stretch) <= self._n_slots, "a row outside the drive"
            assert row.stretch.tokens.shape[1] == self.page_tokens, "a row of another page size"
        with files.guarded(self.path, "writing"):
            try:
                self._writer.run(batch.frees, batch.adds, batch.touches)
            except sqlite3.Error as e:
                if not files.is_full(e):
                    raise
                gone = [*batch.frees, *((row.slot, len(row.stretch)) for row in batch.adds)]
                self._writer.run(gone, lossy=True)
                raise JournalError(f"{self.path} is full: {e}", full=True, freed=True) from e

    def clear(self) -> None:
        """Remove all rows, durable on return, by starting anew; this repairs a damaged database as well."""
        try:
            status = self.status()
        except JournalError:
            status = {}
        with files.guarded(self.path, "clearing"):
            self._start_empty(status)

    def set_status(self, status: dict[str, Any]) -> None:
        """Keep a few figures (JSON, at most some KiB) for whoever looks at the journal from outside."""
        with files.guarded(self.path, "writing"):
            self._writer.set_meta("status", json.dumps(status).encode())

    def close(self) -> None:
        """Bring the log into the database and give the files up; once more does nothing."""
        with files.guarded(self.path, "closing"):
            try:
                files.checkpoint(self._db)
            except sqlite3.ProgrammingError:
                pass  # closed already, or never open again after `clear` has failed
            finally:
                self._db.close()
