"""Which slots are free, kept as extents.

Owns the free space of one range of slots. Invariant: free extents are disjoint, never touch (neighbours are
merged) and add up to `free_slots`; both indexes hold the same extents. Scheduler thread only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict, SortedList


class Extent(NamedTuple):
    """Consecutive slots ``start .. start + length - 1``."""

    start: int
    length: int


class ExtentMap:
    """Best-fit allocator over slots ``0 .. n_slots - 1``; every operation costs O(log extents).

    Parameters
    ----------
    n_slots
        Size of the range.
    used : ndarray of bool, shape (n_slots,), optional
        Slots that are not free to begin with; without it all are.
    """

    def __init__(self, n_slots: int, used: npt.NDArray[np.bool_] | None = None) -> None:
        self.n_slots = n_slots
        free = np.ones(n_slots, dtype=np.bool_) if used is None else ~used
        # Where a run of free slots begins and where it ends, in turn.
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False)).reshape(-1, 2)
        runs = [(start, end - start) for start, end in edges.tolist()]
        self.free_slots = int(free.sum())
        self._length_at: Any = SortedDict(runs)  # start -> length
        self._by_size: Any = SortedList((length, start) for start, length in runs)

    @property
    def largest(self) -> int:
        """Slots of the largest free extent; 0 when none is free."""
        return int(self._by_size[-1][0]) if self._by_size else 0

    def __len__(self) -> int:
        """Return the number of free extents."""
        return len(self._by_size)

    def alloc(self, n: int) -> list[Extent] | None:
        """Take ``n`` slots: the smallest extent that holds them all, else the largest ones.

        Returns
        -------
        list of Extent or None
            In the order in which pages should fill them; None, with nothing taken, when fewer are free.
        """
        if n > self.free_slots:
            return None
        taken: list[Extent] = []
        while n > 0:
            taken.append(self._take(n))
            n -= taken[-1].length
        return taken

    def _take(self, n: int) -> Extent:
        """Take up to ``n`` slots from the front of the best-fitting extent, the largest if none fits."""
        at = min(self._by_size.bisect_left((n, 0)), len(self._by_size) - 1)
        length, start = self._by_size[at]
        self._remove(start, length)
        if length > n:
            self._add(start + n, length - n)
        return Extent(start, min(n, length))

    def free(self, start: int, length: int) -> None:
        """Give slots back, merging with free neighbours.

        Raises
        ------
        ValueError
            When the range is outside the map or part of it is free already.
        """
        if length < 1 or start < 0 or start + length > self.n_slots:
            raise ValueError(f"slots {start}..{start + length - 1} are outside 0..{self.n_slots - 1}")
        at = self._length_at.bisect_right(start)
        before = self._length_at.peekitem(at - 1) if at else None
        after = self._length_at.peekitem(at) if at < len(self._length_at) else None
        if (before and sum(before) > start) or (after and after[0] < start + length):
            raise ValueError(f"slots {start}..{start + length - 1} are free already, in part or whole")
        if before and sum(before) == start:
            self._remove(*before)
            start, length = before[0], before[1] + length
        if after and after[0] == start + length:
            self._remove(*after)
            length += after[1]
        self._add(start, length)

    def extents(self) -> list[Extent]:
        """Return the free extents in slot order."""
        return [Extent(start, length) for start, length in self._length_at.items()]

    def _add(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._by_size.add((length, start))
        self.free_slots += length

    def _remove(self, start: int, length: int) -> None:
        del self._length_at[start]
        self._by_size.remove((length, start))
        self.free_slots -= length
