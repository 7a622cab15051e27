"""Which pages go straight to HBM, and when that way is trusted."""

from __future__ import annotations

import numpy as np
import pytest

from radixtier.policy.bandwidth import CopyRate, ReadRate
from radixtier.policy.landing import FAILURES, LONG_PAGES, MEASURED, RETRY_S, Segment, Trust, straight
from radixtier.policy.prefill import Machine, PrefillCost
from radixtier.policy.promotion import Ask, Plan, plan

NBYTES = 64 << 20
AGAIN, ONCE = True, False


def chosen(segments: list[tuple[int, bool]], landing: int = 1000, room: int = 1000, cold: list[int] | None = None):
    pages = sum(n for n, _ in segments)
    positions = np.arange(pages) if cold is None else np.array(cold)
    found = straight([Segment(*each) for each in segments], positions, landing, lambda n: n <= room)
    return found.tolist()


@pytest.mark.parametrize(
    ("segments", "first"),
    [
        ([(20, ONCE)], 0),
        ([(20, AGAIN)], None),
        ([(5, AGAIN), (20, ONCE)], 5),
        ([(20, ONCE), (5, AGAIN), (20, ONCE)], 25),
        ([(20, ONCE), (5, AGAIN)], None),
        ([(5, AGAIN), (3, ONCE), (5, ONCE)], 5),
    ],
)
def test_what_is_wanted_again_goes_through_dram_with_all_in_front_of_it(
    segments: list[tuple[int, bool]], first: int | None
) -> None:
    pages = sum(n for n, _ in segments)
    assert chosen(segments) == ([] if first is None else list(range(first, pages)))


def test_a_short_tail_goes_straight_only_where_dram_has_no_room_for_it() -> None:
    short = [(5, AGAIN), (LONG_PAGES - 1, ONCE)]
    assert chosen(short) == [] and chosen(short, room=LONG_PAGES - 2) == list(range(5, 4 + LONG_PAGES))
    assert len(chosen([(LONG_PAGES, ONCE)])) == LONG_PAGES


def test_the_end_of_a_tail_that_does_not_fit_goes_straight() -> None:
    assert chosen([(20, ONCE)], landing=6) == [14, 15, 16, 17, 18, 19]
    assert chosen([(20, ONCE)], landing=0) == [] and chosen([(0, ONCE)]) == []


def test_only_pages_that_are_on_nvme_count() -> None:
    assert chosen([(4, AGAIN), (20, ONCE)], cold=[1, 3, 5, 9, *range(12, 20)]) == [5, 9, *range(12, 20)]


def seen(bytes_per_s: float, jobs: int = MEASURED) -> ReadRate:
    rate = ReadRate()
    for _ in range(jobs):
        rate.observe(NBYTES, 0.0, NBYTES / bytes_per_s)
    return rate


@pytest.mark.parametrize(
    ("direct", "jobs", "worth"), [(4e9, 9, True), (1.7e9, 9, True), (1e9, 9, False), (1e9, MEASURED - 1, True)]
)
def test_a_slower_way_is_left(direct: float, jobs: int, worth: bool) -> None:
    assert Trust().worth(NBYTES, seen(direct, jobs), seen(2e9), 0.0) or not worth
    trust = Trust()
    trust.taken(0.0)
    assert trust.worth(NBYTES, seen(direct, jobs), seen(2e9), 1.0) == worth


def test_a_slower_way_is_tried_again_now_and_then() -> None:
    trust, slow, fast = Trust(), seen(1e8), seen(2e9)
    trust.taken(10.0)
    assert not trust.worth(NBYTES, slow, fast, 10.0 + RETRY_S - 1)
    assert trust.worth(NBYTES, slow, fast, 10.0 + RETRY_S) and trust.worth(NBYTES, slow, fast, 11.0 + RETRY_S)
    trust.taken(11.0 + RETRY_S)
    assert not trust.worth(NBYTES, slow, fast, 12.0 + RETRY_S)


def test_failures_in_a_row_end_it_for_good_and_are_told_once() -> None:
    trust = Trust()
    for _ in range(FAILURES):
        assert [trust.failed() for _ in range(FAILURES - 1)] == [False] * (FAILURES - 1)
        trust.worked()
    assert not trust.given_up
    assert [trust.failed() for _ in range(FAILURES + 2)] == [False] * (FAILURES - 1) + [True, False, False]
    trust.worked()
    assert trust.given_up and not trust.worth(NBYTES, seen(9e9), seen(1e9), 1e9)


# ---- what a wait costs ----------------------------------------------------------------------------------

GPU = PrefillCost(Machine(overhead=0.01, linear=1 / 10_000, quadratic=1 / 10_000 / 30_000))


def wait(straight_pages: int, direct: float, through: float = 2e9, copy: float = 20e9) -> Plan:
    flags = np.arange(100) >= 100 - straight_pages
    ask = Ask(
        prompt_tokens=2000, hbm_tokens=0, pages=100, cold=np.arange(100), page_tokens=16, page_bytes=2 << 20,
        frames=1000, straight=flags,
    )  # fmt: skip
    return plan(ask, GPU, ReadRate(1e-9, through), CopyRate(1e-9, copy), ReadRate(1e-9, direct))


def test_each_page_is_waited_for_at_the_speed_of_its_way() -> None:
    nbytes = 2 << 20
    assert wait(0, 8e9).expected_s == pytest.approx(100 * nbytes / 2e9, rel=1e-3)
    assert wait(100, 8e9).expected_s == pytest.approx(100 * nbytes / 8e9, rel=1e-3)
    assert wait(40, 8e9).expected_s == pytest.approx(60 * nbytes / 2e9 + 40 * nbytes / 8e9, rel=1e-3)


def test_what_lands_is_not_copied_from_dram() -> None:
    slow_link = 8e9
    gain = wait(100, 4e9, 4e9, copy=slow_link).deadline_s - wait(0, 4e9, 4e9, copy=slow_link).deadline_s
    assert gain == pytest.approx(100 * (2 << 20) / slow_link, rel=1e-3)


def test_a_slow_way_straight_up_shortens_the_wait() -> None:
    assert wait(0, 1e6).wait_pages == 100
    assert wait(10, 1e6).wait_pages == 90
