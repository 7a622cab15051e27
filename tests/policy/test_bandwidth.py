"""How long reads and copies are believed to take, from what they took."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.bandwidth import LAST, PRIOR_COPY_RATE, PRIOR_READ_RATE, CopyRate, ReadRate

JOB = 8 << 20
LATENCY_S, RATE = 1e-4, 3e9


def takes(nbytes: float, slower: float = 1.0) -> float:
    return slower * (LATENCY_S + nbytes / RATE)


def trained(jobs: int = 50) -> ReadRate:
    """Return an estimate after reads of 64 KiB to 8 MiB at full speed with 10 % noise."""
    random, rate = np.random.default_rng(0), ReadRate()
    for _ in range(jobs):
        nbytes = int(random.choice([1 << 16, 1 << 20, JOB]))
        rate.observe(nbytes, 0.0, takes(nbytes) * float(np.exp(0.1 * random.standard_normal())))
    return rate


def test_a_plain_drive_is_assumed_until_one_was_seen() -> None:
    assert ReadRate().rate == pytest.approx(PRIOR_READ_RATE, rel=1e-6)
    assert ReadRate(0.5, 100.0).seconds(50.0) == 1.0


def test_small_and_large_reads_are_told_apart() -> None:
    rate = trained()
    for nbytes in (1 << 16, 1 << 20, JOB, 100 * JOB):
        assert takes(nbytes) * 0.85 < rate.seconds(float(nbytes)) < takes(nbytes) * 1.35


def test_writes_count_until_a_read_was_seen() -> None:
    rate = ReadRate()
    rate.observe_write(JOB, JOB / 50e6)
    assert rate.rate == pytest.approx(50e6, rel=0.05)
    rate.observe(JOB, 0.0, JOB / 200e6)
    assert rate.rate == pytest.approx(200e6, rel=0.05)
    rate.observe_write(JOB, JOB / 50e6)
    assert rate.rate == pytest.approx(200e6, rel=0.05)


@pytest.mark.parametrize("nbytes", [1 << 20, JOB])
def test_one_slow_job_is_enough_and_three_fast_ones_make_up_for_it(nbytes: int) -> None:
    rate = trained()
    for _ in range(LAST):
        rate.observe(nbytes, 0.0, takes(nbytes))
    before = rate.seconds(10.0 * JOB)
    rate.observe(nbytes, 0.0, takes(nbytes, 100))
    assert rate.seconds(10.0 * JOB) > 25 * before
    for _ in range(LAST):
        assert rate.slowness > 3
        rate.observe(JOB, 0.0, takes(JOB))
    assert rate.seconds(10.0 * JOB) == pytest.approx(takes(10 * JOB), rel=0.15)


def test_after_a_long_bad_time_three_fast_jobs_are_enough_as_well() -> None:
    rate = trained()
    for _ in range(300):
        rate.observe(JOB, 0.0, takes(JOB, 100))
    assert rate.seconds(10.0 * JOB) == pytest.approx(takes(10 * JOB, 100), rel=0.05)
    for _ in range(LAST):
        rate.observe(JOB, 0.0, takes(JOB))
    assert rate.seconds(10.0 * JOB) == pytest.approx(takes(10 * JOB), rel=0.05)


def test_a_job_that_is_overdue_is_believed_before_it_ends() -> None:
    rate = trained()
    before = rate.seconds(10.0 * JOB)
    rate.overdue(JOB, takes(JOB) / 2)
    assert rate.seconds(10.0 * JOB) == before
    for slower in (10, 100, 500):
        rate.overdue(JOB, takes(JOB, slower))
        assert rate.seconds(10.0 * JOB) > slower / 5 * before
    now = rate.seconds(10.0 * JOB)
    rate.overdue(JOB, takes(JOB, 50))
    assert rate.seconds(10.0 * JOB) == now


def test_an_overdue_job_that_ends_counts_once_and_one_that_never_does_is_outlived() -> None:
    rate = trained()
    for _ in range(LAST):
        rate.observe(JOB, 0.0, takes(JOB))
    rate.overdue(JOB, takes(JOB, 50))
    rate.observe(JOB, 0.0, takes(JOB, 60))
    for _ in range(LAST - 1):
        rate.observe(JOB, 0.0, takes(JOB))
        assert rate.slowness == pytest.approx((60 + LAST - 1) / LAST, rel=0.15)
    rate.observe(JOB, 0.0, takes(JOB))
    assert rate.slowness < 1.5
    rate.overdue(JOB, takes(JOB, 50))
    for _ in range(LAST - 1):
        rate.observe(JOB, 0.0, takes(JOB))
        assert rate.slowness > 12
    rate.observe(JOB, 0.0, takes(JOB))
    assert rate.slowness < 1.5


def test_a_small_job_that_was_late_by_chance_says_little_about_large_ones() -> None:
    rate = trained()
    for nbytes, slower in ((JOB, 1), (JOB, 1), (1 << 16, 20)):
        rate.observe(nbytes, 0.0, takes(nbytes, slower))
    assert rate.slowness < 1.5


def test_an_overdue_first_read_counts() -> None:
    rate = ReadRate()
    rate.overdue(JOB, JOB / 1e6)
    assert rate.rate < 1.1e6


def test_what_was_queued_ahead_explains_the_wait() -> None:
    """Ten jobs side by side: each takes long, together they are as fast as the drive."""
    rate = ReadRate()
    for i in range(10):
        rate.observe(JOB, takes(i * JOB), takes(JOB), ahead=i * JOB)
        rate.overdue(JOB, takes(i * JOB), ahead=i * JOB)
    assert rate.rate == pytest.approx(RATE, rel=0.1)
    assert rate.seconds(float(JOB), 9.0 * JOB) == pytest.approx(takes(10 * JOB), rel=0.1)


def test_arrays_are_estimated_like_single_amounts() -> None:
    rate, copy, amounts = trained(), CopyRate(), [0.0, 1.0, 1e6, 1e9]
    assert rate.seconds(np.array(amounts), 5e6).tolist() == [rate.seconds(n, 5e6) for n in amounts]
    assert copy.seconds(np.array(amounts)).tolist() == [copy.seconds(n) for n in amounts]


@given(st.lists(st.tuples(st.sampled_from("rwo"), st.integers(-5, 1 << 40), st.floats(), st.integers(-5, 1 << 40))))
def test_whatever_was_seen_times_are_positive_finite_and_grow_with_the_bytes(
    seen: list[tuple[str, int, float, int]],
) -> None:
    rate = ReadRate()
    for kind, nbytes, seconds, ahead in seen:
        if kind == "r":
            rate.observe(nbytes, seconds, seconds, ahead)
        elif kind == "w":
            rate.observe_write(nbytes, seconds)
        else:
            rate.overdue(nbytes, seconds, ahead)
        times = rate.seconds(np.array([1.0, 1e6, 1e9]), 1e6)
        assert np.isfinite(times).all() and times[0] > 0 and (np.diff(times) >= 0).all()
        assert np.isfinite(rate.rate) and rate.rate > 0


def test_copies_are_learnt_and_one_slow_copy_changes_little() -> None:
    copy = CopyRate()
    assert copy.rate == pytest.approx(PRIOR_COPY_RATE)
    random = np.random.default_rng(0)
    for _ in range(30):
        nbytes = int(random.uniform(1e5, 1e9))
        copy.observe(nbytes, 1e-5 + nbytes / 25e9)
    copy.observe(1 << 28, 9.0)
    assert copy.rate == pytest.approx(25e9, rel=0.02)
    assert copy.seconds(1e9) == pytest.approx(0.04, rel=0.02)
