"""Attention of new tokens over a cached prefix, for SGLang's `torch_native` backend on a CPU.

Owns the plan of a forward pass (which slots hold each sequence's KV, which keys each query sees) and the kernel that runs
it. Invariant: the result is that of the stock backend; only the work differs. Stock gives the cached prefix queries too
and drops their results, so that a cached prefix saves no attention; here a query exists for new tokens only. KV heads
are never repeated, and KV that lies in one run of slots is not copied. Called on the scheduler thread, one forward pass
at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# New tokens per masked call. A mask takes QUERY_CHUNK * keys * 4 bytes (8 MiB at 8,192 keys); keys behind a chunk's last
# query are not read at all, so at most half a chunk of keys per query is read in vain.
QUERY_CHUNK = 256


@dataclass(frozen=True)
class Sequence:
    """Where one sequence's queries and KV are in a forward pass.

    Attributes
    ----------
    queries
        Its rows in the query tensor of the batch.
    keys
        Its slots in the KV pool, first token first: a slice if they are consecutive.
    prefix
        Its tokens that have KV but no query.
    """

    queries: slice
    keys: slice | Tensor
    prefix: int


@dataclass(frozen=True)
class Plan:
    """What all layers of one forward pass share: the sequences, and masks by (queries, keys)."""

    sequences: list[Sequence]
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)


def plan_batch(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, new_lens: Tensor | None
) -> Plan:
    """Plan one forward pass.

    Parameters
    ----------
    req_to_token
        ``[requests, tokens]``, the slot of every token.
    req_pool_indices, seq_lens
        ``[batch]``, row in `req_to_token`, and tokens with KV, new ones included.
    new_lens
        ``[batch]``, tokens that have a query, always the last ones; None for one each (decode).
    """
    lengths = seq_lens.tolist()
    fresh = [1] * len(lengths) if new_lens is None else new_lens.tolist()
    sequences, start = [], 0
    for row, length, new in zip(req_pool_indices.tolist(), lengths, fresh, strict=True):
        slots = req_to_token[row, :length]
        sequences.append(Sequence(slice(start, start + new), _as_slice(slots), length - new))
        start += new
    return Plan(sequences)


def attend(
    query: Tensor, output: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Plan, scaling: float | None
) -> None:
    """Run one layer: every query sees the whole prefix and the new tokens up to its own.

    Parameters
    ----------
    query, output
        ``[new tokens, heads, head size]``; `output` is written in place.
    k_cache, v_cache
        ``[slots, KV heads, head size]``, new tokens already stored.
    plan
        From :func:`plan_batch`.
    scaling
        Factor on the scores; None for ``head size ** -0.5``.
    """
    for sequence in plan.sequences:
        mine, target = query[sequence.queries], output[sequence.queries]
        keys, values = (_gather(cache, sequence.keys, query.dtype) for cache in (k_cache, v_cache))
        new = mine.shape[0]
        if sequence.prefix == 0:
            target.copy_(_sdpa(mine, keys, values, scaling, causal=new > 1))
            continue
        for start in range(0, new, QUERY_CHUNK):
            chunk = mine[start : start + QUERY_CHUNK]
            seen = sequence.prefix + start + chunk.shape[0]
            mask = None if chunk.shape[0] == 1 else _lower_right(chunk, seen, plan.masks)
            target[start : start + chunk.shape[0]] = _sdpa(
                chunk, keys[:seen], values[:seen], scaling, mask=mask
            )


def install(backend: type[Any]) -> None:
    """Give SGLang's `TorchNativeAttnBackend` this attention where both compute the same function.

    Sliding windows, cross attention and encoders stay with the stock code.
    """
    stock_metadata = backend.init_forward_metadata
    stock_extend = backend._run_sdpa_forward_extend
    stock_decode = backend._run_sdpa_forward_decode

    def init_forward_metadata(self: Any, forward_batch: Any) -> None:
        stock_metadata(self, forward_batch)
        self.forward_metadata = None
        if forward_batch.encoder_lens is None and not forward_batch.forward_mode.is_idle():
            self.forward_metadata = plan_batch(
                self.req_to_token_pool.req_to_token,
                forward_batch.req_pool_indices,
                forward_batch.seq_lens,
                None if forward_batch.forward_mode.is_decode() else forward_batch.extend_seq_lens,
            )

    def extend(self: Any, *tensors: Tensor, causal: bool = False, **options: Any) -> Tensor:
        if not causal or self.forward_metadata is None or options.get("sliding_window_size") is not None:
            return stock_extend(self, *tensors, causal=causal, **options)
        attend(*tensors[:4], self.forward_metadata, options.get("scaling"))
        return tensors[1]

    def decode(self: Any, *tensors: Tensor, **options: Any) -> Tensor:
        if self.forward_metadata is None or options.get("sliding_window_size") is not None:
            return stock_decode(self, *tensors, **options)
        attend(*tensors[:4], self.forward_metadata, options.get("scaling"))
        return tensors[1]

    backend.init_forward_metadata = init_forward_metadata
    backend._run_sdpa_forward_extend = extend
    backend._run_sdpa_forward_decode = decode


def _as_slice(slots: Tensor) -> slice | Tensor:
    import torch

    first, count = int(slots[0]), slots.numel()
    if int(slots[-1]) - first == count - 1 and bool((torch.diff(slots) == 1).all()):
        return slice(first, first + count)
    # The table's row may change before the last layer has run only by mistake; its dtype is 32 bit: convert once.
    return slots.to(torch.int64)


def _gather(cache: Tensor, slots: slice | Tensor, dtype: Any) -> Tensor:
    rows = cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)
    return rows if rows.dtype == dtype else rows.to(dtype)


def _lower_right(chunk: Tensor, keys: int, masks: dict[tuple[int, int], Tensor]) -> Tensor:
    """Additive mask whose last query sees all `keys`, the one before all but one, and so on."""
    import torch

    shape = (chunk.shape[0], keys)
    if shape not in masks:
        hidden = torch.full(shape, float("-inf"), dtype=chunk.dtype)
        masks[shape] = hidden.triu_(keys - shape[0] + 1)
    return masks[shape]


def _sdpa(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Attend ``[queries, heads, size]`` to ``[keys, KV heads, size]``; heads of a group share their KV head's data."""
    from torch.nn.functional import scaled_dot_product_attention

    queries, heads, size = query.shape
    kv_heads = keys.shape[1]
    grouped = heads != kv_heads
    if queries == 1:
        # A single query needs no order among queries: the heads of a group take the place of queries, which reads
        # each KV head once instead of once per query head.
        query, grouped = query.reshape(kv_heads, heads // kv_heads, size).transpose(0, 1), False
    result = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
        enable_gqa=grouped,
    )
    return result.squeeze(0).transpose(0, 1).reshape(queries, heads, -1) if queries > 1 else result.reshape(
        1, heads, -1
    )
