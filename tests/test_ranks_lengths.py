"""Ranks that have more or less to say than others, since they decided differently: all notice, and none is cut off."""

from __future__ import annotations

import numpy as np
import pytest

from radixtier.ranks import Agreement, Completions
from radixtier.ranks.agreement import BLOCK, Longs

JOB = 3
"""Numbers that an open job takes."""


class Alike:
    """A group whose ranks say the same at the start; afterwards the test reduces."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def minimum(self, values: Longs) -> Longs:
        return values


def ranks_with(*jobs: int) -> list[Agreement]:
    """Ranks that began so many jobs."""
    agreements = []
    for rank, n in enumerate(jobs):
        agreements.append(Agreement(Alike(rank), clock=lambda: 1.0))
        section = Completions()
        agreements[-1].join(section)
        for tag in range(n):
            section.begin(tag, 1, 0)
    return agreements


@pytest.mark.parametrize("jobs", [(0, 1), (3, 2), (64, 0), (5, 5)])
def test_all_notice_that_one_has_more_to_say(jobs: tuple[int, int]) -> None:
    agreements = ranks_with(*jobs)
    offers = [agreement.offer() for agreement in agreements]
    assert len({len(offer) for offer in offers}) == 1, "a reduction of different lengths would end the processes"
    for agreement in agreements:
        agreement.learn(np.minimum.reduce(offers))
    assert [agreement.diverged for agreement in agreements] == [jobs[0] != jobs[1]] * 2


@pytest.mark.parametrize("measures", [0, 1, 64])
def test_a_vector_is_whole_blocks(measures: int) -> None:
    [agreement] = ranks_with(64)
    told: list[float] = []
    for _ in range(measures):
        agreement.measured(1.0, told.append)
    offer = agreement.offer()
    assert measures + 64 * JOB < len(offer) == BLOCK
    agreement.learn(offer)
    assert told == [1.0] * measures and not agreement.diverged


@pytest.mark.parametrize("failed", [(0,), (1,), (0, 1)])
def test_what_some_ranks_could_not_do_is_found_out_and_what_none_could_is_no_difference(
    failed: tuple[int, ...],
) -> None:
    agreements = ranks_with(1, 1)
    for rank in failed:
        agreements[rank].fail()
    for _ in range(2):
        offers = [agreement.offer() for agreement in agreements]
        for agreement in agreements:
            agreement.learn(np.minimum.reduce(offers))
    assert [agreement.diverged for agreement in agreements] == [len(failed) == 1] * 2
