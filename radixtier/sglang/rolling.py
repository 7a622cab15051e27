"""A count over a long table, a part at a time.

Owns the counts of the parts. Law: each call counts :data:`PARTS_AT_ONCE` parts anew, so that it costs the same however
long the table is, and the sum is of moments that are at most ``parts / PARTS_AT_ONCE`` calls old; exact where the table
has no more parts than that. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice

PART = 65_536
"""Rows of a part."""

PARTS_AT_ONCE = 8


class RollingCount:
    """Counts over ``rows`` rows; ``count`` counts those of a slice."""

    def __init__(self, rows: int, count: Callable[[slice], int]) -> None:
        parts = [slice(lo, min(lo + PART, rows)) for lo in range(0, rows, PART)]
        self._count = count
        self._counts = [0] * len(parts)
        self._turns = cycle(enumerate(parts))
        self._at_once = min(PARTS_AT_ONCE, len(parts))
        self._behind = len(parts)
        """Parts that were never counted."""

    def __call__(self) -> int:
        """Count some parts anew, all of them the first time, and return the sum."""
        n = max(self._at_once, self._behind)
        self._behind = 0
        for i, part in islice(self._turns, n):
            self._counts[i] = self._count(part)
        return sum(self._counts)
