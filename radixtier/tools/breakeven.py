"""From which length on a prefix is faster read from NVMe than computed again.

Owns the model. Law: reading ``n`` tokens takes ``START_S + n * kv_bytes / bandwidth`` seconds, computing them takes
``n / prefill_rate``; the shortest prefix that pays is where the first falls below the second. Copies from DRAM to HBM
overlap with the forward pass and are left out, and so is that prefill slows down with context: both favour computing,
so that the true break-even is not above this one by much and often below. Pure; any thread.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from radixtier.tools.attention import from_config

START_S = 0.01
"""Seconds from arrival to admission that a read costs beside its transfers: a few steps of the scheduler."""

DEFAULT_KV_BYTES = 128 << 10
"""Per token; an 8B model with grouped-query attention in bfloat16: 32 layers, 8 heads of 128, K and V."""


class BreakEven(NamedTuple):
    """Shortest prefix in tokens that pays (None: none does), and seconds to read and to compute some prefixes."""

    tokens: int | None
    read_s: dict[int, float]
    compute_s: dict[int, float]


def break_even(bandwidth: float, prefill_rate: float, kv_bytes: int, lengths: tuple[int, ...]) -> BreakEven:
    """Apply the law.

    Parameters
    ----------
    bandwidth : float
        Of reads from the store, bytes/s, more than 0.
    prefill_rate : float
        Tokens/s, more than 0.
    kv_bytes : int
        KV of one token, all layers.
    lengths : tuple of int
        Prefixes, in tokens, to tell the seconds of.
    """
    read, compute = kv_bytes / bandwidth, 1.0 / prefill_rate
    tokens = math.floor(START_S / (compute - read)) + 1 if compute > read else None
    return BreakEven(tokens, {n: START_S + n * read for n in lengths}, {n: n * compute for n in lengths})


def kv_bytes_of(config: Path, dtype: str | None = None) -> int:
    """Return the KV bytes of one token of a model on one rank, from its ``config.json``.

    Parameters
    ----------
    config : Path
        The file, or the directory that it lies in.
    dtype : str or None
        One of :data:`radixtier.tools.attention.DTYPES`; what the file says by default.

    Raises
    ------
    OSError
        When the file cannot be read.
    ValueError
        When it does not tell; the message names the flag to use instead.
    """
    return from_config(config, dtype).rank_bytes()
