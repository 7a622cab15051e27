"""What is made of answers: definitions, empty cases, intervals."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.load.answer import Answer, Cached
from radixtier.load.figures import figures, median_ratio, percentile, ratio_of_medians, spread
from radixtier.load.play import Exchange, Played

TIMES = st.floats(0.001, 100.0)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    prompt = draw(st.integers(1, 1000))
    hbm = draw(st.integers(0, prompt))
    dram = draw(st.integers(0, prompt - hbm))
    nvme = draw(st.integers(0, prompt - hbm - dram))
    kind = draw(st.sampled_from(["ok", "ok", "ok", "error", "cut", "unsplit", "untold"]))
    ttft = draw(TIMES)
    gaps = tuple(draw(st.lists(TIMES, max_size=4)))
    cached = Cached(hbm + dram + nvme) if kind == "unsplit" else Cached(hbm, dram, nvme)
    return Answer(
        started_s=draw(TIMES),
        ttft_s=ttft,
        total_s=ttft + sum(gaps),
        gaps_s=gaps,
        prompt_tokens=prompt,
        output_tokens=len(gaps) + 1,
        cached=None if kind == "untold" else cached,
        split=kind != "unsplit",
        error="no" if kind == "error" else "",
        cut=kind == "cut",
    )


def of(found: list[Answer], seconds: float = 10.0) -> Played:
    return Played(tuple(Exchange("a", at, answer) for at, answer in enumerate(found)), seconds)


@given(st.lists(answers(), max_size=12), st.floats(0.1, 100.0))
def test_every_answer_and_every_token_counts_once(found: list[Answer], seconds: float) -> None:
    result = figures(of(found, seconds))
    good = [answer for answer in found if answer.ok]
    assert result["requests"] == len(good)
    assert result["requests"] + result["failed"] + result["cut"] == len(found)
    tokens = result["tokens"]
    parts = ("hbm", "dram", "nvme", "cached", "unknown", "recomputed")
    assert sum(tokens[part] for part in parts) == tokens["prompt"] == sum(answer.prompt_tokens for answer in good)
    assert all(tokens[part] >= 0 for part in parts)
    assert math.isclose(result["output_tokens_per_s"] * seconds, tokens["output"], abs_tol=1e-9)
    assert math.isclose(result["requests_per_s"] * seconds, len(good), abs_tol=1e-9)
    for kind in ("sources", "prefixes"):
        assert sum(part["requests"] for part in result[kind].values()) == len(good)
    computed = sum(part["computed_tokens"] * part["requests"] for part in result["prefixes"].values())
    assert math.isclose(computed, tokens["recomputed"] + tokens["unknown"], abs_tol=1e-6)
    json.dumps(result, allow_nan=False)


@given(st.lists(answers(), min_size=1, max_size=12))
def test_times_lie_between_the_extremes(found: list[Answer]) -> None:
    result = figures(of(found))
    times = [answer.ttft_s for answer in found if answer.ok]
    ttft = result["ttft_s"]
    if not times:
        assert set(ttft.values()) == {None}
        return
    assert min(times) <= ttft["p50"] <= ttft["p95"] <= ttft["p99"] <= max(times)
    assert min(times) - 1e-9 <= ttft["mean"] <= max(times) + 1e-9
    assert {ttft["p50"], ttft["p95"], ttft["p99"]} <= set(times)


def test_nothing_was_answered() -> None:
    for played in (Played((), 0.0), of([Answer(0.0, 1.0, 1.0, error="no")], 0.0)):
        result = figures(played)
        assert result["requests"] == 0 == result["requests_per_s"] == result["output_tokens_per_s"]
        assert result["ttft_s"]["p50"] is None and result["itl_s"]["mean"] is None and result["prefixes"] == {}
        json.dumps(result, allow_nan=False)


def test_throughput_is_of_the_answered_over_the_whole_time() -> None:
    good = Answer(0.0, 1.0, 2.0, prompt_tokens=100, output_tokens=8, cached=Cached())
    bad = Answer(0.0, 9.0, 9.0, prompt_tokens=100, error="no")
    result = figures(of([good, good, bad], 4.0))
    assert (result["requests_per_s"], result["output_tokens_per_s"], result["prompt_tokens_per_s"]) == (0.5, 4.0, 50.0)
    assert result["total_s"]["p99"] == 2.0


@given(st.lists(TIMES, min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_percentile_is_the_smallest_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < max(1, share * len(values))


def test_spread_of_nothing_and_of_one() -> None:
    assert set(spread([]).values()) == {None}
    assert set(spread([3.0]).values()) == {3.0}


@given(st.lists(TIMES, min_size=1, max_size=12), st.lists(TIMES, min_size=1, max_size=12))
def test_an_interval_holds_what_can_be(ours: list[float], theirs: list[float]) -> None:
    ratio = ratio_of_medians(ours, theirs)
    assert ratio.low <= ratio.high
    assert min(ours) / max(theirs) <= ratio.low * (1 + 1e-9) and ratio.high <= max(ours) / min(theirs) * (1 + 1e-9)
    assert ratio == ratio_of_medians(ours, theirs)


@given(TIMES, st.integers(1, 20))
def test_rounds_without_difference_have_no_width(value: float, rounds: int) -> None:
    assert median_ratio([(value, value)] * rounds) == (1.0, 1.0, 1.0)


def test_median_ratio_is_robust_against_one_bad_round() -> None:
    ratio = median_ratio([(1.0, 2.0)] * 11 + [(50.0, 1.0)])
    assert ratio.value == 0.5 and ratio.low == 0.5 and ratio.high < 1


@pytest.mark.parametrize(
    ("cached", "split", "source", "prefix"),
    [
        (None, True, "unknown", "unknown"),
        (Cached(), True, "recompute", "recompute"),
        (Cached(), False, "recompute", "recompute"),
        (Cached(hbm=5), True, "mixed", "recompute"),
        (Cached(hbm=50), True, "mixed", "hbm"),
        (Cached(hbm=50), False, "cached", "cached"),
        (Cached(nvme=95), True, "nvme", "nvme"),
        (Cached(hbm=5, dram=95), True, "dram", "dram"),
        (Cached(hbm=40, dram=30, nvme=30), True, "mixed", "mixed"),
    ],
)
def test_where_a_prompt_of_100_tokens_came_from(cached: Cached | None, split: bool, source: str, prefix: str) -> None:
    answer = Answer(0.0, 1.0, 1.0, prompt_tokens=100, cached=cached, split=split)
    assert (answer.source, answer.prefix) == (source, prefix)
