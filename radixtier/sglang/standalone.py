"""A cache on CPU tensors without a server or a model: for benchmarks and tests.

Owns the set-up that SGLang's scheduler otherwise does: the published arguments, a small device pool and its
allocator, and the tree on top. Main thread only; one process holds one published configuration at a time.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Geometry:
    """Shape of the device pool.

    Attributes
    ----------
    page_size, tokens
        Tokens of a page, and of the pool.
    layers, heads, head_dim
        Elements of K, and of V, per token.
    latent
        Elements of the latent and of the rotary key per token and layer, for a pool as of a model with MLA, which has
        no heads; None for K and V.
    dtype
        Torch's name of the element type.
    """

    page_size: int = 16
    tokens: int = 4096
    layers: int = 2
    heads: int = 1
    head_dim: int = 16
    latent: tuple[int, int] | None = None
    dtype: str = "float32"


def prepare_process() -> None:
    """Do for this process what ``radixtier serve`` does for a server's: a CPU engine, before SGLang is imported."""
    from radixtier.cpu import environment

    wanted = environment(os.environ)
    os.environ.update(wanted)
    for entry in reversed(wanted.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)


def publish_arguments(page_size: int, layout: str = "page_first_direct", backend: str = "direct") -> None:
    """Publish server arguments for a CPU server with a hierarchical cache, without a model."""
    prepare_process()
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    from radixtier.cpu import activate

    arguments = ServerArgs(model_path="dummy", device="cpu", page_size=page_size, enable_hierarchical_cache=True)
    arguments.hicache_io_backend = backend
    arguments.hicache_mem_layout = layout
    publish(arguments, role="scheduler")
    activate()


def build_parameters(geometry: Geometry, group: Any = None) -> Any:
    """Build the device pool, its allocator and the request pool; returns SGLang's ``CacheInitParams``.

    ``group`` is the process group of the ranks of one server, None for one rank.
    """
    import torch
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    g = geometry
    dtype = getattr(torch, g.dtype)
    if g.latent is None:
        kv: Any = MHATokenToKVPool(
            g.tokens, g.page_size, dtype, g.heads, g.head_dim, g.layers, "cpu", enable_memory_saver=False
        )
    else:
        kv = MLATokenToKVPool(g.tokens, g.page_size, dtype, *g.latent, g.layers, "cpu", enable_memory_saver=False)
    if g.page_size == 1:
        allocator: Any = TokenToKVPoolAllocator(g.tokens, dtype, "cpu", kv, need_sort=False)
    else:
        allocator = PagedTokenToKVPoolAllocator(g.tokens, g.page_size, dtype, "cpu", kv, need_sort=False)
    return CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(16, 4096, "cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator,
        page_size=g.page_size,
        tree_components=(ComponentType.FULL,),
        tp_cache_group=group,
    )


def build_stock(geometry: Geometry) -> Any:
    """Build SGLang's own cache with its own host tier, as large as the device pool twice over."""
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.runtime_context import get_server_args

    params = build_parameters(geometry)
    cache = UnifiedRadixCache(params)
    # Without a budget SGLang insists on 10 GiB of free memory, whatever the size of the pool.
    with host_memory_budget_scope(1 << 30):
        cache.init_hicache(get_server_args(), params)
    return cache


def build_tiered(geometry: Geometry, tiers: Any, group: Any = None) -> Any:
    """Build the tiered cache; ``tiers`` is a :class:`radixtier.sglang.stack.Tiers`, ``group`` as for the parameters."""
    from sglang.srt.runtime_context import get_server_args

    from radixtier.sglang.cache import RadixTierCache

    params = build_parameters(geometry, group)
    cache = RadixTierCache(params, tiers)
    cache.init_hicache(get_server_args(), params)
    return cache
