"""What a plan is to reach: a hit ratio, or a time to first token.

Owns how a target is written and read off a report. Pure; any thread.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

PERCENTILES = ("p50", "p95", "p99", "mean")


class Target(NamedTuple):
    """At least this hit ratio in all tiers together, or at most this time to first token."""

    value: float
    """Ratio, or seconds."""
    percentile: str | None = None
    """Of `PERCENTILES`; None is a hit ratio."""

    def of(self, report: dict[str, Any], stack: str = "tiers") -> float:
        """Read what a stack of a report reaches: a ratio, or seconds."""
        found = report["stacks"][stack]
        return float(found["hit_ratio"] if self.percentile is None else found["ttft_s"][self.percentile])

    def better(self, one: float, other: float) -> bool:
        """Whether one is better than the other."""
        return one > other if self.percentile is None else one < other

    def clearly_better(self, one: float, other: float) -> bool:
        """Whether one is so much better that somebody may pay for it: 0.002 of hit ratio, or 1 % of the time."""
        return one > other + 0.002 if self.percentile is None else one < 0.99 * other

    def reached(self, value: float) -> bool:
        """Whether that is good enough."""
        return not self.better(self.value, value)

    @property
    def name(self) -> str:
        """What it is about."""
        return "hit ratio" if self.percentile is None else f"TTFT {self.percentile}"

    def written(self, value: float) -> str:
        """Write such a value."""
        return f"{value:.3f}" if self.percentile is None else f"{value:.2f} s"

    def __str__(self) -> str:
        return f"{self.name} of {self.written(self.value)} or {'more' if self.percentile is None else 'less'}"


def hit_ratio(text: str) -> Target:
    """Read ``0.4``.

    Raises
    ------
    ValueError
        The text says what is wrong with it and what to write.
    """
    value = _number(text)
    if value is None or not 0 < value <= 1:
        raise ValueError("not a share of the blocks: write a number above 0 and up to 1, for example 0.4")
    return Target(value)


def ttft(text: str) -> Target:
    """Read ``2.5`` (p95), ``0.8@p50`` or ``3@mean``.

    Raises
    ------
    ValueError
        The text says what is wrong with it and what to write.
    """
    seconds, _, percentile = text.partition("@")
    value = _number(seconds)
    if value is None or value <= 0 or (percentile or "p95") not in PERCENTILES:
        raise ValueError(f"not a time: write seconds, or seconds@ and one of {', '.join(PERCENTILES)}, as in 2.5@p95")
    return Target(value, percentile or "p95")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
