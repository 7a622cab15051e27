"""The ranks' vector: one time, one measure, one point at which a difference is noticed, and few reductions."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from ranks_rig import Ranks

from radixtier.ranks import Alone
from radixtier.ranks.agreement import MOST_MEASURES, Longs, checksum

Make = Callable[[int], Ranks]


class Numbers:
    """A section that offers what it is told to."""

    def __init__(self, *offered: int) -> None:
        self.offered = list(offered)
        self.learnt: list[list[int]] = []

    def offer(self) -> Longs:
        return np.array(self.offered, np.int64)

    def learn(self, agreed: Longs) -> None:
        self.learnt.append(agreed.tolist())


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_time_is_the_same_everywhere_and_never_goes_back(make_ranks: Make, size: int, seed: int) -> None:
    ranks, rng, last = make_ranks(size), random.Random(seed), 100.0
    assert {agreement.now() for agreement in ranks.agreements} == {100.0}, "known from the start"
    for _ in range(100):
        for clock in ranks.clocks:
            clock.now += rng.choice([-3.0, 0.0, 1e-6, 0.5, 40.0])
        rng.choice([ranks.ride, lambda: ranks.all(lambda rank: ranks.agreements[rank].reduce())])()
        [now] = {agreement.now() for agreement in ranks.agreements}
        least = min(clock.now for clock in ranks.clocks)
        assert now >= last and now == pytest.approx(max(last, least), abs=2e-6)
        last = now


def test_of_what_was_measured_all_are_told_the_longest(make_ranks: Make) -> None:
    ranks = make_ranks(3)
    told: list[list[float]] = [[] for _ in range(3)]
    n = MOST_MEASURES + 10
    for rank, agreement in enumerate(ranks.agreements):
        for i in range(n):
            agreement.measured(i + (0.5 if i % 3 == rank else 0.0), told[rank].append)
    assert told == [[], [], []], "not before all have reduced"
    ranks.ride()
    assert told == [[i + 0.5 for i in range(MOST_MEASURES)]] * 3
    ranks.ride()
    assert told == [[i + 0.5 for i in range(n)]] * 3
    ranks.ride()
    assert len(told[0]) == n


def test_measures_may_come_while_one_is_told(make_ranks: Make) -> None:
    ranks = make_ranks(2)
    told: list[float] = []
    for agreement in ranks.agreements:
        agreement.measured(1.0, lambda s, a=agreement: a.measured(s + 1.0, told.append))  # type: ignore[misc]
    ranks.ride()
    assert told == []
    ranks.ride()
    assert told == [2.0, 2.0]


def test_there_is_one_reduction_of_our_own_between_two_steps_at_most(make_ranks: Make) -> None:
    ranks = make_ranks(2)
    before = ranks.meeting.count
    for step in range(1, 4):
        for _ in range(5):
            ranks.all(lambda rank: ranks.agreements[rank].refresh())
        assert ranks.meeting.count - before == step
        assert [agreement.own for agreement in ranks.agreements] == [step] * 2
        ranks.ride()
    ranks.ride()
    assert ranks.meeting.count - before == 3, "what rides along is not one of ours"


def test_sections_get_their_parts_in_order(make_ranks: Make) -> None:
    ranks = make_ranks(2)
    one = [Numbers(3, 4), Numbers(2, 9)]
    other = [Numbers(), Numbers()]
    third = [Numbers(7), Numbers(5)]
    for sections in (one, other, third):
        ranks.join(sections)
    told: list[float] = []
    ranks.agreements[0].measured(2.0, told.append)
    ranks.agreements[1].measured(1.0, told.append)
    ranks.ride()
    assert [section.learnt for section in one] == [[[2, 4]]] * 2
    assert [section.learnt for section in other] == [[[]]] * 2
    assert [section.learnt for section in third] == [[[5]]] * 2
    assert told == [2.0, 2.0]


@pytest.mark.parametrize("rides", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_all_notice_at_the_same_point_that_one_decided_differently(
    make_ranks: Make, size: int, rides: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = make_ranks(size)
    sections, stood_down, told = [Numbers(rank) for rank in range(size)], [0] * size, []
    ranks.join(sections)
    for rank, agreement in enumerate(ranks.agreements):
        agreement.state = lambda rank=rank: checksum([7, rank == size - 1])  # type: ignore[misc]
        agreement.on_divergence = lambda rank=rank: stood_down.__setitem__(rank, stood_down[rank] + 1)  # type: ignore[misc]
        agreement.measured(1.0 + rank, told.append)
    if rides:
        ranks.ride()
    else:
        ranks.all(lambda rank: ranks.agreements[rank].refresh())
    assert all(agreement.diverged and agreement.left for agreement in ranks.agreements)
    assert stood_down == [1] * size
    assert [section.learnt for section in sections] == [[]] * size, "nobody acts on it"
    assert sorted(told) == [1.0 + rank for rank in range(size)], "each goes by what it measured itself"
    assert [record.getMessage() for record in caplog.records] == [
        "radixtier: the ranks of this server have decided differently; the tier is not used any more. Restart the "
        "server, and please report this with the logs of all ranks"
    ] * size
    before = ranks.meeting.count
    for agreement in ranks.agreements:
        agreement.refresh()
    assert ranks.meeting.count == before


def test_equal_states_are_no_difference(make_ranks: Make) -> None:
    ranks = make_ranks(2)
    for state in (0, 1, 0xFFFF_FFFF):
        for agreement in ranks.agreements:
            agreement.state = lambda state=state: state  # type: ignore[misc]
        ranks.ride()
    assert not any(agreement.diverged for agreement in ranks.agreements)


def test_a_rank_that_left_goes_by_its_own_clock_and_meets_nobody(make_ranks: Make) -> None:
    ranks = make_ranks(2)
    told: list[float] = []
    one, other = ranks.agreements
    one.measured(3.0, told.append)
    one.leave()
    assert told == [3.0] and one.left and not one.diverged and not other.left
    ranks.clocks[0].now = 500.0
    assert one.now() == 500.0 and other.now() == 100.0
    one.refresh()
    one.reduce()
    one.measured(4.0, told.append)
    assert told == [3.0, 4.0] and one.own == 0


def test_a_group_that_cannot_be_reached_ends_the_agreement_and_raises_nothing(
    make_ranks: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = make_ranks(2)
    stood_down: list[int] = []
    for agreement in ranks.agreements:
        agreement.on_divergence = lambda: stood_down.append(1)
    ranks.meeting.broken = RuntimeError("connection closed by peer")
    ranks.agreements[0].refresh()
    assert ranks.agreements[0].diverged and stood_down == [1] and ranks.agreements[0].own == 0
    [record] = caplog.records
    assert "the other ranks of this server cannot be reached (connection closed by peer)" in record.getMessage()
    ranks.agreements[0].refresh()
    assert stood_down == [1], "told once"


def test_at_the_start_a_number_is_agreed_at_once(make_ranks: Make) -> None:
    ranks = make_ranks(3)
    assert ranks.all(lambda rank: ranks.agreements[rank].agreed(10 - rank)) == [8, 8, 8]
    assert [agreement.own for agreement in ranks.agreements] == [0, 0, 0]


def test_one_rank_agrees_with_itself() -> None:
    clock = iter([1.0, 2.0])
    alone, told = Alone(lambda: next(clock)), []
    alone.measured(0.25, told.append)
    alone.refresh()
    alone.leave()
    assert (alone.now(), alone.now(), told, alone.agreed(7)) == (1.0, 2.0, [0.25], 7)
    assert (alone.rank, alone.size, alone.diverged) == (0, 1, False)


def test_checksums_are_equal_for_equal_numbers_only() -> None:
    assert 0 <= checksum([1, 2, -3]) == checksum((1, 2, -3)) < 1 << 32
    assert checksum([1, 2, 3]) != checksum([1, 3, 2])
