"""Attention of new tokens over a cached prefix, for SGLang's `torch_native` backend on a CPU.

Owns the plan of a forward pass (which slots hold each sequence's KV, which keys each query sees) and the kernel that
runs it. Invariant: the result is that of the stock backend; only the work differs. Stock gives the cached prefix
queries too and drops their results, so that a cached prefix saves no attention; here a query exists for new tokens
only. KV heads are never repeated, and KV that lies in one run of slots is not copied. Called on the scheduler thread,
one forward pass at a time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# New tokens per masked call. The mask takes QUERY_CHUNK * keys * 4 bytes (8 MiB at 8,192 keys); keys behind a chunk's
# last query are not read at all, so at most half a chunk of keys per query is read in vain.
QUERY_CHUNK = 256


@dataclass(frozen=True)
class SequencePlan:
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
    """What all layers of one forward pass share."""

    sequences: list[SequencePlan]
    most_queries: int
    most_keys: int
    _masks: dict[Any, Tensor] = field(default_factory=dict)

    def mask(self, queries: int, keys: int, dtype: Any) -> Tensor:
        """Additive mask ``[queries, keys]``: the last query sees all keys, the one before all but one, and so on.

        The lower right corner of such a mask is such a mask: the largest one serves every call.
        """
        if dtype not in self._masks:
            import torch

            hidden = torch.full((self.most_queries, self.most_keys), float("-inf"), dtype=dtype)
            self._masks[dtype] = hidden.triu_(self.most_keys - self.most_queries + 1)
        return self._masks[dtype][self.most_queries - queries :, self.most_keys - keys :]


def plan_batch(req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, new_lens: Tensor | None) -> Plan:
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
        if new:
            keys = _as_slice(req_to_token[row, :length])
            sequences.append(SequencePlan(slice(start, start + new), keys, length - new))
        start += new
    return Plan(sequences, min(QUERY_CHUNK, max(fresh, default=0)), max(lengths, default=0))


def attend(query: Tensor, output: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Plan, scaling: float | None) -> None:
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
        keys = _gather(k_cache, sequence.keys, query.dtype)
        values = _gather(v_cache, sequence.keys, query.dtype)
        if mine.shape[0] == 1:
            target.copy_(_one_query(mine, keys, values, scaling))
        elif sequence.prefix == 0:
            target.copy_(_sdpa(mine, keys, values, scaling, is_causal=True))
        else:
            for start in range(0, mine.shape[0], QUERY_CHUNK):
                chunk = mine[start : start + QUERY_CHUNK]
                end = start + chunk.shape[0]
                seen = sequence.prefix + end
                mask = plan.mask(end - start, seen, query.dtype)
                target[start:end] = _sdpa(chunk, keys[:seen], values[:seen], scaling, attn_mask=mask)


def install(backend: type[Any]) -> None:
    """Give SGLang's `TorchNativeAttnBackend` this attention where both compute the same function.

    Sliding windows, cross attention and encoders stay with the stock code.
    """
    stock_metadata = backend.init_forward_metadata
    stock_extend = backend._run_sdpa_forward_extend
    stock_decode = backend._run_sdpa_forward_decode

    @functools.wraps(stock_metadata)
    def init_forward_metadata(self: Any, forward_batch: Any) -> None:
        stock_metadata(self, forward_batch)
        decode = forward_batch.forward_mode.is_decode()
        self.forward_metadata = None
        if forward_batch.encoder_lens is None and (decode or forward_batch.extend_seq_lens is not None):
            self.forward_metadata = plan_batch(
                self.req_to_token_pool.req_to_token,
                forward_batch.req_pool_indices,
                forward_batch.seq_lens,
                None if decode else forward_batch.extend_seq_lens,
            )

    @functools.wraps(stock_extend)
    def extend(
        self: Any, query: Tensor, output: Tensor, k_cache: Tensor, v_cache: Tensor, *lengths: Any, **options: Any
    ) -> Any:
        plan = self.forward_metadata
        if plan is None or not options["causal"] or options["sliding_window_size"] is not None:
            return stock_extend(self, query, output, k_cache, v_cache, *lengths, **options)
        attend(query, output, k_cache, v_cache, plan, options["scaling"])
        return output

    @functools.wraps(stock_decode)
    def decode(
        self: Any, query: Tensor, output: Tensor, k_cache: Tensor, v_cache: Tensor, *lengths: Any, **options: Any
    ) -> Any:
        plan = self.forward_metadata
        if plan is None or options["sliding_window_size"] is not None:
            return stock_decode(self, query, output, k_cache, v_cache, *lengths, **options)
        attend(query, output, k_cache, v_cache, plan, options["scaling"])
        return output

    backend.init_forward_metadata = init_forward_metadata
    backend._run_sdpa_forward_extend = extend
    backend._run_sdpa_forward_decode = decode


def _as_slice(slots: Tensor) -> slice | Tensor:
    import torch

    first, count = int(slots[0]), slots.numel()
    if int(slots[-1]) - first == count - 1 and bool((torch.diff(slots) == 1).all()):
        return slice(first, first + count)
    # The table holds 32-bit slots: converted once per forward pass instead of once per layer.
    return slots.to(torch.int64)


def _gather(cache: Tensor, slots: slice | Tensor, dtype: Any) -> Tensor:
    rows = cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)
    return rows.to(dtype)


def _sdpa(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Attend ``[queries, heads, size]`` to ``[keys, KV heads, size]``."""
    from torch.nn.functional import scaled_dot_product_attention

    result = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return result.squeeze(0).transpose(0, 1)


def _one_query(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """Attend ``[1, heads, size]`` to all keys, reading each KV head once.

    One query needs no order among queries, so the query heads that share a KV head take the place of queries.
    """
    kv_heads, size = keys.shape[1:]
    group = query.shape[1] // kv_heads
    grouped = query.reshape(kv_heads, group, size).transpose(0, 1)
    return _sdpa(grouped, keys, values, scaling).transpose(0, 1).reshape(1, kv_heads * group, -1)
