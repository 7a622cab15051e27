"""Builds the cache of a scheduler process, and opens the scheduler's gates for it.

Owns the path from the checked configuration to running tiers. Called once per scheduler process, before serving.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixtier.config import RadixTierConfig, ResolvedSizes
from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.io.live_faults import with_faults
from radixtier.io.probe import EngineFactory, engine_factory
from radixtier.policy.admission import Admission, make_admission
from radixtier.policy.write_budget import Budgeted, WriteBudget
from radixtier.sglang.direct import landing_frames
from radixtier.sglang.identity import PageShape, store_identity
from radixtier.sglang.private import take_commands
from radixtier.sglang.resolution import sizes_of
from radixtier.sglang.shared import Shared
from radixtier.store.borrowed import BorrowedStore
from radixtier.store.store import PageStore

if TYPE_CHECKING:
    from radixtier.sglang.recording import Recording

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Longest another thread waits for the interpreter while the scheduler thread computes in Python."""


_CACHES: weakref.WeakSet[Any] = weakref.WeakSet()
"""The caches of this process."""


def create_cache(ctx: Any) -> Any:
    """Build the tree with its tiers; ``ctx`` is SGLang's ``TreeCacheBuildContext``."""
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    from radixtier.sglang.cache import RadixTierCache
    from radixtier.sglang.stack import Tiers

    # The scheduler thread runs Python all the time; with the default of 5 ms, I/O and HTTP threads would wait that long
    # for the interpreter each time. Process-wide.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config: RadixTierConfig = ctx.server_args._radix_tier
    sizes = sizes_of(ctx.server_args)
    rank, ranks = ctx.tp_rank, sizes.ranks
    meet = _barrier(ctx.params.tp_cache_group) if ranks > 1 else None
    engines = engine_factory(config.io_engine)
    tiers = Tiers(
        n_frames=lambda page_bytes: _same(sizes, page_bytes).dram_pages,
        n_slots=sizes.nvme_slots,
        open_store=partial(open_store, config, sizes, ctx.server_args, rank, meet, engines),
        n_landing=lambda page_bytes, device: landing_frames(
            config, page_bytes, sizes.page_size, device, engines, ranks=ranks
        ),
        scrub_rate=config.scrub.amount // sizes.stores,
        eviction=config.eviction,
        admission=partial(_admission, config, sizes.stores),
        # A server has one endpoint, of its first rank.
        control=config.control_address(bool(ctx.server_args.api_key)) if rank == 0 else None,
        control_key=ctx.server_args.api_key,
    )
    cache_class: Any = partial(RadixTierCache, tiers=tiers)
    cache = create_unified_radix_cache(ctx, cache_class=cache_class)
    cache.tells_arrivals = config.record is not None
    if rank == 0:
        cache.recording = _recording(config, cache, ranks)
    _CACHES.add(cache)
    return cache


def _barrier(group: Any) -> Callable[[], None]:
    """Return what waits for the other ranks; SGLang ends all of them when one fails to start."""
    import torch.distributed

    return partial(torch.distributed.barrier, group=group)


def _recording(config: RadixTierConfig, cache: Any, ranks: int = 1) -> Recording | None:
    """Begin to record the load, if that was asked for."""
    from radixtier.sglang.recording import Recording

    if config.record is None:
        return None
    most = config.bytes_per_day()
    budget = config.write_budget if most is None else f"{most}B/day"
    try:
        return Recording(
            cache,
            Path(config.record),
            eviction=config.eviction,
            admission=config.admission,
            write_budget=budget,
            ranks=ranks,
        )
    except OSError as error:
        why = f"cannot be made ({error.strerror})"
        raise ValueError(f"radixtier: {config.problem('record', why, 'Name another file')}") from None


