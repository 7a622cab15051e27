"""Draws that anybody can repeat: a key decides, not a generator, so that equal keys agree on every rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread keys evenly over 64 bits (the finaliser of splitmix64, a bijection)."""
    mix = keys + np.uint64(_GOLDEN)
    mix = (mix ^ (mix >> np.uint64(30))) * np.uint64(_FIRST)
    mix = (mix ^ (mix >> np.uint64(27))) * np.uint64(_SECOND)
    spread: npt.NDArray[np.uint64] = mix ^ (mix >> np.uint64(31))
    return spread


def draw(key: int) -> float:
    """Return the number from 0 up to 1 that a key stands for; the same law as :func:`mixed`, for one key."""
    mix = (key + _GOLDEN) & _MASK
    mix = ((mix ^ (mix >> 30)) * _FIRST) & _MASK
    mix = ((mix ^ (mix >> 27)) * _SECOND) & _MASK
    return (mix ^ (mix >> 31)) / 2.0**64
