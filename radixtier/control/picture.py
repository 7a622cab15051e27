"""A picture of the whole tree, from which parts are drawn: the largest subtrees one by one, small siblings together.

Owns the rows that were read, and the sums over subtrees. The rows are read in pages while the tree changes, so a node's
parent may be missing: such a node hangs from the root. Sums are those of the rows. Invariant: numbers grow from parents
to children, so every order by number has parents first. Immutable after construction; any thread. The work is done by
numpy in steps of a few milliseconds at most for 100,000 nodes, so that it holds up nobody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.control.rows import NONE, Floats, Ints, Rows

SUMMED = ("tokens", "hbm", "dram", "nvme")
"""What is summed up over subtrees, besides the nodes."""

LISTED = 20
"""Rows of the hottest and of the coldest nodes."""

LEAST_ITEMS = 2
"""A node, and one item for all that hangs from it."""

LONGEST_PATH = 1000
"""Rows of the path to a node: of a longer one, its end."""

Flags = npt.NDArray[np.bool_]


class Picture:
    """The tree as it was when its rows were read.

    Parameters
    ----------
    rows : Rows
        All of them.
    taken : float
        When, Unix seconds.

    Attributes
    ----------
    rows : Rows
        As given, but without the parents that are not among them.
    taken : float
        As given.
    """

    def __init__(self, rows: Rows, taken: float) -> None:
        self.taken = taken
        self._n = n = len(rows)
        self._parent = _parents(rows)
        self.rows = replace(rows, parent=np.where(self._parent < n, rows.parent, NONE))
        ones = np.ones(n)
        values = [ones, *(getattr(rows, name).astype(np.float64) for name in SUMMED)]
        sums = _over_subtrees(self._parent, values)
        self._below = dict(zip(("nodes", *SUMMED), (each.astype(np.int64) for each in sums), strict=True))

    def find(self, node: int) -> int | None:
        """Return the place of a node among the rows, None for one that is not there."""
        at = int(np.searchsorted(self.rows.node, node))
        return at if at < self._n and int(self.rows.node[at]) == node else None

    def to_json(self, root: int | None, most: int) -> dict[str, Any]:
        """Return the part below ``root``, a place among the rows, or all, in at most ``most`` items as plain data."""
        parent = self._parent
        some = np.ones(self._n, np.bool_)
        if root is not None:
            some = _descends(parent, root)
            parent = parent.copy()
            parent[root] = self._n
        places = np.flatnonzero(some)
        return {
            "taken": self.taken,
            "total_nodes": self._n,
            "root": None if root is None else int(self.rows.node[root]),
            "path": [] if root is None else self.rows.to_json(self._path(root)),
            "nodes": self._items(places, parent, most),
            "hottest": self.rows.to_json(self._hottest(places)),
            "coldest": self.rows.to_json(self._coldest(places)),
        }

    def _path(self, place: int) -> list[int]:
        path = [place]
        while int(self._parent[path[-1]]) < self._n and len(path) < LONGEST_PATH:
            path.append(int(self._parent[path[-1]]))
        return path[::-1]

    # Which nodes, and which together

    def _items(self, places: Ints, parent: Ints, most: int) -> list[dict[str, Any]]:
        order = places[np.argsort(-self._below["tokens"][places], kind="stable")]
        rank = np.full(self._n + 1, self._n + 1, np.int64)
        rank[order] = np.arange(len(order))
        rank[self._n] = NONE
        kept = _how_many(rank, _last_child(parent, places, rank), min(most, len(order)), most)
        alone = self._alone(places[rank[places] >= kept], parent, rank, kept)
        shown = np.sort(np.concatenate([order[:kept], alone]))
        hidden = rank >= kept
        hidden[shown] = False
        merged = places[hidden[places] & (rank[parent[places]] < kept)]
        return self._nodes(shown) + self._groups(merged, parent)

    def _alone(self, left: Ints, parent: Ints, rank: Ints, kept: int) -> Ints:
        """Those that are left out by themselves, without a sibling or a child: they take no more room as they are."""
        siblings = np.bincount(parent[left], minlength=self._n + 1)
        lonely = (siblings[parent[left]] == 1) & (rank[parent[left]] < kept) & (self._below["nodes"][left] == 1)
        alone: Ints = left[lonely]
        return alone

    def _nodes(self, places: Ints) -> list[dict[str, Any]]:
        items = self.rows.to_json(places)
        for item, below in zip(items, self._sums(places), strict=True):
            item["below"], item["merged"] = below, 0
        return items

    def _sums(self, places: Ints) -> list[dict[str, int]]:
        names = tuple(self._below)
        columns = [self._below[name][places].tolist() for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _groups(self, merged: Ints, parent: Ints) -> list[dict[str, Any]]:
        """One item for the siblings among ``merged``, by their parents."""
        if not len(merged):
            return []
        merged = merged[np.argsort(parent[merged], kind="stable")]
        first = np.flatnonzero(np.diff(parent[merged], prepend=NONE))
        rows, above = self.rows, parent[merged][first]
        own = {name: np.add.reduceat(getattr(rows, name)[merged], first).tolist() for name in (*SUMMED, "lost", "hits")}
        below = {name: np.add.reduceat(sums[merged], first).tolist() for name, sums in self._below.items()}
        start = np.minimum.reduceat(rows.start_token[merged], first).tolist()
        used = _none(np.fmax.reduceat(rows.last_used[merged], first))
        expected = _none(np.fmin.reduceat(rows.expected[merged], first))
        counts = np.diff(first, append=len(merged)).tolist()
        parents = np.append(rows.node, NONE)[above].tolist()
        return [
            {
                "node": -1 - k,
                "parent": None if parents[k] == NONE else parents[k],
                "start_token": start[k],
                **{name: values[k] for name, values in own.items()},
                "last_used": used[k],
                "expected": expected[k],
                "session": None,
                "pinned": {},
                "below": {name: values[k] for name, values in below.items()},
                "merged": count,
            }
            for k, count in enumerate(counts)
        ]

    # Extremes

    def _hottest(self, places: Ints) -> Ints:
        """Those that most requests used; among equals, those used last."""
        hits = self.rows.hits[places]
        some = places[_first(-hits.astype(np.float64), LISTED)]
        used = np.nan_to_num(self.rows.last_used[some], nan=-np.inf)
        found: Ints = some[np.lexsort((some, -used, -self.rows.hits[some]))][:LISTED]
        return found

    def _coldest(self, places: Ints) -> Ints:
        """Those that were not used for longest, and before them those that never were."""
        used = np.nan_to_num(self.rows.last_used[places], nan=-np.inf)
        some = places[_first(used, LISTED)]
        found: Ints = some[np.lexsort((some, np.nan_to_num(self.rows.last_used[some], nan=-np.inf)))][:LISTED]
        return found


def _parents(rows: Rows) -> Ints:
    """Return the place of each row's parent, the number of rows where it has none."""
    n = len(rows)
    at = np.searchsorted(rows.node, rows.parent)
    there = (rows.parent >= 0) & (at < np.arange(n))
    there[there] = rows.node[at[there]] == rows.parent[there]
    return np.where(there, at, n).astype(np.int64)


