"""Forgetting: which leaves SGLang's tree drops when NVMe is full.

SGLang evicts leaves below HBM itself, by ``--radix-eviction-policy`` (least recently used unless told otherwise), and
takes no list of victims. What it allows is to spare some: a leaf with a host lock is passed over. So the policy's
order is followed this far: of the leaves that SGLang would take first, up to :data:`MOST_SPARED` that the policy
rates warmer than the others get a lock for the duration of the eviction. Leaves whose node was split off since, or
that are in HBM as well, are left to SGLang. With ``lru`` there is nothing to do.

Owns no state between two evictions. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST_SPARED = 256
"""Leaves that are passed over in one eviction."""


class Forgetting:
    """Spares leaves of one cache."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._tree = cache.mover.tree

    @contextmanager
    def sparing(self, pages: int) -> Iterator[None]:
        """While this lasts, an eviction of ``pages`` pages takes what the policy minds least."""
        locks = [(node, self._cache.inc_host_lock_ref(node).to_dec_params()) for node in self._spared(pages)]
        try:
            yield
        finally:
            for node, lock in locks:
                self._cache.dec_host_lock_ref(node, lock)

    def _spared(self, pages: int) -> list[int]:
        tree = self._tree
        if tree.below is None or tree.recency is None:
            return []
        victims: set[int] = set()
        left = pages
        for run in tree.below.coldest():
            if left <= 0:
                break
            victims.add(run)
            left -= tree.runs[run].live
        spared: list[int] = []
        left = pages
        for run in tree.recency.coldest():
            if left <= 0 or len(spared) >= MOST_SPARED:
                break
            if run in victims:
                left -= tree.runs[run].live
            elif (node := tree.node_of(run)) is not None:
                spared.append(node)
        return spared
