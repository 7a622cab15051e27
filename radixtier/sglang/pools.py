"""Which host pool with logical pages stands behind a device pool of SGLang, and the shape of its pages.

Owns the list of device pools that the tier serves: keys and values per head in rows of one width (MHA, GQA), and one
row of latent and rotary key per token (MLA). Invariant: a pool with anything beside those rows, be it scales or the
index of sparse attention, is none of them, since that would not move with the pages. Called once per scheduler process,
before serving.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.device_pool_info import KVBufferLayout
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost, get_mha_host_pool_cls

from radixtier.mover import Mover
from radixtier.ranks import Agreement, Alone
from radixtier.sglang.host_pool import LogicalPoolMixin, RadixTierMHAHostPool, RadixTierMLAHostPool
from radixtier.sglang.identity import PageShape


def page_shape(kvcache: Any, page_size: int, layout: str) -> PageShape | None:
    """Return the shape of a page of a device pool in host memory of a layout, None for a pool that is not served."""
    # FP8 is kept as bytes: of what, the pool knows, and its buffers do not.
    dtype = str(kvcache.dtype).removeprefix("torch.")
    # Pools with more than these rows are subclasses of it, as the one with an index for sparse attention.
    if type(kvcache) is MLATokenToKVPool:
        latent, rope = kvcache.kv_lora_rank, kvcache.qk_rope_head_dim
        return PageShape(dtype, layout, page_size, kvcache.layer_num, 1, latent, rope, attention="mla")
    if not isinstance(kvcache, MHATokenToKVPool):
        return None
    (info,) = (each.buffer_info for each in kvcache.get_device_pool_infos())
    if info.scales is not None or info.buffers.layout is not KVBufferLayout.NHD:
        return None
    if get_mha_host_pool_cls(info) is not MHATokenToKVPoolHost:
        return None
    return PageShape(dtype, layout, page_size, len(info.buffers.k), info.head_num, info.head_dim, info.v_head_dim)


def build_host_pool(
    kvcache: Any, shape: PageShape, n_frames: int, mover: Mover, ranks: Alone | Agreement
) -> LogicalPoolMixin:
    """Build the host pool of a device pool that has a shape; its DRAM holds ``n_frames`` pages."""
    info = kvcache.get_device_pool_infos()[0].buffer_info
    common: dict[str, Any] = {
        "pin_memory": str(info.device) != "cpu",
        "device_capacity_tokens": kvcache.size,
        "start_layer": kvcache.start_layer,
        "end_layer": kvcache.end_layer,
        "host_token_capacity": n_frames * shape.page_size,
        "mover": mover,
        "ranks": ranks,
    }
    if shape.attention == "mla":
        return RadixTierMLAHostPool(
            info, 0.0, 0, shape.page_size, shape.layout, target_layer_num=shape.layers, **common
        )
    return RadixTierMHAHostPool(
        info, 0.0, 0, shape.page_size, shape.layout, write_back_staging=kvcache.hicache_write_back_staging, **common
    )
