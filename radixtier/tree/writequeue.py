"""Pages that wait to be written to NVMe, run by run, oldest first.

Owns the order and nothing else. Invariant: bounded. A page may be queued again (its write failed, its handle was
reused), and entries of pages that the tree freed stay until they are looked at; :meth:`WriteQueue.compact` drops both.
Scheduler thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from radixtier.tree.residency import Flags, Pages


class WriteQueue:
    """A queue of runs, counted in pages."""

    def __init__(self) -> None:
        self._runs: deque[Pages] = deque()
        self.pages = 0
        """Pages queued, stale and repeated ones included."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    def append(self, pages: Pages) -> None:
        """Queue a run behind the others."""
        self._runs.append(pages)
        self.pages += len(pages)

    def push_front(self, pages: Pages) -> None:
        """Give back what was taken and cannot be written now."""
        self._runs.appendleft(pages)
        self.pages += len(pages)

    def take(self, most: int) -> Pages:
        """Take up to ``most`` pages of the oldest run."""
        pages = self._runs.popleft()
        self.pages -= len(pages)
        if len(pages) > most:
            self.push_front(pages[most:])
        return pages[:most]

    def compact(self, wanted: Callable[[Pages], Flags]) -> None:
        """Keep each page once, at its first place, if it is still wanted."""
        every = np.concatenate(list(self._runs)) if self._runs else np.empty(0, np.int64)
        _, first = np.unique(every, return_index=True)
        every = every[np.sort(first)]
        self.clear()
        self.append(every[wanted(every)])

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self.pages = 0
