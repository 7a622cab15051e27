"""The tokens from the root to the end of a row, kept for the rows that hang behind it.

Owns arrays that grow at their end. Invariant: what has been handed out never changes: a path is continued in place
only where nothing follows it yet, else in a copy. So a conversation of many rows costs its tokens once, not once per
row. One thread may call; any thread may read what was handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from radixtier.identity import Tokens


class _Buffer:
    """Memory of one path and of all its beginnings."""

    def __init__(self, capacity: int, dtype: np.dtype[Any]) -> None:
        self.data: Tokens = np.empty(capacity, dtype=dtype)
        self.length = 0
        self.entries = 0

    def extend(self, tokens: Tokens) -> None:
        self.data[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)


class PathCache:
    """Paths by row number, the least recently used ones given up beyond ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.nbytes = 0
        self._limit = limit
        self._entries: OrderedDict[int, tuple[_Buffer, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, row: int) -> Tokens | None:
        """Return the tokens from the root to the end of a row, or None."""
        if (entry := self._entries.get(row)) is None:
            return None
        self._entries.move_to_end(row)
        buffer, length = entry
        return buffer.data[:length]

    def put(self, row: int, parent: int, before: int, tokens: Tokens) -> Tokens:
        """Keep, and return, the path of a row.

        Parameters
        ----------
        row, parent : int
            Row numbers; the parent must be kept unless ``before`` is 0.
        before : int
            Tokens of the parent's path that are in front of the row.
        tokens : ndarray of int32 or int64, shape (n,)
            The row's own.
        """
        buffer = self._entries[parent][0] if before else None
        length = before + len(tokens)
        front = buffer.data[:before] if buffer else tokens[:0]
        dtype = np.result_type(front, tokens)
        if buffer is None or buffer.length != before or length > len(buffer.data) or buffer.data.dtype != dtype:
            buffer = _Buffer(length + length // 2, dtype)
            buffer.extend(front)
        buffer.extend(tokens)
        self._keep(row, buffer, length)
        return buffer.data[:length]

    def _keep(self, row: int, buffer: _Buffer, length: int) -> None:
        assert row not in self._entries, "a row is kept twice"
        self.nbytes += 0 if buffer.entries else buffer.data.nbytes
        buffer.entries += 1
        self._entries[row] = buffer, length
        while self.nbytes > self._limit and len(self._entries) > 1:
            _, (old, _) = self._entries.popitem(last=False)
            old.entries -= 1
            self.nbytes -= 0 if old.entries else old.data.nbytes
