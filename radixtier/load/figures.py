"""What is made of the answers of a load: times, throughput, sources, and ratios with confidence intervals.

Owns the definitions. Failed and cut requests count as such and are in no other figure. Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from radixtier.load.answer import TIERS, Answer
from radixtier.load.play import Played

RESAMPLES = 2000
CONFIDENCE = 0.95

ENOUGH = 6
"""Fewest samples that can tell: the median lies outside all of n with a chance of 2 / 2 ** n, 3 % for six."""


class Ratio(NamedTuple):
    """An estimate with its confidence interval (:data:`CONFIDENCE`)."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of ``values`` that ``share`` of them do not exceed; None for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return ``mean``, ``p50``, ``p95``, ``p99``."""
    mean = sum(values) / len(values) if values else None
    return {"mean": mean, **{f"p{round(share * 100)}": percentile(values, share) for share in (0.5, 0.95, 0.99)}}


def figures(played: Played) -> dict[str, Any]:
    """Summarise a load.

    Returns
    -------
    dict
        ``requests`` (answered), ``failed``, ``cut``; ``seconds``; ``ttft_s``, ``itl_s`` and ``total_s`` (see
        :func:`spread`); ``requests_per_s``, ``prompt_tokens_per_s``, ``output_tokens_per_s``; ``tokens``: ``prompt``,
        ``output``, and those of prompts by where they came from: ``hbm``, ``dram``, ``nvme``, ``cached`` (the tier was
        not told), ``unknown`` (nothing was told), ``recomputed``; ``sources``: by :attr:`Answer.source`
        ``requests`` and ``ttft_s``; ``prefixes``: by :attr:`Answer.prefix` the same, and on the average
        ``prompt_tokens`` and ``computed_tokens`` of a request.
    """
    answers = [answer for answer in played.answers if answer.ok]
    seconds = played.seconds or math.inf
    tokens = tokens_by_source(answers)
    return {
        "requests": len(answers),
        "failed": sum(bool(answer.error) for answer in played.answers),
        "cut": sum(answer.cut for answer in played.answers),
        "seconds": played.seconds,
        "ttft_s": spread([answer.ttft_s for answer in answers]),
        "itl_s": spread([gap for answer in answers for gap in answer.gaps_s]),
        "total_s": spread([answer.total_s for answer in answers]),
        "requests_per_s": len(answers) / seconds,
        "prompt_tokens_per_s": tokens["prompt"] / seconds,
        "output_tokens_per_s": tokens["output"] / seconds,
        "tokens": tokens,
        "sources": sources(answers),
        "prefixes": prefixes(answers),
    }


def tokens_by_source(answers: Sequence[Answer]) -> dict[str, int]:
    """Count the tokens of some answers; see :func:`figures`. All but ``output`` sum to ``prompt``."""
    told = [(answer, answer.cached) for answer in answers if answer.cached is not None]
    counts = {
        "prompt": sum(answer.prompt_tokens for answer in answers),
        "output": sum(answer.output_tokens for answer in answers),
        **{tier: sum(getattr(cached, tier) for answer, cached in told if answer.split) for tier in TIERS},
        "cached": sum(cached.total for answer, cached in told if not answer.split),
        "unknown": sum(answer.prompt_tokens for answer in answers if answer.cached is None),
    }
    counts["recomputed"] = counts["prompt"] - sum(counts[name] for name in (*TIERS, "cached", "unknown"))
    return counts


def sources(answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Return ``requests`` and ``ttft_s`` by where prompts came from."""
    counts = Counter(answer.source for answer in answers)
    return {
        source: {"requests": count, "ttft_s": spread([a.ttft_s for a in answers if a.source == source])}
        for source, count in counts.most_common()
    }


def prefixes(answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Return requests, TTFT, and mean tokens of prompts and of what was computed, by where prefixes came from."""
    found: dict[str, dict[str, Any]] = {}
    for prefix, count in Counter(answer.prefix for answer in answers).most_common():
        mine = [answer for answer in answers if answer.prefix == prefix]
        prompt = sum(answer.prompt_tokens for answer in mine)
        found[prefix] = {
            "requests": count,
            "ttft_s": spread([answer.ttft_s for answer in mine]),
            "prompt_tokens": prompt / count,
            "computed_tokens": (prompt - sum(answer.cached.total for answer in mine if answer.cached)) / count,
        }
    return found


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio:
    """Return median(ours) / median(theirs), with a bootstrap interval over both samples; neither may be empty."""
    draw = np.random.default_rng(seed)
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    medians = [np.median(draw.choice(each, (RESAMPLES, len(each))), axis=1) for each in (a, b)]
    return _ratio(float(np.median(a) / np.median(b)), medians[0] / medians[1])


def median_ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Ratio:
    """Return the median of ours / theirs over rounds in which both were measured, with a bootstrap interval."""
    draw = np.random.default_rng(seed)
    ratios = np.asarray([ours / theirs for ours, theirs in pairs], float)
    return _ratio(float(np.median(ratios)), np.median(draw.choice(ratios, (RESAMPLES, len(ratios))), axis=1))


def _ratio(value: float, resampled: Any) -> Ratio:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(value, float(low), float(high))
