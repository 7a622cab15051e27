"""Jobs that end in any order on any rank: all ranks take the same ones, in the same order, each once."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mover_fakes import SCALE
from ranks_rig import exchange

from radixtier.ranks import Completion, Completions, completions
from radixtier.ranks.completions import CANCELLED, CORRUPT, FAILED, OK

FATES = st.sampled_from([OK, OK, OK, CANCELLED, FAILED, CORRUPT])
WINDOW, DETAIL_PAGES = 4, 6
"""So few that a handful of jobs does not fit."""


def codes(*values: int) -> Any:
    return np.array(values, np.int8)


def taken(sections: list[Completions]) -> list[list[Completion]]:
    return [section.take() for section in sections]


class CompletionsMachine(RuleBasedStateMachine):
    """Compares with what is known of every job: ``ended[tag][rank]`` has its codes, seconds and local result."""

    @initialize(size=st.integers(1, 4))
    def start(self, size: int) -> None:
        self.limits = patch.multiple(completions, WINDOW=WINDOW, DETAIL_PAGES=DETAIL_PAGES)
        self.limits.start()
        self.sections = [Completions() for _ in range(size)]
        self.pages: list[int] = []
        self.urgency: list[int] = []
        self.ended: list[dict[int, tuple[Any, tuple[float, float], object]]] = []
        self.over: list[int] = []

    @rule(pages=st.integers(1, 5), urgency=st.integers(0, 2))
    def begin(self, pages: int, urgency: int) -> None:
        for section in self.sections:
            section.begin(len(self.pages), pages, urgency)
        self.pages.append(pages)
        self.urgency.append(urgency)
        self.ended.append({})

    @precondition(lambda self: self.running)
    @rule(data=st.data(), micros=st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)))
    def end(self, data: st.DataObject, micros: tuple[int, int]) -> None:
        rank, tag = data.draw(st.sampled_from(self.running))
        well = data.draw(st.booleans())
        fates = [OK] * self.pages[tag] if well else [data.draw(FATES) for _ in range(self.pages[tag])]
        seconds = micros[0] / 1e6, micros[1] / 1e6
        self.ended[tag][rank] = codes(*fates), seconds, object()
        self.sections[rank].end(tag, *self.ended[tag][rank])

    @property
    def running(self) -> list[tuple[int, int]]:
        """Ranks and the jobs that they have not ended."""
        return [(r, t) for t, ended in enumerate(self.ended) for r in range(len(self.sections)) if r not in ended]

    @rule()
    def reduce(self) -> None:
        exchange(self.sections)

    @rule()
    def take(self) -> None:
        self.check(taken(self.sections))

    def check(self, found: list[list[Completion]]) -> None:
        assert len({tuple(each.tag for each in mine) for mine in found}) == 1
        for same in zip(*found, strict=True):
            tag, ends = same[0].tag, self.ended[same[0].tag]
            assert tag not in self.over and len(ends) == len(self.sections)
            self.over.append(tag)
            worst = np.minimum.reduce([fates for fates, _, _ in ends.values()])
            longest = tuple(max(seconds[i] for _, seconds, _ in ends.values()) for i in range(2))
            for rank, each in enumerate(same):
                assert each.codes.tolist() == worst.tolist()
                assert each.seconds == pytest.approx(longest, abs=2e-6)
                assert each.local is ends[rank][2]

    @rule()
    def settle(self) -> None:
        """What has ended everywhere is over in as many reductions as it takes to tell of all."""
        done = [tag for tag, ended in enumerate(self.ended) if len(ended) == len(self.sections)]
        told = sum(tag not in self.over for tag in done)
        stuck = [tag for tag in range(len(self.pages)) if tag not in done]
        if len(stuck) >= WINDOW:
            return  # these may be all that the reductions have
        for _ in range(2 * told + 1):
            exchange(self.sections)
        self.check(taken(self.sections))
        assert sorted(self.over) == done

    @invariant()
    def none_is_forgotten(self) -> None:
        if hasattr(self, "pages"):
            assert {len(section) for section in self.sections} == {len(self.pages) - len(self.over)}

    def teardown(self) -> None:
        """The ranks part company: each takes what is over on it, and the rest once that is."""
        if not hasattr(self, "pages"):
            return
        self.limits.stop()
        for rank, section in enumerate(self.sections):
            first = section.take_local()
            for other, tag in self.running:
                if other == rank:
                    section.end(tag, codes(*[OK] * self.pages[tag]), (0.0, 0.0), None)
            rest = section.take_local()
            for found in (first, rest):
                assert [each.tag for each in found] == sorted(each.tag for each in found)
            tags = sorted(each.tag for each in [*first, *rest])
            assert tags == [tag for tag in range(len(self.pages)) if tag not in self.over]
            assert not len(section)


TestCompletions = CompletionsMachine.TestCase
TestCompletions.settings = settings(max_examples=60 * SCALE, stateful_step_count=40)


def begun(sections: list[Completions], n: int, pages: int = 1, urgency: int = 0) -> None:
    """Begin so many jobs more."""
    first = len(sections[0])
    for tag in range(first, first + n):
        for section in sections:
            section.begin(tag, pages, urgency)


def ended(section: Completions, tags: range, *fates: int) -> None:
    for tag in tags:
        section.end(tag, codes(*fates), (0.0, 0.0), None)


def test_nothing_is_said_where_nothing_is_open() -> None:
    assert not len(exchange([Completions(), Completions()]))


def test_a_reduction_tells_of_a_window_of_jobs_the_most_urgent_and_then_the_oldest() -> None:
    sections = [Completions(), Completions()]
    begun(sections, completions.WINDOW, urgency=2)
    begun(sections, 2, urgency=1)
    for section in sections:
        ended(section, range(completions.WINDOW + 2), OK)
    assert len(exchange(sections)) == 3 * completions.WINDOW
    urgent = [completions.WINDOW, completions.WINDOW + 1]
    assert [each.tag for each in sections[0].take()] == [*range(completions.WINDOW - 2), *urgent]
    exchange(sections)
    assert [each.tag for each in sections[0].take()] == [completions.WINDOW - 2, completions.WINDOW - 1]


def test_details_come_one_reduction_later_and_over_several_where_they_are_many() -> None:
    sections = [Completions(), Completions()]
    pages = completions.DETAIL_PAGES // 2 - 1
    begun(sections, 3, pages)
    for section in sections:
        ended(section, range(3), FAILED, *[OK] * (pages - 1))
    lengths, tags = [], []
    for _ in range(4):
        lengths.append(len(exchange(sections)))
        tags.append([each.tag for each in sections[1].take()])
    assert lengths == [9, 2 * pages, pages, 0]
    assert tags == [[], [0, 1], [2], []]


def test_a_job_with_more_pages_than_a_reduction_is_told_of_whole() -> None:
    sections = [Completions(), Completions()]
    pages = 2 * completions.DETAIL_PAGES
    begun(sections, 1, pages)
    ended(sections[0], range(1), *[OK] * pages)
    ended(sections[1], range(1), *[OK] * (pages - 1), CORRUPT)
    exchange(sections)
    exchange(sections)
    [[one], [other]] = taken(sections)
    assert one.codes.tolist() == other.codes.tolist() == [OK] * (pages - 1) + [CORRUPT]


@pytest.mark.parametrize(("one", "other", "both"), [
    (OK, OK, OK), (OK, CANCELLED, CANCELLED), (CANCELLED, FAILED, FAILED), (FAILED, CORRUPT, CORRUPT),
    (CORRUPT, OK, CORRUPT),
])  # fmt: skip
def test_a_page_did_as_badly_as_where_it_did_worst(one: int, other: int, both: int) -> None:
    sections = [Completions(), Completions()]
    begun(sections, 1, pages=2)
    ended(sections[0], range(1), one, OK)
    ended(sections[1], range(1), other, OK)
    exchange(sections)
    exchange(sections)
    assert [each.codes.tolist() for mine in taken(sections) for each in mine] == [[both, OK]] * 2
