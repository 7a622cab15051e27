"""The write budget: its cap over every window, its refunds, its steering, and how it is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.admission import AdmitAll, Candidate, SecondHit, Verdict
from radixtier.policy.write_budget import (
    BURST_S,
    DAY_S,
    INTERVAL_S,
    LEAST_SHARE,
    Budgeted,
    WriteBudget,
    parse_budget,
)
from radixtier.units import BadValue

PER_DAY = 864_000
"""10 bytes/s."""

STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 2 * BURST_S),
        st.sampled_from(["take", "wrote", "refund"]),
        st.integers(1, int(10 * BURST_S * 1.5)),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_window_sees_more_than_the_rate_and_one_burst(steps: list[tuple[float, str, int]]) -> None:
    """A write counts when it is taken; those refunded later never happened."""
    budget = WriteBudget(PER_DAY)
    now = 0.0
    taken: list[list[float]] = []  # time, bytes
    flying: list[list[float]] = []
    for wait, what, nbytes in steps:
        now += wait
        if what == "take":
            if budget.take(nbytes, now):
                flying.append([now, nbytes])
        elif flying:
            write = flying.pop(nbytes % len(flying))
            if what == "refund":
                budget.refund(int(write[1]), now)
            else:
                budget.wrote(int(write[1]), now)
                taken.append(write)
    taken = sorted(taken + flying)
    for first in range(len(taken)):
        total = 0.0
        for when, nbytes in taken[first:]:
            total += nbytes
            assert total <= budget.rate * (when - taken[first][0]) + budget.burst + 1e-3


@given(STEPS, st.integers(1, int(10 * BURST_S)))
def test_a_refund_is_exact(steps: list[tuple[float, str, int]], nbytes: int) -> None:
    budget = WriteBudget(PER_DAY)
    now = 0.0
    for wait, _, size in steps:
        now += wait
        if budget.take(size, now):
            budget.wrote(size, now)
    before = budget.left(now), budget.in_flight
    if budget.take(nbytes, now):
        budget.refund(nbytes, now)
    assert (budget.left(now), budget.in_flight) == (pytest.approx(before[0]), before[1])


def test_a_refund_restores_what_the_bucket_would_hold_without_the_take() -> None:
    one, other = WriteBudget(PER_DAY), WriteBudget(PER_DAY)
    for budget in (one, other):
        assert budget.take(30_000, 0.0)
        budget.wrote(30_000, 0.0)
    assert one.take(5_000, 0.0)
    one.refund(5_000, 100.0)
    assert one.left(200.0) == pytest.approx(other.left(200.0)) == 8_000


def test_ending_more_than_was_taken_is_an_error() -> None:
    budget = WriteBudget(PER_DAY)
    assert budget.take(10, 0.0)
    with pytest.raises(AssertionError, match="11 bytes end of 10"):
        budget.wrote(11, 0.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget = WriteBudget(PER_DAY)
    assert budget.take(36_000, 100.0)
    assert budget.left(0.0) == budget.left(100.0) == 0.0


def candidate(number: int, now: float, uses: int = 2, nbytes: int = 100, needed: bool = False) -> Candidate:
    return Candidate(np.array([number], np.uint64), nbytes, uses, 0.0, now, number, needed)


def test_an_empty_bucket_throttles_and_the_inner_policy_rejects() -> None:
    policy = Budgeted(SecondHit(10), WriteBudget(PER_DAY))
    assert policy.admit(candidate(1, 0.0, uses=1)) is Verdict.REJECT
    assert policy.admit(candidate(1, 0.0, nbytes=36_000)) is Verdict.ADMIT
    assert policy.admit(candidate(2, 0.0)) is Verdict.THROTTLED
    policy.refund(36_000, 0.0)
    assert policy.admit(candidate(2, 0.0)) is Verdict.ADMIT


def drive(policy: Budgeted, seconds: int, per_second: int, start: int = 0) -> int:
    """Offer paths of 100 bytes; returns the bytes admitted."""
    admitted = 0
    for second in range(seconds):
        now = float(start + second)
        for n in range(per_second):
            verdict = policy.admit(candidate((start + second) * per_second + n, now))
            if verdict is Verdict.ADMIT:
                policy.wrote(100, now)
                admitted += 100
    return admitted


@pytest.mark.parametrize("per_second", [1, 4])
def test_the_share_meets_the_budget(per_second: int) -> None:
    """10 to 40 times too much wants to pass: after the burst the share lets through what the rate allows."""
    policy = Budgeted(AdmitAll(), WriteBudget(PER_DAY))
    drive(policy, 3 * 3600, per_second)
    admitted = drive(policy, 3600, per_second, start=3 * 3600)
    assert 0.8 * 36_000 <= admitted <= 1.1 * 36_000
    assert policy.share < 0.25 / per_second


def test_a_load_within_the_budget_is_not_touched() -> None:
    policy = Budgeted(AdmitAll(), WriteBudget(100 * PER_DAY))
    admitted = drive(policy, 600, 2)
    assert admitted == 600 * 2 * 100 and policy.share == 1.0


def test_the_share_recovers_when_the_load_ends() -> None:
    policy = Budgeted(AdmitAll(), WriteBudget(PER_DAY))
    drive(policy, 3600, 4)
    assert policy.share < 0.2
    for minute in range(20):
        policy.admit(candidate(1, 3600 + (1 + minute) * INTERVAL_S, nbytes=1))
    assert policy.share == 1.0


def test_a_path_passes_as_a_whole_and_takes_what_is_in_front_along() -> None:
    policy = Budgeted(AdmitAll(), WriteBudget(100 * PER_DAY))
    policy.share = LEAST_SHARE
    assert {policy.admit(candidate(3, float(n))) for n in range(50)} == {Verdict.THROTTLED}
    assert policy.admit(candidate(3, 50.0, needed=True)) is Verdict.ADMIT


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("500GB/day", 500 * 10**9),
        ("500GB", 500 * 10**9),
        ("1TiB / d", 1 << 40),
        ("1.0DWPD", 10**12),
        ("0.3 dwpd", 3 * 10**11),
        ("0", None),
        (" None ", None),
    ],
)
def test_budgets_are_read(text: str, nbytes: int | None) -> None:
    assert parse_budget(text, 10**12) == nbytes


@pytest.mark.parametrize("text", ["", "lots", "5 DWPDs", "-1GB", "3Mtok", "500GB/week", "0GB", "1"])
def test_what_is_no_budget_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(BadValue, match="500GB/day"):
        parse_budget(text, 10**12)


def test_drive_writes_need_a_drive() -> None:
    with pytest.raises(BadValue, match="size of the drive is not known"):
        parse_budget("1DWPD", None)


def test_a_day_is_a_day() -> None:
    assert WriteBudget(PER_DAY).rate * DAY_S == PER_DAY
