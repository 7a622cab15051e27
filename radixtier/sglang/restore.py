"""After a restart: what an earlier run stored goes back into SGLang's tree, while the server serves.

Owns the reader of the journals until everything is back. The rows come parents first and hottest first; each becomes
a node without a copy in HBM, whose pages are on NVMe only. A row that hangs from nothing (its parent was forgotten
meanwhile) is given up, and so is what the server has computed anew before the row's turn came. Scheduler thread only;
reading and checking the rows is done by a thread of the store.
"""

from __future__ import annotations

import logging
import time
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radixtier.identity import Space
from radixtier.sglang.private import apply_actions
from radixtier.store.restorer import Restorer, Stored

logger = logging.getLogger(__name__)

FIRST_S = 2.0
"""How long a server restores before it takes requests: the hottest paths are there for the first of them."""

STEP_S = 0.005
"""How long it restores in one step of a scheduler that has work."""

IDLE_STEP_S = 0.1
"""And in one step of a scheduler that has none, which takes such steps only a few times per second."""


class Restoration:
    """Puts back what ``restorer`` reads.

    Parameters
    ----------
    cache
        The cache to fill.
    """

    def __init__(self, cache: Any, restorer: Restorer) -> None:
        self._cache = cache
        self._restorer = restorer
        self._mover = cache.mover
        self._warmest: list[Any] | None = None
        self._cancelled = False
        self._begun = time.monotonic()
        self.over = False

    def first(self) -> None:
        """Restore for :data:`FIRST_S` at most."""
        end = self._begun + FIRST_S
        while not self.over and (left := end - time.monotonic()) > 0:
            self.step(left)
            if not self.over:
                self._restorer.wait(left)

    def step(self, seconds: float) -> None:
        """Restore for about so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.over:
            done = self._restorer.done
            for slots in self._restorer.take_dropped():
                self._mover.store.free(slots)
            if self._cancelled:
                self.over = done
                return
            if rows := self._restorer.take(1):
                self._insert(rows[0])
            elif not done or not self._touch_next():
                return

    def _touch_next(self) -> bool:
        """Once every row was taken, put the tree's order of last uses right, a path at a time; False at the end."""
        if self._warmest is None:
            self._warmest = self._restorer.warmest
        if not self._warmest:
            self._end()
            return False
        space, tokens = self._warmest.pop()
        self._cache.match_all(MatchPrefixParams(key=self._key(space, tokens)))
        return True

    def _end(self) -> None:
        self.over = True
        if self._restorer.rows_total:
            logger.info(
                "radixtier: %d of %d stored pages are back, %.1f s after the start of the cache",
                self._mover.stats.restored, self._restorer.pages_total, time.monotonic() - self._begun,
            )  # fmt: skip

    @property
    def reading(self) -> bool:
        """Whether the journals are still being read."""
        return not self._restorer.done

    def abandon(self) -> None:
        """Stop; what is not back yet stays on record for the next restart."""
        self.over = True
        self._restorer.cancel()

    def cancel(self) -> None:
        """Give up what is not back yet; its slots are given back in the next steps."""
        if not self._cancelled and not self.over:
            self._cancelled = True
            self._restorer.cancel()
            self.step(0.001)

    def _key(self, space: Space, tokens: npt.NDArray[np.int32]) -> Any:
        whole = array("q")
        whole.frombytes(tokens.astype(np.int64).tobytes())
        return RadixKey(whole, space.extra_key, self._cache.tree_core.is_eagle, cache_salt=space.cache_salt)

    def _hashes(self, key: Any, first: int) -> list[str]:
        """One hash per page from ``first`` on: SGLang's own where its cache events tell them to others, else empty."""
        if not self._cache.tells_events:
            return [""] * (len(key) // self._cache.page_size - first)
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        hashes: list[str] = get_storage_hash_str(key, page_size=self._cache.page_size)
        return hashes[first:]

    def _insert(self, stored: Stored) -> None:
        cache, mover, page_size = self._cache, self._mover, self._cache.page_size
        stretch, slots = stored.stretch, stored.slots
        key = self._key(stretch.space, np.concatenate([stored.path, stretch.tokens.reshape(-1)]))
        found = self._cache.match_all(MatchPrefixParams(key=key))
        matched = found.device_prefix_len + found.host_hit_length
        there = (matched - len(stored.path)) // page_size
        node = found.best_match_node
        last = None if matched == 0 else cache.last_page(node)
        if there < 0 or (matched and last is None):
            mover.store.free(slots)  # Nothing to hang from.
            return
        if there:
            self._meet(node, stored, there)
        if there == len(stretch):
            return
        weighted = None if stored.weighted is None else stored.weighted[there:]
        rest = stretch.part(there, len(stretch))
        pages = mover.restore(rest, slots[there:], stored.checksums[there:], last, weighted)
        if pages is None:
            return
        hashes = self._hashes(key, matched // page_size)
        result = cache.tree_core.insert_host(node, key[matched:], cache.tokens_of(pages), hashes)
        apply_actions(cache, result.cache_actions)
        if result.host_insert_dropped or result.prefix_len:
            logger.error("radixtier: SGLang did not take %d restored pages", len(pages))
            mover.free(pages if result.host_insert_dropped else pages[: result.prefix_len // page_size])

    def _meet(self, node: int, stored: Stored, there: int) -> None:
        """The first pages of a row are the last up to ``node``, and there already: keep one copy of each."""
        pages = self._cache.last_pages(node, there)
        gone = there - len(pages)
        self._mover.store.free(stored.slots[:gone])
        weighted = None if stored.weighted is None else stored.weighted[gone:there]
        self._mover.restore_again(pages, stored.slots[gone:there], stored.checksums[gone:there], weighted)
