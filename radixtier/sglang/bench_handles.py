"""What a million handles cost: memory, and time per page for each step of their life.

Owns a residency table, a TierTree and a mover without a store for the duration. Invariant: every handle goes through
the whole life once, in runs of :data:`RUN_PAGES`, as the cache makes it. Main thread. Needs neither SGLang nor torch.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

from radixtier.mover import Mover
from radixtier.tree.residency import Pages, ResidencyTable
from radixtier.tree.tiertree import TierTree

RUN_PAGES = 256
"""Pages per call: one chunk of write-behind, 16k tokens of a prompt at a page size of 64."""

DRAM_SHARE = 4
"""A quarter of the handles has a frame."""


def measure_handles(n_handles: int) -> dict[str, Any]:
    """Take ``n_handles`` through their life twice, once for the time and once for the memory.

    Returns
    -------
    dict
        ``handles``; ``bytes_per_handle`` of the residency table; ``tree_bytes_per_handle`` of the TierTree, runs of
        :data:`RUN_PAGES`; ``pages_per_call``; ``ns_per_page`` by step: ``alloc`` (handle and frame), ``filled`` (backup
        acknowledged), ``write_commit``, ``demote`` (frame given up), ``read_commit``, ``free``. Medians over calls.
    """
    life = _Life(n_handles)
    gc.collect()
    gc.disable()
    try:
        life.run()
    finally:
        gc.enable()
    return {
        "handles": life.n_handles,
        "bytes_per_handle": life.table.nbytes() / life.n_handles,
        "tree_bytes_per_handle": _tree_bytes(life.n_handles) / life.n_handles,
        "pages_per_call": RUN_PAGES,
        "ns_per_page": {step: statistics.median(times) for step, times in life.times.items()},
    }


class _Life:
    """Handles, and the time of every call by step."""

    def __init__(self, n_handles: int) -> None:
        runs = max(DRAM_SHARE, n_handles // RUN_PAGES)
        self.n_handles = runs * RUN_PAGES
        self._n_frames = runs // DRAM_SHARE * RUN_PAGES
        self.table = ResidencyTable(self.n_handles, self._n_frames)
        self.mover = Mover(self.table, TierTree(self.table), None)
        self.times: dict[str, list[float]] = {}
        self._ok = np.ones(RUN_PAGES, np.bool_)
        self._sums = np.zeros(RUN_PAGES, np.uint64)

    def run(self) -> None:
        """Down to NVMe, up to DRAM as far as it goes, and away."""
        runs = [self._down(slot) for slot in range(0, self.n_handles, RUN_PAGES)]
        # Old paths come back in no order: a shuffle keeps the caches from helping.
        order = np.random.default_rng(0).permutation(len(runs))
        for number in order[: self._n_frames // RUN_PAGES]:
            self._up(runs[number])
        for number in order:
            self._timed("free", self.mover.free, runs[number])

    def _down(self, first_slot: int) -> Pages:
        pages = self._timed("alloc", self.mover.alloc, RUN_PAGES)
        self._timed("filled", self.mover.filled, pages)
        self.mover.tree.add(pages, None, np.zeros((RUN_PAGES, 16), np.uint8))
        self.table.begin_write(pages, np.arange(first_slot, first_slot + RUN_PAGES))
        self._timed("write_commit", self.table.end_write, pages, self._ok, self._sums)
        self._timed("demote", self.table.drop_frames, pages)
        taken: Pages = pages
        return taken

    def _up(self, pages: Pages) -> None:
        self.table.begin_read(pages)
        self._timed("read_commit", self.table.end_read, pages, self._ok, ~self._ok)

    def _timed(self, step: str, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter_ns()
        result = call(*arguments)
        self.times.setdefault(step, []).append((time.perf_counter_ns() - begin) / RUN_PAGES)
        return result


def _tree_bytes(n_handles: int) -> int:
    """Bytes that a TierTree takes for ``n_handles`` pages, as the allocator sees them."""
    table = ResidencyTable(n_handles, n_handles)
    tree = TierTree(table)
    with _traced() as traced:
        for _ in range(n_handles // RUN_PAGES):
            pages = table.alloc(RUN_PAGES)
            assert pages is not None
            tree.add(pages, None, np.zeros((RUN_PAGES, 16), np.uint8))
            del pages
        return traced()


@contextmanager
def _traced() -> Any:
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