def _admission(config: RadixTierConfig, stores: int, capacity_pages: int) -> Admission:
    """Make the admission policy, under one store's part of the write budget if there is one."""
    admission = make_admission(config.admission, capacity_pages)
    most = config.bytes_per_day()
    return admission if most is None else Budgeted(admission, WriteBudget(max(1, most // stores)))


def _same(sizes: ResolvedSizes, page_bytes: int) -> ResolvedSizes:
    """Sizes were computed from the model's configuration before it was loaded; hold them against the real pool."""
    if page_bytes != sizes.page_bytes:
        raise ValueError(
            f"radixtier: a page has {page_bytes} bytes, but the model's configuration promised {sizes.page_bytes}; "
            "please report this model. Start without --enable-radix-tier until then"
        )
    return sizes


def open_store(
    config: RadixTierConfig,
    sizes: ResolvedSizes,
    server_args: Any,
    rank: int,
    meet: Callable[[], None] | None,
    engines: EngineFactory,
    frames: FrameBuffer,
    shape: PageShape,
    n_slots: int,
    wake: Callable[[], None],
    *,
    landing: LandingZone | None = None,
) -> PageStore | BorrowedStore:
    """Open this rank's part of the NVMe tier in the configured directories; the ranks meet once.

    Where all have the same bytes, the first one has the store, and the others open what it made.
    """
    directories = [Path(path) for path in config.nvme_path]
    shared = sizes.ranks > 1 and shape.same_bytes
    common: dict[str, Any] = {
        "page_tokens": shape.page_size,
        "identity": store_identity(server_args, shape, 0 if shared else rank, sizes.ranks),
        "engine": with_faults(engines, os.environ),
        "landing": landing,
        "wake": wake,
    }
    meet = meet or (lambda: None)
    if shared and rank > 0:
        meet()
        return BorrowedStore(directories, frames, **common)
    store = PageStore(
        directories,
        sizes.nvme_bytes,
        frames,
        rank=rank,
        ranks=sizes.stores,
        min_free_bytes=config.nvme_min_free.amount,
        keep_others=config.nvme_others == "keep",
        cleared=(lambda: None) if shared else meet,
        **common,
    )
    if shared:
        meet()
    return store


def open_gates(*, several: bool) -> None:
    """Let the scheduler ask the cache for promotions, and let the store know when weights are updated.

    The scheduler asks only for SGLang's own storage backends. A hook on its constructor, instead of posing as a storage
    backend: that would start SGLang's storage threads and hash every token once more for nothing. A patched SGLang
    calls :func:`open_gate` and :func:`seal_stores` by itself. ``several`` is whether the server has several ranks.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from radixtier.sglang.native import is_patched

    for target, (hook, kind) in ((SHARING if several else {}) | ({} if is_patched() else GATES)).items():
        HookRegistry.register(target, hook, HookType[kind])
    HookRegistry.apply_hooks()


def open_gate(scheduler: Any) -> None:
    """Have a scheduler that was just built ask its cache for promotions, if that is one of ours with NVMe."""
    cache = scheduler.tree_cache
    mover = getattr(cache, "_mover", None)
    if mover is None:
        return
    cache.tokenizer = getattr(scheduler, "tokenizer", None)
    # Without NVMe there is nothing to promote, but a recording learns when requests arrive.
    if mover.store is not None or cache.tells_arrivals:
        scheduler.enable_hicache_storage = True
    if cache.ranks.size > 1:
        take_commands(scheduler, Shared, cache.shared.arrived)


def seal_stores() -> None:
    """From here on no page may be taken for one of the weights that the store's identity names."""
    for cache in list(_CACHES):
        cache.seal_store("weights were updated")


def _after_pull(requests: list[Any] | None, receiver: Any) -> list[Any] | None:
    """Send commands of the control endpoint along with requests; only the rank that reads these has a list."""
    for cache in list(_CACHES) if requests is not None else ():
        requests += cache.shared.take()
    return requests


def _after_scheduler(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    open_gate(scheduler)


def _before_new_weights(updater: Any, *args: Any, **kwargs: Any) -> None:
    seal_stores()


_WEIGHTS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"

_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"

SHARING: dict[str, tuple[Any, str]] = {f"{_RECEIVER}._pull_raw_reqs": (_after_pull, "AFTER")}
"""What is hooked in a scheduler process that is one of several, also with the patch."""

GATES: dict[str, tuple[Any, str]] = {
    "sglang.srt.managers.scheduler.Scheduler.__init__": (_after_scheduler, "AFTER"),
    f"{_WEIGHTS}.update_weights_from_disk": (_before_new_weights, "BEFORE"),
    f"{_WEIGHTS}.update_weights_from_ipc": (_before_new_weights, "BEFORE"),
    f"{_WEIGHTS}.begin_weight_update": (_before_new_weights, "BEFORE"),
}
"""What is hooked in a scheduler process of an SGLang without the patch, and how."""
