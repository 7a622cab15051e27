"""Pages that wait to be written to NVMe, run by run, oldest first.

Owns the order and nothing else. Invariant: bounded. A page may be queued again (its write failed, its handle was
reused), and entries of pages that the tree freed stay until they are looked at; :meth:`WriteQueue.compact` drops both.
Scheduler thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from radixtier.identity import Stretch
from radixtier.tree.residency import Flags, Pages


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive pages of a run, and what a restart must know of them (None: they will not outlive this process)."""

    pages: Pages
    stretch: Stretch | None = None

    def __len__(self) -> int:
        return len(self.pages)

    def part(self, lo: int, hi: int) -> Piece:
        """Return pages ``lo .. hi - 1``."""
        return Piece(self.pages[lo:hi], None if self.stretch is None else self.stretch.part(lo, hi))

    def where(self, keep: Flags) -> list[Piece]:
        """Return the longest parts of which every page is kept."""
        if keep.all():
            return [self] if len(self) else []
        edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]])))
        return [self.part(lo, hi) for lo, hi in edges.reshape(-1, 2).tolist()]


class WriteQueue:
    """A queue of pieces, counted in pages."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.pages = 0
        """Pages queued, stale and repeated ones included."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def append(self, piece: Piece) -> None:
        """Queue a piece behind the others."""
        self._pieces.append(piece)
        self.pages += len(piece)

    def push_front(self, piece: Piece) -> None:
        """Give back what was taken and cannot be written now."""
        self._pieces.appendleft(piece)
        self.pages += len(piece)

    def take(self, most: int) -> Piece:
        """Take up to ``most`` pages of the oldest piece."""
        piece = self._pieces.popleft()
        self.pages -= len(piece)
        if len(piece) > most:
            self.push_front(piece.part(most, len(piece)))
            piece = piece.part(0, most)
        return piece

    def compact(self, wanted: Callable[[Piece], Flags]) -> None:
        """Keep each page once, at its first place, if it is still wanted."""
        pieces = list(self._pieces)
        self.clear()
        seen: set[int] = set()
        for piece in pieces:
            fresh = np.array([page not in seen for page in piece.pages.tolist()], dtype=np.bool_)
            for kept in piece.where(wanted(piece) & fresh):
                self.append(kept)
                seen.update(kept.pages.tolist())

    def sort(self, order: Callable[[Piece], int]) -> None:
        """Put the pieces in ascending order."""
        self._pieces = deque(sorted(self._pieces, key=order))

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self.pages = 0
