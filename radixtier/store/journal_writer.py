"""Changing the rows of a journal within the bounds of its log.

Owns the write transactions of one connection. Invariants: rows never overlap; a namespace is there exactly as long as
a row names it; before a transaction starts, the log has room for all that it may write, since a page goes to the log
at most once per transaction and the pages that a change can touch are counted beforehand. One thread at a time;
raises `sqlite3.Error`, and `JournalError` when a reader keeps the log from being emptied.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from radixtier.footprint import BLOCK
from radixtier.identity import Space
from radixtier.store import journal_files as files
from radixtier.store.journal_reader import ANYWHERE, read_spaces
from radixtier.store.paths import files_of
from radixtier.store.rows import COLUMNS, JournalError, Row, decode, encode, encode_text, encode_used, row_bytes, valid

_FRAME = BLOCK + 24
"""Bytes of a database page in the log."""

_INDEX_FRAMES, _INDEX_BYTES = 4062, 32 << 10
"""The shared index has a block of this many bytes per this many frames."""

_ROW_BYTES = 64 << 10
"""Longer rows are cut: what is freed in part is written anew."""

_NAME = 1024
"""Characters of a namespace, beyond which its rows are not kept: a page of the database has to hold it."""

_OWN = 8
"""Pages that any transaction may touch: the first page, free list, meta data, their places in the map of pages."""

_EDIT = 8
"""Pages that a row inserted anywhere may touch: three siblings made five, the pages above, the map of pages."""

_NEAR = 2
"""Pages per row that is deleted or inserted right behind another change."""


class JournalWriter:
    """Transactions on the rows of a database of at most ``max_bytes``, with a log of at most ``log_bytes``."""

    def __init__(self, path: Path, db: sqlite3.Connection, page_tokens: int, max_bytes: int, log_bytes: int) -> None:
        self._db = db
        self._log = files_of(path)[1]
        self._page_tokens = page_tokens
        self._valid = valid(ANYWHERE, page_tokens)
        self._log_limit = log_bytes - _INDEX_BYTES * (1 + log_bytes // (_FRAME * _INDEX_FRAMES))
        self._budget = self._log_limit // 2 // _FRAME
        if self._budget < _OWN + _EDIT:
            raise JournalError(f"a log of {log_bytes} bytes is too small")
        self._max_pages = max_bytes // BLOCK
        room = min(_ROW_BYTES, self._budget // 8 * BLOCK)
        self._pages_per_row = max(1, room // row_bytes(1, page_tokens))
        self._frames = self._new = self._before = 0
        self._cap()
        self._load()

    def _load(self) -> None:
        self._spaces: dict[int, Space] = read_spaces(self._db)
        self._ids = {space: number for number, space in self._spaces.items()}
        counts = self._db.execute("SELECT space, count(*) FROM runs GROUP BY space").fetchall()
        self._uses: Counter[int] = Counter(dict(counts))
        named = {number for (number,) in self._db.execute("SELECT id FROM spaces").fetchall()}
        self._unused = named - set(self._uses)
        self._stale = False

    # Transactions

    def run(
        self,
        frees: Iterable[tuple[int, int]] = (),
        adds: Iterable[Row] = (),
        touches: Iterable[tuple[int, float]] = (),
        *,
        lossy: bool = False,
    ) -> None:
        """Make changes, durable on return: in one transaction if the log has room for it, else in several.

        With ``lossy``, rows that would have to be cut are deleted: that needs no new page.
        """
        with self._transaction():
            for start, n in frees:
                self._cut(start, start + n, lossy)
            for row in adds:
                self._add(row)
            self._touch(touches)

    def delete(self, slots: Iterable[int]) -> None:
        """Delete the rows that start at these slots, whatever is in them."""
        with self._transaction():
            for slot in slots:
                self._reserve(_EDIT)
                self._db.execute("DELETE FROM runs WHERE slot = ?", (slot,))
        self._stale = True

    def set_meta(self, name: str, value: bytes) -> None:
        """Write one value of the meta data."""
        with self._transaction():
            self._reserve(_EDIT + 2 * len(value) // BLOCK)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def shrink(self) -> bool:
        """Bring the database below its cap, by giving free pages back; return whether it is there."""
        while files.pragma(self._db, "page_count") > self._max_pages and files.pragma(self._db, "freelist_count"):
            self._make_room()
            self._db.execute(f"PRAGMA incremental_vacuum({max(1, self._budget // 10)})").fetchall()
        files.checkpoint(self._db)
        return self._cap()

    def _cap(self) -> bool:
        """Let the database grow to its cap; False, and no further than now, if it has more pages already."""
        return files.pragma(self._db, f"max_page_count = {self._max_pages}") <= self._max_pages

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._begin()
            yield
            self._commit()
        except BaseException:
            self._stale = True
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        if self._stale:
            self._load()
        self._make_room()
        self._db.execute("BEGIN IMMEDIATE")
        self._before = files.pragma(self._db, "page_count")
        self._frames, self._new = _OWN, 0

    def _make_room(self) -> None:
        """Empty the log when it has passed half of its cap: the other half is for the next transaction."""
        half = self._log_limit // 2
        if self._log_bytes() <= half or files.checkpoint(self._db) or self._log_bytes() <= half:
            return
        raise JournalError(f"{self._log} is full: a reader has kept it from being emptied for too long")

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log).st_size
        except FileNotFoundError:
            return 0

    def _reserve(self, frames: int, new: int = 0) -> None:
        """Note that ``frames`` pages may be written, ``new`` of them new; go on in another transaction if too many."""
        bound = min(self._frames + frames, self._before + self._new + new)
        if bound > self._budget and self._frames > _OWN:
            self._commit()
            self._begin()
        self._frames += frames
        self._new += new

    def _commit(self) -> None:
        for number in self._unused:
            self._db.execute("DELETE FROM spaces WHERE id = ?", (number,))
            self._uses.pop(number, None)
            if (space := self._spaces.pop(number, None)) is not None and self._ids.get(space) == number:
                del self._ids[space]
        self._unused.clear()
        self._db.execute("COMMIT")

    # Changes

    def _cut(self, lo: int, hi: int, lossy: bool = False) -> None:
        """Take slots ``lo .. hi - 1`` out of all rows."""
        first = "coalesce((SELECT max(slot) FROM runs WHERE slot <= ?), ?)"
        query = f"SELECT slot, pages, space FROM runs WHERE slot >= {first} AND slot < ? ORDER BY slot"
        found = self._db.execute(query, (lo, lo, hi)).fetchall()
        hit = [(slot, pages, space) for slot, pages, space in found if slot + pages > lo]
        if hit:
            self._reserve(_EDIT)
        for slot, pages, space in hit:
            rest = [] if lossy else self._rest(slot, pages, lo, hi)
            overflow = self._overflow(pages)
            space_too = _EDIT if self._uses[space] == 1 else 0
            self._reserve(space_too + _NEAR + overflow + len(rest) * (_NEAR + 2 * overflow), 3 * len(rest))
            self._db.execute("DELETE FROM runs WHERE slot = ?", (slot,))
            self._use(space, -1)
            for row in rest:
                self._insert(row)

    def _rest(self, slot: int, pages: int, lo: int, hi: int) -> list[Row]:
        """Return what of a row lies in front of ``lo`` and behind ``hi``."""
        if slot >= lo and slot + pages <= hi:
            return []
        query = f"SELECT {COLUMNS} FROM runs WHERE slot = ? AND {self._valid}"
        values = self._db.execute(query, (slot,)).fetchone()
        row = None if values is None else decode(values, self._spaces, self._page_tokens)
        if row is None:
            return []
        parts = ((0, max(0, lo - slot)), (min(pages, hi - slot), pages))
        return [row.part(begin, end) for begin, end in parts if begin < end]

    def _add(self, row: Row) -> None:
        if sum(len(part or "") for part in row.stretch.space) > _NAME:
            return
        for lo in range(0, len(row.stretch), self._pages_per_row):
            part = row.part(lo, min(lo + self._pages_per_row, len(row.stretch)))
            pages = len(part.stretch)
            self._cut(part.slot, part.slot + pages)
            number = self._ids.get(part.stretch.space)
            edits = 2 if number is None or number in self._unused else 1
            overflow = self._overflow(pages)
            self._reserve(edits * _EDIT + 2 * overflow, 3 * edits + overflow)
            self._insert(part)

    def _insert(self, row: Row) -> None:
        number = self._number(row.stretch.space)
        values = encode(row, number)
        self._use(number, 0 if values is None else 1)
        if values is not None:
            self._db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _use(self, number: int, change: int) -> None:
        self._uses[number] += change
        (self._unused.discard if self._uses[number] > 0 else self._unused.add)(number)

    def _overflow(self, pages: int) -> int:
        """Return the database pages that a row fills beyond its place in the tree."""
        return row_bytes(pages, self._page_tokens) // (BLOCK - 4)

    def _number(self, space: Space) -> int:
        if space not in self._ids:
            # Random, so that a reader never takes one for another after it has been given up.
            number = int.from_bytes(os.urandom(6), "little")
            parts = encode_text(space.extra_key), encode_text(space.cache_salt)
            self._db.execute("INSERT INTO spaces VALUES (?, ?, ?)", (number, *parts))
            self._ids[space] = number
            self._spaces[number] = space
        return self._ids[space]

    def _touch(self, touches: Iterable[tuple[int, float]]) -> None:
        query = "SELECT slot, pages FROM runs WHERE slot <= ? ORDER BY slot DESC LIMIT 1"
        latest: dict[int, float] = {}
        for slot, used in touches:
            found = self._db.execute(query, (slot,)).fetchone()
            if found and slot < sum(found):
                latest[found[0]] = max(used, latest.get(found[0], used))
        for first, used in latest.items():
            self._reserve(1)  # the blob keeps its size: it is overwritten where it is
            self._db.execute("UPDATE runs SET used = ? WHERE slot = ?", (encode_used(used), first))
