"""Ratios of radixtier to a peer, with how much they tell: an interval, a range, one sample, or nothing.

Owns the rule: a bootstrap interval needs `ENOUGH` samples or rounds of both; fewer have their range instead. Costs are
differences, so they may be zero or less: ours count as nothing then, and to a peer that costs nothing there is no
ratio. Pure functions, any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from radixtier.load.figures import ENOUGH, Ratio, median_ratio, ratio_of_medians

INTERVAL, RANGE, ONE, NOTHING = "interval", "range", "one sample", "not measured"

_SMALL, _ENDLESS = 1e-9, 1e6


class Estimate(NamedTuple):
    """A ratio; the JSON has these fields.

    Attributes
    ----------
    value
        None where it was not measured.
    low, high
        Of what ``told`` says; a ``high`` of None has no end.
    told
        What the ends are: :data:`INTERVAL` (95 %), :data:`RANGE`, :data:`ONE` (there are none) or :data:`NOTHING`.
    ours, theirs
        Samples or rounds.
    why
        Why it was not measured.
    """

    value: float | None
    low: float | None
    high: float | None
    told: str
    ours: int
    theirs: int
    why: str = ""


def of_samples(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return median(ours) / median(theirs) of seconds."""
    counts = (len(ours), len(theirs))
    if not ours or not theirs:
        return Estimate(None, None, None, NOTHING, *counts, "no samples")
    ours = [max(0.0, each) for each in ours]
    base = statistics.median(theirs)
    if base <= 0:
        return Estimate(None, None, None, NOTHING, *counts, "the peer's cost is not above zero")
    value = statistics.median(ours) / base
    if counts == (1, 1):
        return Estimate(value, None, None, ONE, *counts)
    if min(counts) < ENOUGH:
        high = max(ours) / min(theirs) if min(theirs) > 0 else None
        return Estimate(value, min(ours) / max(theirs), high, RANGE, *counts)
    ratio = ratio_of_medians(ours, [max(_SMALL, each) for each in theirs])
    return _interval(ratio, *counts)


def of_rounds(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Return the median of ours / theirs over rounds in which both were measured."""
    pairs = [(ours, theirs) for ours, theirs in pairs if theirs > 0]
    counts = (len(pairs), len(pairs))
    if not pairs:
        return Estimate(None, None, None, NOTHING, *counts, "no round counts")
    ratios = [ours / theirs for ours, theirs in pairs]
    if len(pairs) == 1:
        return Estimate(ratios[0], None, None, ONE, *counts)
    if len(pairs) < ENOUGH:
        return Estimate(statistics.median(ratios), min(ratios), max(ratios), RANGE, *counts)
    return _interval(median_ratio(pairs), *counts)


def _interval(ratio: Ratio, ours: int, theirs: int) -> Estimate:
    return Estimate(ratio.value, ratio.low, ratio.high if ratio.high < _ENDLESS else None, INTERVAL, ours, theirs)
