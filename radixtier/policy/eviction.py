"""Which subtree leaves DRAM first: least recently used.

The law: runs are kept in the order of their last use, and using a run uses all its ancestors after it. So the
order is also leaf-first within every path, and the coldest entries always form the outermost part of the
coldest subtree: taking from the front demotes subtrees, never a parent before its child. O(1) per use.

Where it loses: a long one-off prompt pushes out everything (no scan resistance), and loops longer than DRAM get
no hit at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

SCAN_LIMIT = 4096
"""Runs looked at for one demand for frames: bounds the time when most of the coldest are in use."""


class SubtreeLru:
    """Order of the runs that have pages in DRAM, coldest first. Knows runs by number only."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def use(self, path: list[int]) -> None:
        """Note a use of ``path``: the runs from the deepest to the root."""
        for run in path:
            self._order[run] = None
            self._order.move_to_end(run)

    def remove(self, run: int) -> None:
        """Forget a run: it has no page in DRAM any more, or is gone."""
        self._order.pop(run, None)

    def coldest(self) -> Iterator[int]:
        """Iterate over the coldest runs, at most :data:`SCAN_LIMIT`; the caller may :meth:`remove` them."""
        yield from list(islice(self._order, SCAN_LIMIT))

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget every run."""
        self._order.clear()
