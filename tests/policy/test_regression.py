"""Fitting times to work, with no coefficient below zero."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.regression import RING, TimeFit, within_reason


@pytest.mark.parametrize("prior", [(0.0, 1.0), (-1.0,), (float("nan"),), (1.0, float("inf"))])
def test_a_prior_has_to_be_above_zero(prior: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        TimeFit(prior, ())


def test_work_that_costs_nothing_is_found_to_cost_nothing() -> None:
    fit = TimeFit((1.0, 1.0), ())
    for n in range(1, 30):
        fit.add(n, (1.0, n), 3.0 * n)
    assert fit.theta == pytest.approx([0.0, 3.0], abs=0.01)


def test_what_always_moves_together_keeps_the_proportion_of_the_prior() -> None:
    fit = TimeFit((1.0, 2.0), ())
    for _ in range(30):
        fit.add(1, (1.0, 1.0), 30.0)
    assert fit.theta == pytest.approx([10.0, 20.0], rel=1e-3)


def test_memory_is_bounded_and_what_is_old_is_forgotten() -> None:
    fit = TimeFit((1.0,), (10,))
    for seconds in (1.0, 5.0):
        for _ in range(RING):
            fit.add(1, (1.0,), seconds)
    assert fit.seen == 2 * RING and fit.theta == pytest.approx([5.0], rel=1e-3)


@given(st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), min_size=3, max_size=6), st.lists(st.floats(-5, 5),
       min_size=3, max_size=3))  # fmt: skip
def test_the_small_problem_is_solved_exactly(rows: list[list[float]], goal: list[float]) -> None:
    """No point of a grid around the solution, and no scaled one, is better."""
    m, g = np.array(rows), np.array(goal)
    a = m.T @ m + 0.1 * np.eye(3)
    fit = TimeFit((1.0, 1.0, 1.0), ())
    # The all-zero solution cannot occur in a fit: times are above zero.
    found = fit._solve(a, g) if (g > 0).any() else np.zeros(3)

    def value(s: np.ndarray) -> float:
        return float(s @ a @ s / 2 - g @ s)

    assert (found >= 0).all()
    for step in product((-0.1, 0.0, 0.1), repeat=3):
        assert value(found) <= value(np.maximum(found + step, 0.0)) + 1e-9


def test_times_that_no_clock_should_have_told_are_cut_off() -> None:
    assert within_reason(1.0) == 1.0
    assert 0 < within_reason(1e-300) < within_reason(1e300) < float("inf")
