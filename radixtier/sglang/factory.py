"""Builds the cache of a scheduler process, and opens the scheduler's gates for it.

Owns the path from the checked configuration to running tiers. Called once per scheduler process, before serving.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from radixtier.config import RadixTierConfig, ResolvedSizes
from radixtier.io.frames import FrameBuffer
from radixtier.io.probe import choose_engine
from radixtier.sglang.resolution import sizes_of
from radixtier.store.slab import capacity_for, claim
from radixtier.store.store import PageStore

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Longest an I/O thread waits for the interpreter while the scheduler thread computes in Python."""


def create_cache(ctx: Any) -> Any:
    """Build the tree with its tiers; ``ctx`` is SGLang's ``TreeCacheBuildContext``."""
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    from radixtier.sglang.cache import RadixTierCache
    from radixtier.sglang.stack import Tiers

    config: RadixTierConfig = ctx.server_args._radix_tier
    sizes = sizes_of(ctx.server_args)
    tiers = Tiers(
        n_frames=lambda page_bytes: _same(sizes, page_bytes).dram_pages,
        n_slots=sizes.nvme_slots,
        open_store=partial(open_store, config),
    )
    cache_class: Any = partial(RadixTierCache, tiers=tiers)
    return create_unified_radix_cache(ctx, cache_class=cache_class)


def _same(sizes: ResolvedSizes, page_bytes: int) -> ResolvedSizes:
    """Sizes were computed from the model's configuration before it was loaded; hold them against the real pool."""
    if page_bytes != sizes.page_bytes:
        raise ValueError(
            f"radixtier: a page has {page_bytes} bytes, but the model's configuration promised {sizes.page_bytes}; "
            "please report this model. Start without --enable-radix-tier until then"
        )
    return sizes


def open_store(config: RadixTierConfig, frames: FrameBuffer, n_slots: int, wake: Callable[[], None]) -> PageStore:
    """Open the NVMe tier in the configured directory."""
    directory = Path(config.nvme_path[0])
    claim(directory)
    choice = choose_engine(config.io_engine, directory)
    logger.info("radixtier: %s", choice.reason)
    capacity = capacity_for(n_slots, frames.page_bytes)
    # The scheduler thread runs Python all the time; with the default of 5 ms, I/O threads would wait that long for the
    # interpreter after every transfer. Process-wide.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return PageStore(directory, capacity, frames, engine=choice.engine, wake=wake)


def open_gates() -> None:
    """Let the scheduler ask the cache for promotions, which it does only for SGLang's own storage backends.

    A hook on the scheduler's constructor, instead of posing as a storage backend: that would start SGLang's storage
    threads and hash every token once more for nothing.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", _after_scheduler, HookType.AFTER)
    HookRegistry.apply_hooks()


def _after_scheduler(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    mover = getattr(scheduler.tree_cache, "_mover", None)
    if mover is not None and mover.store is not None:
        scheduler.enable_hicache_storage = True
