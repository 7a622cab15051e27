"""Copies KV pages between SGLang's device pool and its host pool when both are ordinary memory.

Owns the CPU versions of the transfer kernels that `pool_host/mha.py` and `pool_host/mla.py` import only on a GPU, under
the same names and with the same arguments. Invariant: when a call returns, the bytes have arrived, so the no-op streams
and events of ``torch.cpu`` order nothing wrongly. Called on the scheduler thread. No loop runs per token: a gather is
one `index_select`, a scatter one NumPy assignment (4 times faster than `index_copy_`, and free of dtypes NumPy lacks
because it moves bytes). Indices are token slots; the direct kernels take whole pages, aligned in both pools.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def transfer_kv_direct(
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy whole pages between per-layer buffers ``[tokens, ...]``, pairwise."""
    source, target = _pages(src_indices, page_size), _pages(dst_indices, page_size)
    for src, dst in zip(src_layers, dst_layers, strict=True):
        _copy_rows(_as_pages(src, page_size), source, _as_pages(dst, page_size), target)


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copy one layer of whole pages out of ``[pages, layers, page_size, ...]`` buffers into ``[tokens, ...]`` ones."""
    source, target = _pages(src_indices, page_size), _pages(dst_indices, page_size)
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        _copy_rows(src[:, layer_id], source, _as_pages(dst, page_size), target)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy all layers of whole pages into ``[pages, layers, page_size, ...]`` buffers.

    `src_ptrs` holds ``[tokens, ...]`` buffers: all layers for the first target, then all for the next (K, then V).
    """
    source, target = _pages(src_indices, page_size), _pages(dst_indices, page_size)
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, src in enumerate(src_ptrs):
        pool, layer = divmod(number, layers)
        _copy_rows(_as_pages(src, page_size), source, dst_ptrs[pool][:, layer], target)


def transfer_kv_per_layer(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
) -> None:
    """Copy tokens of one layer between ``[tokens, ...]`` buffers of K and of V."""
    transfer_kv_per_layer_mla(src_k, dst_k, src_indices, dst_indices, item_size)
    transfer_kv_per_layer_mla(src_v, dst_v, src_indices, dst_indices, item_size)


def transfer_kv_per_layer_mla(
    src: Tensor, dst: Tensor, src_indices: Tensor, dst_indices: Tensor, item_size: int
) -> None:
    """Copy tokens of one layer between two ``[tokens, ...]`` buffers; `item_size` is the bytes of a token."""
    _copy_rows(src, src_indices, dst, dst_indices)


def transfer_kv_all_layer(
    src_k_layers: Tensor,
    dst_k_layers: Tensor,
    src_v_layers: Tensor,
    dst_v_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
) -> None:
    """Copy tokens of all layers between buffers given as tables of addresses, K and V."""
    for src, dst in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        transfer_kv_all_layer_mla(src, dst, src_indices, dst_indices, item_size, num_layers)


def transfer_kv_all_layer_mla(
    src_layers: Tensor,
    dst_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
) -> None:
    """Copy tokens of all layers between two tables of addresses of buffers with `item_size` bytes a token."""
    for src, dst in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        _copy_rows(
            _rows_at(src, src_indices, item_size), src_indices, _rows_at(dst, dst_indices, item_size), dst_indices
        )


def transfer_kv_per_layer_pf_lf(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
) -> None:
    """Copy tokens of one layer out of ``[tokens, layers, ...]`` buffers of K and of V."""
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim)


def transfer_kv_per_layer_mla_pf_lf(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
) -> None:
    """Copy tokens of one layer out of a ``[tokens, layers, ...]`` buffer with `src_layout_dim` bytes a token."""
    _copy_rows(src[:, layer_id], src_indices, dst, dst_indices)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Tensor,
    dst_k: Tensor,
    src_v_layers: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    """Copy tokens of all layers, given by address, into ``[tokens, layers, ...]`` buffers of K and of V."""
    for src, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(src, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers)


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    """Copy tokens of all layers, given by address, into a ``[tokens, layers, ...]`` buffer."""
    target = _bytes(dst)
    for layer, src in enumerate(src_layers.tolist()):
        _copy_rows(_rows_at(src, src_indices, item_size), src_indices, target[:, layer].flatten(1), dst_indices)


# Names that stock modules lack on a CPU, by module.
CPU_KERNELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "sglang.srt.mem_cache.pool_host.mha": (
        transfer_kv_all_layer,
        transfer_kv_all_layer_direct_lf_pf,
        transfer_kv_all_layer_lf_pf,
        transfer_kv_all_layer_mla_lf_pf,
        transfer_kv_direct,
        transfer_kv_per_layer,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_per_layer_mla,
        transfer_kv_per_layer_mla_pf_lf,
        transfer_kv_per_layer_pf_lf,
    ),
    "sglang.srt.mem_cache.pool_host.mla": (
        transfer_kv_all_layer_direct_lf_pf,
        transfer_kv_all_layer_mla,
        transfer_kv_all_layer_mla_lf_pf,
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_per_layer_mla,
        transfer_kv_per_layer_mla_pf_lf,
    ),
}


def _pages(indices: Tensor, page_size: int) -> Tensor:
    return indices if page_size == 1 else indices[::page_size] // page_size


def _as_pages(buffer: Tensor, page_size: int) -> Tensor:
    """View ``[tokens, ...]`` as ``[pages, page_size, ...]``, without the tail that fills no page."""
    pages = buffer.shape[0] // page_size
    return buffer[: pages * page_size].unflatten(0, (pages, page_size))


def _bytes(buffer: Tensor) -> Tensor:
    import torch

    return buffer.view(torch.uint8)


def _rows_at(address: int, indices: Tensor, row_bytes: int) -> Tensor:
    """View the memory at `address` as rows, as many as `indices` reach."""
    import torch

    if indices.numel() == 0:
        return torch.empty((0, row_bytes), dtype=torch.uint8)
    rows = int(indices.max()) + 1
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)


def _copy_rows(src: Tensor, source: Tensor, dst: Tensor, target: Tensor) -> None:
    """Copy rows `source` of `src` to rows `target` of `dst`; rows have equal shapes, targets are distinct."""
    import torch

    count = source.numel()
    if count == 0:
        return
    first = int(target[0])
    if int(target[-1]) - first == count - 1 and bool((torch.diff(target) == 1).all()):
        # A run of target rows, usual for freshly allocated HBM: one pass instead of two.
        torch.index_select(src, 0, source, out=dst[first : first + count])
        return
    gathered = torch.index_select(src, 0, source)
    _bytes(dst).numpy()[target.numpy()] = _bytes(gathered).numpy()
