"""Reading a journal, in this process or beside the one that writes it.

Owns a connection that is only read here. Invariants: nothing that is on disk is believed: rows of the wrong types or
sizes, outside the drive, overlapping others, with a broken seal or of an unknown namespace are left out; a read
transaction lasts for one query, so that a reader holds up no checkpoint for long. One thread at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.identity import DIGEST_BYTES, Space
from radixtier.store import journal_files as files
from radixtier.store.rows import (
    COLUMNS,
    Index,
    Ints,
    JournalError,
    Row,
    decode,
    decode_space,
    decode_used,
    offsets_of,
    valid,
)

ANYWHERE = 1 << 40
"""More slots than any drive has: of a reader that does not know how many there are."""

_AT_A_TIME = 4096
"""Rows that are Python objects at one time."""


class JournalReader:
    """What a journal holds. Every method may raise `JournalError`, and nothing else.

    Attributes
    ----------
    path : Path
        The database.
    store_id : str
        Which slab the rows belong to.
    page_tokens : int
        Tokens per page.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, *, store_id: str, n_slots: int, page_tokens: int) -> None:
        self.path = path
        self.store_id = store_id
        self.page_tokens = page_tokens
        self._db = db
        self._valid = valid(n_slots, page_tokens)
        self._known: dict[int, Space] = {}

    @staticmethod
    def open_readonly(path: Path) -> JournalReader:
        """Open for reading what another connection, here or in another process, may be writing.

        Raises
        ------
        JournalError
            When there is no journal of this format, or a file of it is a symbolic link or not ours.
        """
        with files.guarded(path, "reading"):
            if not files.check_owner(path):
                raise JournalError(f"there is no journal at {path}")
            db = files.connect(path, "ro")
            try:
                if why := files.complaint(db, {}):
                    raise JournalError(f"{path} cannot be read: {why}", corrupt=True)
                store_id, page_tokens = _meta_of(path, db)
            except BaseException:
                db.close()
                raise
        return JournalReader(path, db, store_id=store_id, n_slots=ANYWHERE, page_tokens=page_tokens)

    def extents(self) -> Ints:
        """Return the first slot and the pages of every row, ``[rows, 2]``, in slot order."""
        with files.guarded(self.path, "reading"):
            slot, pages, space = self._numbers(self._valid)
            return np.stack([slot, pages], axis=1)[self._good(slot, pages, space)]

    def _numbers(self, condition: str) -> Ints:
        """Return slot, pages and space of the rows for which the condition holds, ``[3, rows]``."""
        cursor = self._db.execute(f"SELECT slot, pages, space FROM runs WHERE {condition} ORDER BY slot")
        found = [np.empty((3, 0), dtype=np.int64)]
        while chunk := cursor.fetchmany(_AT_A_TIME):
            found.append(np.array(chunk, dtype=np.int64).T)
        return np.concatenate(found, axis=1)

    def index(self) -> Index:
        """Return all rows without tokens and checksums."""
        with files.guarded(self.path, "reading"):
            return self._index()

    def _index(self) -> Index:
        query = f"SELECT slot, pages, space, used, front, keys FROM runs WHERE {self._valid} ORDER BY slot"
        cursor = self._db.execute(query)
        numbers, used, front, keys = [], [], [], []
        while chunk := cursor.fetchmany(_AT_A_TIME):
            columns = list(zip(*chunk, strict=True))
            numbers.append(np.array(columns[:3], dtype=np.int64))
            used.append(decode_used(columns[3]))
            front.append(b"".join(columns[4]))
            keys.append(b"".join(columns[5]))
        slot, pages, space = np.concatenate(numbers, axis=1) if numbers else np.empty((3, 0), dtype=np.int64)
        good = self._good(slot, pages, space)
        index = Index(
            slot, pages, np.concatenate(used) if used else np.empty(0), space,
            _digests(front), _digests(keys), offsets_of(pages), dict(self._known),
        )  # fmt: skip
        return index.select(good)

    def _good(self, slot: Ints, pages: Ints, space: Ints) -> npt.NDArray[np.bool_]:
        """Tell which rows, in slot order, have a namespace and start behind the end of all before them."""
        self._known = self._spaces()
        good = np.isin(space, np.fromiter(self._known, dtype=np.int64))
        good[1:] &= slot[1:] >= np.maximum.accumulate(slot + pages)[:-1]
        return good

    def rows(self, slots: Sequence[int]) -> list[Row]:
        """Return the rows that start at these slots, in this order; what is missing or damaged is left out."""
        query = f"SELECT {COLUMNS} FROM runs WHERE slot = ? AND {self._valid}"
        found: list[Row] = []
        with files.guarded(self.path, "reading"):
            for slot in slots:
                values = self._db.execute(query, (int(slot),)).fetchone()
                if values is None:
                    continue
                if values[2] not in self._known:
                    self._known = self._spaces()
                if row := decode(values, self._known, self.page_tokens):
                    found.append(row)
        return found

    def spaces(self) -> dict[int, Space]:
        """Return the namespaces by their numbers; a number never comes back for another namespace."""
        with files.guarded(self.path, "reading"):
            self._known = self._spaces()
            return dict(self._known)

    def _spaces(self) -> dict[int, Space]:
        return read_spaces(self._db)

    def status(self) -> dict[str, Any]:
        """Return what `Journal.set_status` wrote last, else an empty dict."""
        with files.guarded(self.path, "reading"):
            value = files.meta_of(self._db).get("status")
        try:
            found = json.loads(value) if isinstance(value, bytes) else {}
        except (ValueError, RecursionError):
            found = {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        """Give the files up."""
        with files.guarded(self.path, "closing"):
            self._db.close()


def read_spaces(db: sqlite3.Connection) -> dict[int, Space]:
    """Return the namespaces of a database, without damaged ones."""
    found = db.execute("SELECT id, extra_key, cache_salt FROM spaces").fetchall()
    decoded = ((number, decode_space(extra_key, cache_salt)) for number, extra_key, cache_salt in found)
    return {number: space for number, space in decoded if space is not None}


def _meta_of(path: Path, db: sqlite3.Connection) -> tuple[str, int]:
    meta = files.meta_of(db)
    store_id, page_tokens = meta.get("store_id"), meta.get("page_tokens")
    if isinstance(store_id, bytes) and isinstance(page_tokens, bytes) and page_tokens.isdigit():
        return store_id.decode("ascii", "replace"), int(page_tokens[:9])
    raise JournalError(f"{path} cannot be read: its meta data is damaged", corrupt=True)


def _digests(parts: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
