"""Finding stored pages by their keys, for a rank that another one tells what is to be brought back.

Owns a thread that reads the journals over connections of its own. Invariants: every slot it was given comes out exactly
once, in a :class:`Found` or in :meth:`Finder.rest`; what is found was read whole, with a key that is the one asked for.
Its methods belong to one thread and never raise.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.store.catalog import PageIndex
from radixtier.store.journal_reader import JournalReader
from radixtier.store.known import known_rows, open_readers, slots_in
from radixtier.store.rows import Ints, JournalError, Keys, Row, Sums, offsets_of

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """Where pages are; arrays are ``[pages]``."""

    number: int
    """As asked for."""
    there: npt.NDArray[np.bool_]
    slots: Ints
    """Global; -1 for those that are not there."""
    checksums: Sums
    weighted: Sums
    """Weighted sums, 0 for those that are not known."""


class Finder:
    """Looks up pages of an earlier run.

    Parameters
    ----------
    paths, bases, extents
        As for :class:`~radixtier.store.restorer.Restorer`.
    wake
        Called on the thread when something was found.
    """

    def __init__(
        self, paths: Sequence[Path], bases: Sequence[int], extents: Sequence[Ints], wake: Callable[[], None]
    ) -> None:
        self._paths = list(paths)
        self._bases = list(bases)
        self._extents = list(extents)
        self._left = [slots_in(each) for each in extents]
        self._wake = wake
        self._asked: queue.SimpleQueue[tuple[int, Keys] | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="radixtier-find", daemon=True)
        self._thread.start()

    def find(self, number: int, keys: Keys) -> None:
        """Look for pages by their keys, ``[pages, 16]``; each key is asked for once."""
        self._asked.put((number, keys))

    def take(self) -> list[Found]:
        """Return what was found since the last call, in the order of the questions; never blocks."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    def close(self) -> None:
        """Stop once all questions are answered."""
        self._asked.put(None)

    @property
    def over(self) -> bool:
        """Whether it has stopped."""
        return not self._thread.is_alive()

    def rest(self) -> Ints:
        """Return the global slots of pages that were not found by anybody, once it is over."""
        found = [base + np.flatnonzero(left) for base, left in zip(self._bases, self._left, strict=True)]
        self._left = [left[:0] for left in self._left]
        return np.concatenate([np.empty(0, np.int64), *found])

    # The thread

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                look_up = _Lookup(open_readers(self._paths, stack), self._extents)
            except Exception:  # the server goes on with what the others find
                logger.exception("radixtier: the journals cannot be read: nothing of them is brought back")
                look_up = _Lookup([None] * len(self._paths), self._extents)
            while (question := self._asked.get()) is not None:
                number, keys = question
                self._found.put(self._answer(look_up, number, keys))
                self._wake()

    def _answer(self, look_up: _Lookup, number: int, keys: Keys) -> Found:
        drives, slots, checksums, weighted = look_up(keys)
        found = Found(number, slots >= 0, np.full(len(keys), -1, np.int64), checksums, weighted)
        for at in np.flatnonzero(found.there).tolist():
            left = self._left[drives[at]]
            if left[slots[at]]:
                left[slots[at]] = False
                found.slots[at] = self._bases[drives[at]] + slots[at]
            else:
                found.there[at] = False
        return found


class _Lookup:
    """From keys to drives, local slots, checksums and weighted sums."""

    def __init__(self, readers: list[JournalReader | None], extents: Sequence[Ints]) -> None:
        indexes = [known_rows(reader, known) for reader, known in zip(readers, extents, strict=True)]
        self._readers = readers
        self._drive = np.repeat(np.arange(len(indexes)), [len(index.slot) for index in indexes])
        self._slot = np.concatenate([np.empty(0, np.int64), *(index.slot for index in indexes)])
        pages = np.concatenate([np.empty(0, np.int64), *(index.pages for index in indexes)])
        self._offsets = offsets_of(pages)
        self._keys = np.concatenate([np.empty((0, 16), np.uint8), *(index.keys for index in indexes)])
        self._pages = PageIndex(self._keys)

    def __call__(self, keys: Keys) -> tuple[Ints, Ints, Sums, Sums]:
        page = self._pages.find(keys)
        row = np.searchsorted(self._offsets, page, side="right") - 1
        drives = np.where(page >= 0, self._drive[row] if len(self._drive) else 0, -1)
        slots = np.full(len(keys), -1, np.int64)
        checksums, weighted = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
        for each in np.unique(row[page >= 0]).tolist():
            mine = np.flatnonzero((row == each) & (page >= 0))
            place = page[mine] - self._offsets[each]
            if (stored := self._row(each)) is not None:
                slots[mine] = self._slot[each] + place
                checksums[mine] = stored.checksums[place]
                weighted[mine] = 0 if stored.weighted is None else stored.weighted[place]
        return drives, slots, checksums, weighted

    def _row(self, number: int) -> Row | None:
        """Return a row, None where it is not what the index says any more."""
        reader = self._readers[int(self._drive[number])]
        try:
            rows = reader.rows([int(self._slot[number])]) if reader else []
        except JournalError as e:
            logger.warning("radixtier: %s: the rest of this drive is not brought back", e)
            self._readers[int(self._drive[number])] = None
            return None
        keys = self._keys[self._offsets[number] : self._offsets[number + 1]]
        if not rows or rows[0].stretch.keys.tobytes() != keys.tobytes():
            return None
        return rows[0]
