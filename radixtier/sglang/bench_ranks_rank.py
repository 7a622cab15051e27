"""One rank of ``radixtier bench ranks``: ``python -m radixtier.sglang.bench_ranks_rank DIRECTORY RANK RANKS STEPS``.

Owns a cache, a store and what was timed. In turns a path is inserted, which is copied to DRAM and written to NVMe, or
one that HBM does not have any more is asked for, which brings it up. The first rank prints the figures as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

PAGE, PAGES = 16, 8
"""Tokens of a page, pages of a path."""

HBM, DRAM, NVME = 64, 128, 1024
"""Capacities, pages."""

PATHS = 100


class Timed:
    """Seconds that calls of a function take, and how long what they return is, where ``lengths`` is given."""

    def __init__(self, call: Callable[..., Any], lengths: list[int] | None = None) -> None:
        self._call = call
        self._lengths = lengths
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        found = self._call(*arguments, **options)
        self.seconds += time.perf_counter() - began
        if self._lengths is not None:
            self._lengths.append(len(found))
        return found

    def take(self) -> float:
        """Return the seconds since the last call of this."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Load:
    """Paths that come and go."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._waiting: list[Any] = []
        self._known = self._number = 0
        self.arrivals = 0

    def step(self, number: int) -> None:
        """Do what comes between two looks of the scheduler."""
        if number % 4 == 0:
            self._insert(self._known % PATHS)
            self._known += 1
        elif number % 4 == 2 and self._known > PATHS // 4:
            self._ask((self._known * 7) % min(self._known, PATHS))
        for handle in list(self._waiting):
            if self._cache.check_prefetch_progress(handle):
                self._cache.release_aborted_request(handle)
                self._waiting.remove(handle)

    def _insert(self, path: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        cache, allocator = self._cache, self._cache.token_to_kv_pool_allocator
        missing = PAGES * PAGE - allocator.available_size()
        if missing > 0:
            cache.evict(EvictParams(num_tokens=missing))
        rows = allocator.alloc(PAGES * PAGE)
        if rows is None:
            return
        result = cache.insert(InsertParams(key=RadixKey(_tokens(path)), value=rows.clone()))
        allocator.free(rows[: result.prefix_len])

    def _ask(self, path: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        self._number += 1
        tokens = _tokens(path) + array("q", [0])
        handle = CacheRequestHandle(f"r{self._number}", 0)
        request = SimpleNamespace(
            rid=handle.rid, session=None, session_id=None, kv_hints=None, origin_input_ids=tokens,
            cache_request_handle=handle, storage_prefetch_last_match_len=None,
        )  # fmt: skip
        found = self._cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens, limit=len(tokens) - 1), req=request))
        matched = found.device_prefix_len + found.host_hit_length
        self.arrivals += 1
        self._cache.prefetch_from_storage(
            handle, found.last_host_node, tokens[matched:], matched_prefix_tokens=tokens[:matched]
        )
        self._waiting.append(handle)


def _tokens(path: int) -> array[int]:
    return array("q", range(1 + path * PAGES * PAGE, 1 + (path + 1) * PAGES * PAGE))


def build(directory: Path, group: Any) -> Any:
    """Build the cache of this rank."""
    import torch

    from radixtier.footprint import footprint
    from radixtier.io.probe import engine_factory
    from radixtier.sglang import standalone
    from radixtier.sglang.stack import Tiers
    from radixtier.store.store import PageStore

    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    def open_store(frames: Any, shape: Any, n_slots: int, wake: Callable[[], None], **_: Any) -> PageStore:
        return PageStore(
            [directory], footprint(n_slots, frames.page_bytes, shape.page_size), frames, page_tokens=shape.page_size,
            engine=engine_factory("posix"), rank=rank, ranks=ranks, wake=wake,
            cleared=lambda: torch.distributed.barrier(group),
        )  # fmt: skip

    standalone.publish_arguments(PAGE)
    geometry = standalone.Geometry(PAGE, HBM * PAGE, layers=2, heads=1, head_dim=16)
    return standalone.build_tiered(geometry, Tiers(lambda _: DRAM, NVME, open_store), group)


def main() -> None:
    """Take the steps."""
    directory, rank, ranks, steps = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    import torch

    torch.set_num_threads(1)
    meet = f"file://{directory / 'meet'}"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    group = torch.distributed.group.WORLD
    (directory / "nvme").mkdir(exist_ok=True)
    cache = build(directory / "nvme", group)
    load, agreement = Load(cache), cast(Any, cache.ranks)
    numbers: list[int] = []
    reduce = torch.distributed.all_reduce
    reduced = Timed(reduce)
    torch.distributed.all_reduce = reduced
    offer, learn = agreement.offer, agreement.learn
    agreement.offer = offered = Timed(offer, numbers)
    agreement.learn = learnt = Timed(learn)
    little = torch.zeros(4, dtype=torch.int64)
    times: dict[str, list[float]] = {"tick_us": [], "vector_us": [], "with_us": [], "stock_us": []}
    agreement.own = 0
    for number in range(steps):
        load.step(number)
        reduce(little, group=group)
        for each in (reduced, offered, learnt):
            each.take()
        began = time.perf_counter()
        cache.check_hicache_events()
        tick, reduction, vector = time.perf_counter() - began, reduced.take(), offered.take() + learnt.take()
        reduce(little, group=group)
        began = time.perf_counter()
        reduce(little, group=group)
        alone = time.perf_counter() - began
        for name, seconds in zip(times, (tick - reduction, vector, reduction, alone), strict=True):
            times[name].append(seconds * 1e6)
    if rank == 0:
        stats = cache.mover.stats
        found = {name: statistics.median(each) for name, each in times.items()}
        counts = {"numbers": statistics.median(numbers), "most_numbers": max(numbers), "own": agreement.own}
        jobs = (stats.written + stats.promoted) / PAGES
        told = found | counts | {"jobs": jobs, "arrivals": load.arrivals, "ranks": ranks, "steps": steps}
        print(json.dumps(told))
    agreement.leave()
    cache.mover.close(10)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads need not be waited for


if __name__ == "__main__":
    main()
