"""How the rows of all drives hang together: one forest over them, found from their keys alone.

Owns the links of a restart. Invariants: a row is in `order` only if a chain of rows leads from it to the root of its
namespace; parents come before children; no page is in `order` twice. Nothing is verified here beyond that: keys and
tokens are read from disk, see `Stretch.intact`. Costs some 60 bytes per page while it is built, numpy throughout.
Built by one thread, then constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radixtier.identity import DIGEST_BYTES, Space, namespace_seed
from radixtier.store.rows import Index, Ints, Keys, offsets_of

Flags = npt.NDArray[np.bool_]

ROOT = -1
"""Parent of a row that begins at the root of its namespace."""


class Catalog:
    """Links between rows; row numbers count through the indexes in their order.

    Parameters
    ----------
    indexes : sequence of Index
        One per drive.

    Attributes
    ----------
    drive, slot, pages, used : ndarray, shape (rows,)
        Of each row: its drive, and as in its index.
    front : ndarray of uint8, shape (rows, 16)
        As in the index.
    keys, offsets : ndarray
        Of all rows, as in an index.
    skip : ndarray of int64, shape (rows,)
        Pages at its front that a row leaves out, since another row has them too.
    parent : ndarray of int64, shape (rows,)
        Row that has the page in front of page ``skip``, or `ROOT`. Means nothing for a row that is not in `order`.
    parent_pages : ndarray of int64, shape (rows,)
        Pages of the parent, the skipped ones included, that are in front of the row; 0 at the root.
    depth : ndarray of int64, shape (rows,)
        Pages in front of page ``skip``, from the root.
    order : ndarray of int64
        Row numbers, parents before children, hottest first: a row is as hot as the hottest that hangs behind it.
    leaf, tip : ndarray of bool, shape (rows,)
        Nothing hangs behind the row; it was used later than all that hangs behind it. A leaf is a tip.
    orphans : ndarray of int64, shape (n, 3)
        Drive, first slot and pages of what is not in `order`: rows without a way to the root, and skipped pages.
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        counts = [len(index.slot) for index in indexes]
        self.drive: Ints = np.repeat(np.arange(len(indexes)), counts)
        self.slot: Ints = _joined([index.slot for index in indexes])
        self.pages: Ints = _joined([index.pages for index in indexes])
        self.used: npt.NDArray[np.float64] = np.concatenate([np.empty(0), *(index.used for index in indexes)])
        self.front = _digests([index.front for index in indexes])
        self.keys = _digests([index.keys for index in indexes])
        self.offsets = offsets_of(self.pages)
        space, seeds = _number_spaces(indexes)
        root = (self.front == seeds[space]).all(axis=1)

        pages = PageIndex(self.keys)
        before = pages.find(self.front)  # the page in front of each row, if it is stored
        self.skip: Ints = np.zeros(len(self.slot), dtype=np.int64)
        reached = self._link(before, root, space)
        if pages.repeated:
            before = self._skip_repeated(pages, before, reached)
            reached = self._link(before, root & (self.skip == 0), space)
        self._arrange(reached & (self.skip < self.pages))

    def __len__(self) -> int:
        return len(self.slot)

    def _link(self, before: Ints, root: Flags, space: Ints) -> Flags:
        """Set `parent`, `parent_pages` and `depth`; return which rows hang on the root."""
        n = len(self)
        found = (before >= 0) & ~root
        parent = np.searchsorted(self.offsets, before, side="right") - 1
        place = before - self.offsets[parent] + 1
        found &= (space[parent] == space) & (place > self.skip[parent]) & (self.skip[parent] < self.pages[parent])
        self.parent: Ints = np.where(found, parent, ROOT)
        self.parent_pages: Ints = np.where(found, place, 0)

        # Pointers are doubled: after k rounds they lead 2**k rows up, and depth has summed what lies between.
        up = np.append(np.where(found, parent, np.where(root, n, n + 1)), [n, n + 1])
        depth = np.append(np.where(found, place - self.skip[parent], 0), [0, 0])
        for _ in range(n.bit_length()):
            depth += depth[up]
            up = up[up]
        self.depth: Ints = depth[:n]
        reached: Flags = up[:n] == n  # a damaged row may name itself, in a circle: that never arrives
        return reached

    def _skip_repeated(self, pages: PageIndex, before: Ints, reached: Flags) -> Ints:
        """Leave every key to one row, the one that begins closest to the root; return the pages in front anew.

        Equal keys have equal paths, so what a row shares with one that begins no later is all it has up to there.
        """
        page = pages.shared()
        row = np.searchsorted(self.offsets, page, side="right") - 1
        halves = self.keys[page].view("<u8")
        rank = np.lexsort((page, -self.used[row], self.depth[row], ~reached[row], halves[:, 1], halves[:, 0]))
        page, row, halves = page[rank], row[rank], halves[rank]
        first = np.append(True, (halves[1:] != halves[:-1]).any(axis=1))
        chosen = page[np.maximum.accumulate(np.where(first, np.arange(len(page)), 0))]
        np.maximum.at(self.skip, row[~first], (page - self.offsets[row] + 1)[~first])

        keeper = np.arange(len(self.keys))
        keeper[page] = chosen
        cut = self.skip > 0
        before = before.copy()
        before[cut] = (self.offsets[:-1] + self.skip - 1)[cut]
        return np.where(before >= 0, keeper[before], -1)

    def _arrange(self, usable: Flags) -> None:
        """Set `order`, `leaf`, `tip` and `orphans`."""
        n = len(self)
        linked = usable & (self.parent >= 0)
        up = np.append(np.where(linked, self.parent, n), n)
        heat = np.append(np.where(usable, self.used, -np.inf), -np.inf)
        parent = up
        while (parent < n).any():  # as for the depth; a parent is as hot as the hottest below
            np.maximum.at(heat, parent, heat.copy())
            heat[n] = -np.inf
            parent = parent[parent]
        below = np.full(n + 1, -np.inf)
        np.maximum.at(below, up[:n], heat[:n])
        self.tip: Flags = usable & (self.used > below[:n])
        self.leaf: Flags = usable.copy()
        self.leaf[self.parent[linked]] = False
        rows = np.flatnonzero(usable)
        self.order: Ints = rows[np.lexsort((rows, self.depth[rows], -heat[rows]))]
        lost = np.where(usable, self.skip, self.pages)
        self.orphans: Ints = np.stack([self.drive, self.slot, lost], axis=1)[lost > 0]


