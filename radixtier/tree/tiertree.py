"""TierTree: runs of pages that were inserted together, their parents, and how warm they are.

Owns what the eviction order needs to know and SGLang's tree does not offer: which pages form a path below HBM.
It never mirrors which node exists in HBM, what is locked, or where a node was split: it learns of new runs when
a backup is acknowledged and of freed pages when the tree frees their handles. Scheduler thread only.

Invariant: ``table.run[page]`` is the run of every page that was added and not freed since, and a run exists as
long as one of its pages does. A parent may go before its child only by failure (a lost backup); the child then
hangs from the root.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixtier.policy.eviction import SubtreeLru
from radixtier.tree.residency import NONE, Pages, ResidencyTable, State

ROOT = NONE


@dataclass(slots=True)
class Run:
    """Pages of one path segment, root-side first."""

    parent: int
    pages: Pages
    live: int
    """Pages of the run that still exist."""


class TierTree:
    """Runs by number, kept in step with a :class:`ResidencyTable`."""

    def __init__(self, table: ResidencyTable, order: SubtreeLru | None = None) -> None:
        self.table = table
        self.order = order or SubtreeLru()
        self.runs: dict[int, Run] = {}
        self.touched: dict[int, float] = {}
        """Runs used since somebody last emptied this, and when (Unix seconds)."""
        self._next = 0

    def clear(self) -> None:
        """Forget every run."""
        self.runs.clear()
        self.touched.clear()
        self.order.clear()
        self.table.run[:] = NONE

    def add(
        self, pages: Pages, parent_page: int | None, keys: npt.NDArray[np.uint8], *, used: bool = True
    ) -> int:
        """Learn of a new run.

        Parameters
        ----------
        pages
            Handles, root-side first; none of them is in another run.
        parent_page
            Handle of the page in front of the run, None at the root.
        keys
            Key digests of ``pages``, shape ``(len(pages), 16)``.
        used
            Whether its path counts as just used; a run that comes back from NVMe waits for its first use.
        """
        parent = ROOT if parent_page is None else int(self.table.run[parent_page])
        number, self._next = self._next, self._next + 1
        self.runs[number] = Run(parent, pages, len(pages))
        self.table.run[pages] = number
        self.table.key[pages] = np.ascontiguousarray(keys).view("<u8")
        if used:
            self.use(number)
        return number

    def key_of(self, page: int) -> bytes | None:
        """Return the key digest of a page, None when it is in no run."""
        return self.table.key[page].tobytes() if int(self.table.run[page]) in self.runs else None

    def path(self, number: int) -> list[int]:
        """Runs from ``number`` up to the root."""
        path = []
        while number != ROOT and number in self.runs:
            path.append(number)
            number = self.runs[number].parent
        return path

    def use(self, number: int) -> None:
        """Mark a run and its ancestors as just used."""
        path = self.path(number)
        self.touched.update(dict.fromkeys(path, time.time()))
        self.order.use(path)

    def use_page(self, page: int) -> None:
        """Mark the path that ends with ``page`` as just used."""
        number = int(self.table.run[page])
        if number in self.runs:
            self.use(number)

    def forget(self, pages: Pages) -> None:
        """Learn that the tree freed ``pages`` (call before the table frees them)."""
        numbers, counts = np.unique(self.table.run[pages], return_counts=True)
        self.table.run[pages] = NONE
        for number, gone in zip(numbers.tolist(), counts.tolist(), strict=True):
            run = self.runs.get(number)
            if run is None:
                continue
            run.live -= gone
            if run.live == 0:
                del self.runs[number]
                self.touched.pop(number, None)
                self.order.remove(number)
            elif 2 * run.live < len(run.pages):
                run.pages = self.pages_of(number)

    def pages_of(self, number: int) -> Pages:
        """Return the pages of a run that still exist, root-side first."""
        mine = self.runs[number].pages
        pages: Pages = mine[self.table.run[mine] == number]
        return pages

    def victims(self, need: int, state: State = State.CLEAN) -> Pages:
        """Choose up to ``need`` unused pages in ``state``: from the coldest subtree on, deepest pages first."""
        chosen: list[Pages] = []
        for number in self.order.coldest():
            if need <= 0:
                break
            mine = self.pages_of(number)
            take = mine[self.table.unused(mine, state)][-need:]
            if len(take):
                chosen.append(take)
                need -= len(take)
            elif not (self.table.frame[mine] != NONE).any():
                self.order.remove(number)
        return np.concatenate(chosen) if chosen else np.empty(0, np.int64)
