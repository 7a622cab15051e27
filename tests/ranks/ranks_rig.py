"""Ranks of one server in one process, in lockstep: each has a thread, and they meet where they reduce.

A rank's clock stands still until the test says otherwise. Every wait is bounded: a rank that waits alone is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from radixtier.ranks import Agreement
from radixtier.ranks.agreement import Longs, Section

T = TypeVar("T")

MEET_S = 20.0
"""Longest that a rank waits for the others."""


class Meeting:
    """Where the ranks reduce."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        """Reductions so far."""
        self.broken: Exception | None = None
        """What a reduction raises on every rank."""
        self._brought: list[Longs] = [np.empty(0, np.int64)] * size
        self._met = threading.Barrier(size, timeout=MEET_S)

    def minimum(self, rank: int, values: Longs) -> Longs:
        if self.broken is not None:
            raise self.broken
        self._brought[rank] = values
        if self._met.wait() == 0:
            self.count += 1
        least = least_of(self._brought)
        self._met.wait()
        return least


class Member:
    """One rank's end of a meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    def minimum(self, values: Longs) -> Longs:
        return self._meeting.minimum(self.rank, values)


class RankClock:
    """Seconds of one rank."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ranks:
    """Several ranks that agree; ``clocks`` start apart from each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.meeting = Meeting(size)
        self.clocks = [RankClock(100.0 + rank) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)
        self.agreements = self.all(lambda rank: Agreement(Member(self.meeting, rank), clock=self.clocks[rank]))

    def all(self, call: Callable[[int], T]) -> list[T]:
        """Let every rank do the same at once; returns what each returned."""
        return [each.result(MEET_S) for each in [self._threads.submit(call, rank) for rank in range(self.size)]]

    def join(self, sections: Sequence[Section]) -> None:
        """Give each agreement its section."""
        for agreement, section in zip(self.agreements, sections, strict=True):
            agreement.join(section)

    def ride(self) -> None:
        """One step of the scheduler: what the ranks have to say goes along with SGLang's reduction."""
        exchange(self.agreements)

    def close(self) -> None:
        self._threads.shutdown()


def least_of(offers: Sequence[Longs]) -> Longs:
    """The element-wise minimum; every rank has to offer as much as the others."""
    assert len({len(offer) for offer in offers}) == 1, "vectors of different lengths"
    assert all(offer.dtype == np.int64 for offer in offers)
    return np.minimum.reduce(list(offers))


def exchange(sections: Sequence[Section]) -> Longs:
    """Reduce what one section of every rank offers, without threads; returns what they learnt."""
    agreed = least_of([section.offer() for section in sections])
    for section in sections:
        section.learn(agreed.copy())
    return agreed
