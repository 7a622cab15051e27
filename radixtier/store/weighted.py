"""The second checksum of page images: one that a GPU computes as fast as it copies.

Owns the weights, made once per page size. Any thread.

The law: a page image is taken as signed 32-bit little-endian words ``x[i]``, and its weighted sum is ``seed * M +
sum(x[i] * w[i])`` modulo ``2**64``, with an odd 64-bit weight ``w[i]`` for each position and the seed that
:func:`~radixtier.store.checksum.page_checksum` has. An odd weight notices every change of a single word; the weights
being as good as random, any other change passes with a chance of ``2**-32`` at most. Words of 64 bits would be twice as
fast and far weaker: the top bits of any two words could flip unnoticed, as ``2**63`` times two odd numbers is 0.
Integers wrap around alike in NumPy and in torch, so that both find the same number; the order of the additions does
not matter. ``xxh3``, which is sequential, stays the checksum of everything that passes through DRAM.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WORD = 4
"""Bytes of a word; a page that is not made of whole words has no weighted sum."""

SEED_FACTOR = 0x9E3779B97F4A7C15
"""``M``: odd, so that different seeds differ in the sum."""

Weights = npt.NDArray[np.int64]

_lock = threading.Lock()
_weights: Weights = np.empty(0, np.int64)


def weights(nbytes: int) -> Weights:
    """Return the weights of the words of a page image of ``nbytes``; a prefix of those of any longer one."""
    global _weights
    n = nbytes // WORD
    with _lock:
        if len(_weights) < n:
            _weights = _make(n)
        return _weights[:n]


def _make(n: int) -> Weights:
    """SplitMix64 of the position, made odd."""
    z = (np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(SEED_FACTOR)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    made: Weights = z.view(np.int64)
    made.flags.writeable = False
    return made


def weighted_sum(parts: Sequence[memoryview], seed: int) -> int:
    """Return the weighted sum of the concatenation of ``parts``, each of whole words; ``0 .. 2**64 - 1``."""
    of_all = weights(sum(part.nbytes for part in parts))
    total, at = seed * SEED_FACTOR, 0
    for part in parts:
        words = np.frombuffer(part, dtype="<i4")
        # No temporary of twice the size, and without the interpreter's lock.
        total += int(np.einsum("i,i->", words, of_all[at : at + len(words)], dtype=np.int64))
        at += len(words)
    return total % (1 << 64)


def seeded(sums: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the weighted sums of pages of which ``sum(x[i] * w[i])`` is known, as a device finds it; ``[pages]``."""
    found: npt.NDArray[np.uint64] = sums.view(np.uint64) + seeds * np.uint64(SEED_FACTOR)
    return found