def _over_subtrees(parent: Ints, values: list[Floats]) -> list[Floats]:
    """Sum values up over every node's subtree, itself included.

    In the k-th round each sum covers the descendants less than ``2**k`` generations away, and the ancestor is that of
    ``2**k`` generations, so there are as many rounds as the depth has bits.
    """
    n = len(parent)
    above = np.append(parent, n)
    sums = [np.append(each, 0.0) for each in values]
    while n and (above[:n] < n).any():
        for each in sums:
            each += np.bincount(above[:n], weights=each[:n], minlength=n + 1)
            each[n] = 0.0
        above = above[above]
    return [each[:n] for each in sums]


def _descends(parent: Ints, root: int) -> Flags:
    """Tell which nodes are ``root`` or have it among their ancestors; in rounds, as above."""
    n = len(parent)
    above = np.append(parent, n)
    found = np.zeros(n + 1, np.bool_)
    found[root] = True
    while (above[:n] < n).any():
        found |= found[above]
        above = above[above]
    return found[:n]


def _last_child(parent: Ints, places: Ints, rank: Ints) -> Ints:
    """Return the rank of each node's last child, :data:`NONE` without one; the root's comes at the end."""
    last = np.full(len(parent) + 1, NONE, np.int64)
    np.maximum.at(last, parent[places], rank[places])
    return last


def _how_many(rank: Ints, last_child: Ints, high: int, most: int) -> int:
    """Return how many of the first by rank, up to ``high``, can be shown so that there are at most ``most`` items.

    One more item each stands for what is left out of a shown node's children. With every node that is shown the items
    become one more and at most one group is gone, so their number never falls and halving finds the largest.
    """
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        groups = int(((rank < middle) & (last_child >= middle)).sum())
        if middle + groups <= most:
            low = middle
        else:
            high = middle - 1
    return low


def _first(values: Floats, most: int) -> Ints:
    """Return the places of the ``most`` least values, and of all that equal the last of them up to twice as many."""
    if len(values) <= most:
        return np.arange(len(values))
    limit = np.partition(values, most - 1)[most - 1]
    less, equal = np.flatnonzero(values < limit), np.flatnonzero(values == limit)
    return np.concatenate([less, equal[-most:]])


def _none(values: Floats) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]
