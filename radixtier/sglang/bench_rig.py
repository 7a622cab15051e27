"""Two caches with the same long path in them: stock HiCache and the tiered cache, on CPU tensors without a server.

Owns both caches and the directory of the tiered one's store. Invariant: both trees hold the same nodes, and after
:meth:`Rig.evict` and :meth:`Rig.demote` every page of the path is where those say. Main thread; importable without
SGLang, which is loaded when a rig is built.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from radixtier.footprint import footprint
from radixtier.io.frames import FrameBuffer
from radixtier.io.probe import engine_factory
from radixtier.sglang.identity import PageShape
from radixtier.store.store import PageStore
from radixtier.tree.residency import State

TURN_TOKENS = 8192
"""Longest node of the path: SGLang's usual chunk of a prefill, each of which becomes a node."""

SETTLE_S = 120.0
"""Longest wait for backups, write-behind or a promotion."""


class Rig:
    """Stock and tiered cache of one page size; a context manager that closes the store.

    Parameters
    ----------
    page_size
        Tokens per page.
    prefixes
        Prefix lengths to be matched, multiples of the page size in tokens; each ends at a node of the path.
    """

    def __init__(self, page_size: int, prefixes: Sequence[int]) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        from radixtier.sglang import standalone
        from radixtier.sglang.stack import Tiers

        self.page_size = page_size
        self._length = max(prefixes)
        # One float per token for K and for V: a match never touches the bytes.
        geometry = standalone.Geometry(page_size, self._length + TURN_TOKENS, layers=1, heads=1, head_dim=1)
        pages = geometry.tokens // page_size
        self._directory = tempfile.TemporaryDirectory(prefix="radixtier-bench-")
        # Twice the path in DRAM: a request that waits may hold most of DRAM, not all of it.
        tiers = Tiers(lambda _: 2 * pages, pages, partial(_open_store, Path(self._directory.name)))
        standalone.publish_arguments(page_size)
        self.stock = standalone.build_stock(geometry)
        self.tiered = standalone.build_tiered(geometry, tiers)
        self._tokens = array("q", range(1, self._length + 1))
        self._handle = CacheRequestHandle("bench", 0)
        ends = sorted({*prefixes, *range(TURN_TOKENS, self._length, TURN_TOKENS)})
        for cache in (self.stock, self.tiered):
            self._insert(cache, ends)
            self._until(partial(_settled, cache))

    def _insert(self, cache: Any, ends: Sequence[int]) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        rows = cache.token_to_kv_pool_allocator.alloc(self._length)
        begin = 0
        for end in ends:
            key = RadixKey(self._tokens[:end])
            cache.insert(InsertParams(key=key, value=rows[:end].clone(), prev_prefix_len=begin))
            begin = end

    def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + SETTLE_S
        while not done():
            for cache in (self.stock, self.tiered):
                cache.check_hicache_events()
            if time.monotonic() > end:
                raise RuntimeError(f"the caches did not settle within {SETTLE_S:.0f} s: is the disk very slow?")
            time.sleep(0.001)

    # ---- where the path is --------------------------------------------------------------------------

    def evict(self) -> None:
        """Leave the path in DRAM only, on both sides."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        for cache in (self.stock, self.tiered):
            cache.evict(EvictParams(num_tokens=self._length))

    def demote(self) -> None:
        """Leave the path on NVMe only, on the tiered side; stock has no such place."""
        mover = self.tiered.mover
        mover.table.drop_frames(mover.tree.victims(self._length // self.page_size))
        assert mover.table.count[State.COLD] == self._length // self.page_size

    def admit(self, prefix: int) -> None:
        """Let the request of :meth:`question` arrive in the tiered cache and be ready for admission."""
        hit = self.tiered.match_prefix(self.question(prefix))
        self.tiered.prefetch_from_storage(
            self._handle, hit.last_host_node, array("q", [0]), matched_prefix_tokens=self._tokens[:prefix]
        )
        self._until(lambda: bool(self.tiered.check_prefetch_progress(self._handle)))

    def leave(self) -> None:
        """Let the request go again."""
        self.tiered.release_aborted_request(self._handle)

    # ---- what is asked ------------------------------------------------------------------------------

    def question(self, prefix: int) -> Any:
        """Make what the scheduler asks for a prompt that continues ``prefix`` tokens of the path by one new page."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        # As SGLang does it: all tokens, and a limit that leaves at least one to compute.
        tokens = self._tokens[:prefix] + array("q", [0] * (self.page_size + 1))
        request = SimpleNamespace(
            rid=self._handle.rid, session=None, session_id=None, kv_hints=None, origin_input_ids=tokens,
            cache_request_handle=self._handle, storage_prefetch_last_match_len=None,
        )  # fmt: skip
        return MatchPrefixParams(key=RadixKey(tokens, limit=len(tokens) - 1), req=request)

    def check(self, prefix: int, in_hbm: bool) -> None:
        """Verify that both sides find the whole prefix, all of it in HBM or all of it below."""
        expected = (prefix, 0) if in_hbm else (0, prefix)
        for cache in (self.stock, self.tiered):
            hit = cache.match_prefix(self.question(prefix))
            found = (hit.device_prefix_len, hit.host_hit_length)
            assert found == expected, f"{type(cache).__name__} found {found}, expected {expected}"

    def change(self) -> None:
        """Make the tiered cache believe that residency changed somewhere."""
        self.tiered.mover.table.epoch += 1

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: Any) -> None:
        self.tiered.mover.close(SETTLE_S)
        self._directory.cleanup()


def _open_store(
    directory: Path, frames: FrameBuffer, shape: PageShape, n_slots: int, wake: Callable[[], None]
) -> PageStore:
    return PageStore(
        [directory],
        footprint(n_slots, frames.page_bytes, shape.page_size),
        frames,
        page_tokens=shape.page_size,
        engine=engine_factory("auto"),
        wake=wake,
    )


def _settled(cache: Any) -> bool:
    """Whether every page is backed up and, with a mover, on NVMe too."""
    mover = getattr(cache, "mover", None)
    return not cache.ongoing_write_through and (mover is None or not (mover.busy or mover.writes.pending))
