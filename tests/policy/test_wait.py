"""How long a request may wait, from what prefills took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.wait import ASSUMED_RATE, LEAST_TOKENS, LONGEST_S, WINDOW_TOKENS, PrefillRate

PREFILLS = st.tuples(st.integers(LEAST_TOKENS, 100_000), st.floats(1e-3, 1e3))


def test_a_rate_is_assumed_until_one_was_seen() -> None:
    assert PrefillRate().rate == ASSUMED_RATE


def test_nobody_waits_longer_than_recomputing_takes() -> None:
    rate = PrefillRate()
    rate.observe(1000, 4.0)
    assert rate.rate == pytest.approx(250.0)
    assert rate.deadline(500) == pytest.approx(2.0)
    assert rate.deadline(0) == 0.0


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (-5, 1.0), (255, 9.0), (1000, 0.0), (1000, -1.0)])
def test_an_observation_of_few_tokens_or_no_time_says_nothing(tokens: int, seconds: float) -> None:
    rate = PrefillRate()
    rate.observe(tokens, seconds)
    assert rate.rate == ASSUMED_RATE
    rate.observe(1000, 10.0)
    rate.observe(tokens, seconds)
    assert rate.rate == pytest.approx(100.0)


def test_no_wait_is_endless() -> None:
    rate = PrefillRate()
    rate.observe(1000, 1e6)
    assert rate.deadline(100_000) == LONGEST_S


@given(st.lists(PREFILLS, min_size=1, max_size=20))
def test_the_rate_lies_between_the_slowest_and_the_fastest_seen(prefills: list[tuple[int, float]]) -> None:
    rate = PrefillRate()
    for tokens, seconds in prefills:
        rate.observe(tokens, seconds)
    rates = [tokens / seconds for tokens, seconds in prefills]
    assert min(rates) * (1 - 1e-9) <= rate.rate <= max(rates) * (1 + 1e-9)
    assert rate.deadline(100) > 0


def test_a_server_that_got_slower_is_noticed_within_a_few_windows() -> None:
    rate = PrefillRate()
    for _ in range(50):
        rate.observe(4096, 0.4096)
    for _ in range(int(3 * WINDOW_TOKENS / 4096)):
        rate.observe(4096, 40.96)
    assert rate.rate < 110.0
    rate.observe(int(2 * WINDOW_TOKENS), 1.0)
    assert rate.rate == pytest.approx(2 * WINDOW_TOKENS)
