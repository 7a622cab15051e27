"""From the links of a catalog to rows that can be trusted, in its order.

Owns the check of what the journals say. Invariant: a row comes out only if its keys follow from its tokens all the way
from the root of its namespace; one that does not, or has changed since the catalog was made, is passed over together
with all that hangs behind it. One thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from radixtier.identity import Stretch, Tokens
from radixtier.store.catalog import ROOT, Catalog
from radixtier.store.journal_reader import JournalReader
from radixtier.store.prefixes import PathCache
from radixtier.store.rows import Ints, JournalError, Row, Sums

logger = logging.getLogger(__name__)

_AT_A_TIME = 64
"""Rows per visit to the journals."""


class Stored(NamedTuple):
    """Pages that are on NVMe, with keys that follow from the tokens: what one row of a journal says."""

    stretch: Stretch
    slots: Ints
    """Global, ``[pages]``."""
    checksums: Sums
    """``[pages]``"""
    used: float
    """Unix seconds."""
    path: Tokens
    """Tokens in front of the stretch, from the root of its namespace; not to be written to."""
    weighted: Sums | None = None
    """``[pages]``, where they were recorded."""


class Walk:
    """Reads the rows of a catalog; a drive whose journal fails is left out from there on.

    Parameters
    ----------
    catalog : Catalog
        Which rows there are.
    readers : sequence of JournalReader or None
        One per drive.
    bases : sequence of int
        Global number of each drive's first slot.
    page_tokens : int
        Tokens per page.
    cache_bytes : int
        Bytes of paths that are kept for the rows behind them.
    """

    def __init__(
        self,
        catalog: Catalog,
        readers: Sequence[JournalReader | None],
        bases: Sequence[int],
        page_tokens: int,
        cache_bytes: int,
    ) -> None:
        self._catalog = catalog
        self._readers = list(readers)
        self._bases = bases
        self._page_tokens = page_tokens
        self._paths = PathCache(cache_bytes)
        self._good = np.zeros(len(catalog), dtype=np.bool_)

    def __iter__(self) -> Iterator[tuple[int, Stored]]:
        """Yield the number and the content of each row that can be used."""
        for at in range(0, len(self._catalog.order), _AT_A_TIME):
            numbers = self._catalog.order[at : at + _AT_A_TIME].tolist()
            rows = self._read(numbers)
            for number in numbers:
                if number in rows and (stored := self._store(number, rows[number])):
                    yield number, stored

    def _store(self, number: int, row: Row) -> Stored | None:
        catalog = self._catalog
        parent, skip = int(catalog.parent[number]), int(catalog.skip[number])
        before = int(catalog.depth[number]) * self._page_tokens
        row = row.part(skip, len(row.stretch))
        tokens = row.stretch.tokens.reshape(-1)
        if parent == ROOT:
            path = tokens[:0]
        elif not self._good[parent] or (whole := self._whole(parent)) is None:
            return None
        else:
            path = whole[:before]
        self._good[number] = True
        if not catalog.leaf[number]:
            self._paths.put(number, parent, before, tokens)
        slots = np.arange(row.slot, row.slot + len(row.stretch), dtype=np.int64)
        slots += self._bases[catalog.drive[number]]
        return Stored(row.stretch, slots, row.checksums, row.used, path, row.weighted)

    def _whole(self, number: int) -> Tokens | None:
        """Return the path to the end of a row, read anew as far as it is not kept; None when it has changed."""
        missing: list[int] = []
        above = number
        while above != ROOT and self._paths.get(above) is None:
            missing.append(above)
            above = int(self._catalog.parent[above])
        for at in range(len(missing), 0, -_AT_A_TIME):
            part = missing[max(0, at - _AT_A_TIME) : at][::-1]
            rows = self._read(part)
            if len(rows) < len(part):
                return None
            for each in part:
                skip = int(self._catalog.skip[each])
                tokens = rows[each].stretch.tokens[skip:].reshape(-1)
                before = int(self._catalog.depth[each]) * self._page_tokens
                self._paths.put(each, int(self._catalog.parent[each]), before, tokens)
        return self._paths.get(number)

    def _read(self, numbers: Sequence[int]) -> dict[int, Row]:
        """Return the rows that are what the catalog says, and whose keys follow from their tokens."""
        found: dict[int, Row] = {}
        for drive, reader in enumerate(self._readers):
            mine = {int(self._catalog.slot[n]): n for n in numbers if self._catalog.drive[n] == drive}
            if reader is None or not mine:
                continue
            try:
                rows = reader.rows(list(mine))
            except JournalError as e:
                logger.warning("radixtier: %s: the rest of this drive is not brought back", e)
                self._readers[drive] = None
                continue
            found |= {mine[row.slot]: row for row in rows if self._is_sound(mine[row.slot], row)}
        return found

    def _is_sound(self, number: int, row: Row) -> bool:
        catalog = self._catalog
        keys = catalog.keys[catalog.offsets[number] : catalog.offsets[number + 1]]
        same = row.stretch.front == catalog.front[number].tobytes() and row.stretch.keys.tobytes() == keys.tobytes()
        return same and row.stretch.intact()
