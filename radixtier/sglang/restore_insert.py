"""Putting rows of the journal back into SGLang's tree, as nodes without a copy in HBM.

Owns nothing. A row that hangs from nothing (its parent was forgotten meanwhile) is given up, and so is what the server
has computed anew before the row's turn came. Scheduler thread only.
"""

from __future__ import annotations

import logging
from array import array
from typing import Any

import numpy as np
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radixtier.identity import Space, Tokens
from radixtier.sglang.private import apply_actions
from radixtier.store.restorer import Stored

logger = logging.getLogger(__name__)


class Inserter:
    """Fills the tree of ``cache``."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._mover = cache.mover

    def touch(self, space: Space, tokens: Tokens) -> None:
        """Have the tree take a path for one that was used just now."""
        self._cache.match_all(MatchPrefixParams(key=self._key(space, tokens)))

    def _key(self, space: Space, tokens: Tokens) -> Any:
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

    def insert(self, stored: Stored) -> None:
        """Put a row back, or give its slots back."""
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