class PageIndex:
    """Pages in the order of the first half of their keys, ``[pages, 16]``."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        halves = np.ascontiguousarray(keys[:, :8]).view("<u8").ravel()
        self._page = np.argsort(halves)
        self._half = halves[self._page]
        self._same = self._half[1:] == self._half[:-1]
        self.repeated = bool(self._same.any())

    def find(self, wanted: Keys) -> Ints:
        """Return for each key a page that has it, or -1.

        Of two keys with equal first halves one may be missed: that is a miss, once in 2**64 pairs.
        """
        halves = np.ascontiguousarray(wanted[:, :8]).view("<u8").ravel()
        order = np.argsort(halves)  # neighbours search in memory that is near
        at = np.empty(len(halves), dtype=np.int64)
        at[order] = np.searchsorted(self._half, halves[order])
        found = np.full(len(wanted), -1, dtype=np.int64)
        inside = np.flatnonzero(at < len(self._half))
        page = self._page[at[inside]]
        good = (self._keys[page] == wanted[inside]).all(axis=1)
        found[inside[good]] = page[good]
        return found

    def shared(self) -> Ints:
        """Return the pages whose half key others have too."""
        page: Ints = self._page[np.append(False, self._same) | np.append(self._same, False)]
        return page


def _number_spaces(indexes: Sequence[Index]) -> tuple[Ints, Keys]:
    """Return one number per namespace for every row, and the seeds of the namespaces by these numbers."""
    numbers: dict[Space, int] = {}
    parts = []
    for index in indexes:
        known = np.array(sorted(index.spaces), dtype=np.int64)
        ours = [numbers.setdefault(index.spaces[number], len(numbers)) for number in known.tolist()]
        parts.append(np.array(ours, dtype=np.int64)[np.searchsorted(known, index.space)])
    seeds = b"".join(namespace_seed(*space) for space in numbers)
    return _joined(parts), np.frombuffer(seeds, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _digests(parts: Sequence[Keys]) -> Keys:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, DIGEST_BYTES), dtype=np.uint8), *parts])
