"""Think times: what is predicted from the pauses seen."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from radixtier.policy.returns import BINS, EDGES, LEAST, Returns, Spread, bin_of


def feed(returns: Returns, session: int, pauses: list[float], now: float = 0.0) -> float:
    """Play turns of no length, one more than pauses; returns the time of the last."""
    returns.ended(session, now)
    for pause in pauses:
        now += pause
        returns.began(session, now)
        returns.ended(session, now)
    return now


def test_nothing_is_predicted_from_nothing() -> None:
    returns = Returns()
    assert returns.expected("a", 0.0) is None
    now = feed(returns, 1, [10.0] * (LEAST - 1))
    assert returns.expected(1, now) is None and returns.window(1, now) is None
    feed(returns, 2, [10.0], now)
    assert returns.expected(1, now) is not None


def test_a_session_that_is_on_turn_is_not_expected() -> None:
    returns = Returns()
    now = feed(returns, 1, [10.0] * 50)
    returns.began(1, now + 10)
    assert returns.expected(1, now + 11) is None


def test_each_session_has_its_own_scale() -> None:
    returns = Returns()
    rng = random.Random(1)
    ends = {}
    for session in range(40):
        scale = 5.0 if session % 2 else 500.0
        ends[session] = feed(returns, session, [scale * math.exp(rng.gauss(0, 0.3)) for _ in range(20)])
    for session, now in ends.items():
        scale = 5.0 if session % 2 else 500.0
        expected = returns.expected(session, now)
        assert expected is not None and 0.4 * scale < expected - now < 2.5 * scale


def test_a_new_session_is_taken_for_an_average_one() -> None:
    returns = Returns()
    for session in range(20):
        feed(returns, session, [30.0] * 10)
    returns.ended("new", 1000.0)
    expected = returns.expected("new", 1000.0)
    assert expected is not None and 20 < expected - 1000 < 45


def test_who_has_missed_the_short_pause_is_expected_after_a_long_one() -> None:
    """Nine tool calls of 3 s, then a person's 600 s."""
    returns = Returns()
    rng = random.Random(2)
    for session in range(30):
        pauses = [rng.uniform(2, 4) if rng.random() < 0.9 else rng.uniform(400, 900) for _ in range(60)]
        now = feed(returns, session, pauses)
    fresh = returns.expected(29, now)
    assert fresh is not None and fresh - now < 10
    later = returns.expected(29, now + 60)
    assert later is not None and later - now > 200
    window = returns.window(29, now + 60)
    assert window is not None and now + 60 <= window.earliest <= window.likeliest


def test_the_expectation_never_lies_in_the_past() -> None:
    returns = Returns()
    now = feed(returns, 1, [10.0] * 100)
    for away in (0.0, 5.0, 9.0, 11.0, 100.0, 1e4, 1e9):
        expected, window = returns.expected(1, now + away), returns.window(1, now + away)
        assert expected is not None and window is not None
        assert expected >= now + away and window.earliest >= now + away and 0.0 <= window.chance <= 1.0


def test_the_chance_of_a_return_is_learned_by_turn() -> None:
    """Half of the sessions end after their first turn; the others have ten."""
    returns = Returns()
    now = 0.0
    for session in range(400):
        now += 100
        feed(returns, session, [10.0] * (9 if session % 2 else 0), now)
    returns.ended("first", now)
    first = returns.window("first", now)
    feed(returns, "third", [10.0, 10.0], now)
    third = returns.window("third", now + 20)
    assert first is not None and third is not None
    assert 0.4 < first.chance < 0.6 and third.chance > 0.85


def test_who_is_still_away_counts_for_as_long_as_it_has_been() -> None:
    """Kaplan-Meier by hand: 4 of 8 return at once; of 4 left, 2 are lost sight of; of 2 left, 1 returns."""
    ended, lasting = [0.0] * BINS, [0.0] * BINS
    ended[0], lasting[10], ended[20], lasting[BINS - 1] = 4, 2, 1, 1
    spread = Spread(np.array(ended), np.array(lasting))
    assert spread.alive[1] == pytest.approx(0.5) and spread.alive[-1] == pytest.approx(0.25)
    assert spread.chance(0.0) == pytest.approx(0.75)
    assert spread.chance(EDGES[15]) == pytest.approx(0.5)
    assert EDGES[20] < spread.quantile(EDGES[15], 0.5) < EDGES[21]


def test_bins_cover_every_pause() -> None:
    assert bin_of(0.0) == 0 and bin_of(1e30) == BINS - 1
    for u in (1e-2, 0.5, 1.0, 7.0, 1e3):
        assert EDGES[bin_of(u)] <= u * (1 + 1e-9) and u <= EDGES[bin_of(u) + 1] * (1 + 1e-9)


def test_memory_is_bounded_and_the_longest_unseen_goes() -> None:
    returns = Returns(max_sessions=100)
    for session in range(5000):
        feed(returns, session, [10.0], float(session))
    assert len(returns) == 100
    assert returns.expected(4999, 5010.0) is not None and returns.expected(4000, 5010.0) is None


def test_a_return_without_an_end_teaches_nothing() -> None:
    returns = Returns()
    for step in range(200):
        returns.began("a", float(step))
    assert len(returns) == 0
    returns.ended("a", 200.0)
    assert returns.expected("a", 200.0) is None
