"""Which slots are free, kept as extents.

Owns the free space of one range of slots. Invariant: free extents are disjoint, never touch (neighbours are
merged) and add up to `free_slots`; both indexes hold the same extents. Scheduler thread only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sortedcontainers import SortedDict, SortedList


class Extent(NamedTuple):
    """Consecutive slots ``start .. start + length - 1``."""

    start: int
    length: int


class ExtentMap:
    """Best-fit allocator over slots ``0 .. n_slots - 1``; every operation costs O(log extents)."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self.free_slots = 0
        self._length_at: Any = SortedDict()  # start -> length
        self._by_size: Any = SortedList()  # (length, start)
        if n_slots:
            self.free(0, n_slots)

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
