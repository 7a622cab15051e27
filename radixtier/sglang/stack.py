"""Builds the tiers under a tree: host pool with logical pages, mover, store, and SGLang's controller on top.

Uses SGLang's official strategy registry, so that the stock assembler calls us instead of its plain-KV strategy.
Called once per scheduler process, before serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import (
    StackBuildResult,
    StackStrategy,
    build_pool_entry,
    register_stack_strategy,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.runtime_context import get_memory

from radixtier.control import Address
from radixtier.mover import Mover
from radixtier.policy.admission import Admission, AdmitAll
from radixtier.ranks import AgreedStore, Agreement, Alone, SharedStore
from radixtier.sglang.host_pool import LogicalPoolMixin
from radixtier.sglang.identity import PageShape
from radixtier.sglang.landing import Landing, make_landing
from radixtier.sglang.pools import build_host_pool, page_shape
from radixtier.sglang.ranks import make_ranks
from radixtier.store.store import PageStore
from radixtier.tree.residency import ResidencyTable
from radixtier.tree.tiertree import TierTree

logger = logging.getLogger(__name__)

OpenStore = Callable[..., Any]
"""Given the frames, the shape of a page, the number of slots, and what to call when I/O ends, opens the NVMe tier: a
`PageStore`, or a `BorrowedStore` where another rank has the same bytes and stores them. Where pages may go straight to
HBM, it is given the landing zone as ``landing`` as well."""


@dataclass(frozen=True)
class Tiers:
    """What is to be built below HBM.

    Attributes
    ----------
    n_frames
        Given the bytes of one page, how many pages DRAM holds.
    n_slots
        How many pages NVMe holds; 0 for a DRAM-only tier.
    open_store
        Opens the store once the pool is there; not called for a DRAM-only tier.
    n_landing
        Given the bytes of one page and the kind of device, how many landing frames there are.
    scrub_rate
        Bytes per second that are read in the background to find pages that went bad; 0 for none.
    eviction
        Name of the policy by which DRAM gives up pages.
    admission
        Given the number of slots, makes the policy by which pages are written to NVMe.
    control, control_key
        Where the control endpoint listens, None for nowhere, and the key that its clients need.
    """

    n_frames: Callable[[int], int]
    n_slots: int
    open_store: OpenStore
    n_landing: Callable[[int, str], int] = lambda page_bytes, device: 0
    scrub_rate: int = 0
    eviction: str = "lru"
    admission: Callable[[int], Admission] = lambda _: AdmitAll()
    control: Address | None = None
    control_key: str | None = None


class RadixTierStrategy(StackStrategy):
    """Pools that `pools` knows, one tree component. Matches only while a cache of ours is being built."""

    def __init__(self) -> None:
        self._tiers: Tiers | None = None

    @contextmanager
    def building(self, tiers: Tiers) -> Iterator[None]:
        """Take over the assembly of host pools for the duration."""
        self._tiers = tiers
        try:
            yield
        finally:
            self._tiers = None

    def matches(self, kvcache: Any, components: set[ComponentType]) -> bool:
        """Whether this strategy builds for the pool; the start-up checks refuse the rest before."""
        if self._tiers is None or components != {ComponentType.FULL}:
            return False
        return page_shape(kvcache, kvcache.page_size, get_memory().hicache_mem_layout) is not None

    def build(self, *, cache: Any, kvcache: Any, params: Any, server_args: Any, load_cache_event: Any, **_: Any) -> Any:
        """Build pool, mover, store and controller; the cache finds the mover at ``host_pool.mover``."""
        assert self._tiers is not None
        pool = _build_pool(self._tiers, kvcache, params.page_size, make_ranks(params.tp_cache_group))
        entry = build_pool_entry(
            name=PoolName.KV,
            host_pool=pool,
            device_pool=kvcache,
            layer_mapping={layer: layer for layer in range(kvcache.layer_num)},
            transfer_layer_id_max=kvcache.layer_num,
            is_anchor=True,
        )
        group = HostPoolGroup([entry])
        controller = HybridCacheController(
            params.token_to_kv_pool_allocator,
            group,
            params.page_size,
            params.tp_cache_group,
            load_cache_event=load_cache_event,
            attn_cp_group=params.attn_cp_cache_group,
            attn_tp_group=params.attn_tp_cache_group,
            pp_group=params.pp_cache_group,
            write_policy=get_memory().hicache_write_policy,
            io_backend=get_memory().hicache_io_backend,
            transfer_layer_id_max=kvcache.layer_num,
        )
        return StackBuildResult(
            host_pool_group=group,
            cache_controller=controller,
            component_host_pools={ComponentType.FULL: pool},
            pools_desc="KV with logical pages (radixtier)",
        )


def _build_pool(tiers: Tiers, kvcache: Any, page_size: int, ranks: Alone | Agreement) -> LogicalPoolMixin:
    shape = page_shape(kvcache, page_size, get_memory().hicache_mem_layout)
    assert shape is not None
    n_frames, n_slots = tiers.n_frames(shape.nbytes), tiers.n_slots
    landing = _build_landing(tiers, kvcache, shape, ranks) if n_slots else None
    table = ResidencyTable(n_frames + n_slots, n_frames, 0 if landing is None else landing.zone.n_frames)
    tree = TierTree(table, tiers.eviction, ranks.now)
    mover = Mover(
        table, tree, None, page_bytes=shape.nbytes, admission=tiers.admission(n_slots), scrub_rate=tiers.scrub_rate,
        clock=ranks.now,
    )  # fmt: skip
    # The size was checked before the model was loaded; SGLang's own check keeps 10 GiB free, which a small machine
    # does not have.
    with host_memory_budget_scope(n_frames * shape.nbytes):
        pool = build_host_pool(kvcache, shape, n_frames, mover, ranks)
    pool.landing = landing
    if n_slots:
        zone = {} if landing is None else {"landing": landing.zone}
        store = tiers.open_store(pool.frame_buffer(), shape, n_slots, mover.io_done.set, **zone)
        if isinstance(ranks, Agreement):
            agreed = SharedStore if shape.same_bytes else AgreedStore
            mover.store = cast(PageStore, agreed(store, ranks))
        else:
            mover.store = store
    logger.info(
        "radixtier: %d pages of %d tokens (%.1f KiB) in DRAM, %d on NVMe; %.1f MiB of metadata",
        n_frames, page_size, shape.nbytes / 1024, n_slots, table.nbytes() / 2**20,
    )  # fmt: skip
    return pool


def _build_landing(tiers: Tiers, kvcache: Any, shape: PageShape, ranks: Alone | Agreement) -> Landing | None:
    """Build the landing zone, if there is to be one; all ranks have it, with as many frames, or none."""
    info = kvcache.get_device_pool_infos()[0].buffer_info
    n = ranks.agreed(tiers.n_landing(shape.nbytes, info.device.type))
    landing = make_landing(n, shape.nbytes, shape.planes, shape.layout, info.dtype, info.device)
    if not ranks.agreed(int(landing is not None)) and landing is not None:
        landing.zone.close()
        return None
    return landing


STRATEGY = RadixTierStrategy()
"""The one strategy object of this process; SGLang's registry has no way to take one out again."""

register_stack_strategy(STRATEGY)
