"""How many GPUs one server needs, and what they leave to KV.

Owns the law: a server takes as few GPUs as leave room for one long prompt beside the weights, a power of two that its
heads can be split over; so a model that fits on one GPU gets one server per GPU, and no traffic between them. Where it
is wrong: what SGLang leaves to weights and KV is only roughly known before it starts, and neither are weights that it
does not split. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixtier.suggest.gpus import Gpu
from radixtier.suggest.model import Model

USABLE_HBM = 0.8
"""Of a GPU's memory, roughly what SGLang leaves to weights and KV together; it decides at start."""

CHAT = 8192
"""Tokens of the chat that tiers are counted in, and the least that any of them must hold."""


def hbm_tokens(gpus: Sequence[Gpu], model: Model) -> int | None:
    """Return the tokens of KV that fit beside the weights on one server's GPUs, None where nothing tells."""
    memory = [gpu.memory for gpu in gpus if gpu.memory is not None]
    if len(memory) < len(gpus) or not memory or model.weights is None:
        return None
    # Every rank has as many tokens as the one with the least room.
    left = int(min(memory) * USABLE_HBM) - -(-model.weights // len(gpus))
    return max(0, left) // model.rank_bytes(len(gpus))


def ranks_for(gpus: Sequence[Gpu], model: Model) -> int:
    """Return how many GPUs a server gets; 1 where one is enough, nothing tells, or all together would not do."""
    alike = len({gpu.name for gpu in gpus}) == 1 and not any(gpu.split for gpu in gpus)
    ranks = 1
    while ranks <= (len(gpus) if alike else 1):
        tokens = hbm_tokens(gpus[:ranks], model) if model.splits(ranks) else 0
        if tokens is None or tokens >= CHAT:
            return ranks
        ranks *= 2
    return 1
