"""Reads figures out of states, whatever these lack.

Owns nothing. A state is what ``GET /radix_tier/state`` answers; figures that do not apply to a server are null or
missing there, and None here. Any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

State = Mapping[str, Any]

Latency = tuple[str, float, int]
"""Kind (``read``, ``write`` or ``verify``), seconds and bytes of one transfer."""

Latencies = Sequence[Latency]


def part(state: Any, path: str) -> Any:
    """Return what is at a path of keys, such as ``"tiers.hbm.used"``; None where it ends too early."""
    for key in path.split("."):
        if not isinstance(state, Mapping):
            return None
        state = state.get(key)
    return state


def number(value: Any) -> float | None:
    """Return a finite number as it is, true as 1.0, and None for everything else."""
    if not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def figure(state: State, path: str, factor: float = 1.0) -> float | None:
    """Return the number at a path, times ``factor``; None where there is none."""
    found = number(part(state, path))
    return None if found is None else number(found * factor)


def grown(before: float | None, now: float | None) -> float | None:
    """Return by how much a counter grew; one that went down has started over from 0. None where it is not known."""
    if before is None or now is None:
        return None
    return now - before if now >= before else max(0.0, now)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of some values that at least ``share`` of them do not exceed; None without any."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
