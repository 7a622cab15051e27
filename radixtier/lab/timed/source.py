"""When requests arrive: as the trace says, or each when its session has thought.

Owns the requests that have not arrived. With the trace's times (an open loop) it reads ahead by one request. With
think times (a closed loop) a session's next request comes ``think_s`` after the end of its turn before, so that a
slow server is asked later; for that it takes the whole trace into memory. A request without a think time comes when
the trace says, but not before the turn in front of it has ended. One thread.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator

from radixtier.lab.timed.turn import Turn


class Source:
    """An open loop.

    Parameters
    ----------
    turns
        In the order of time.
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._turns = iter(turns)
        self._next = next(self._turns, None)

    @property
    def next_time(self) -> float:
        """When the next request arrives, infinity after the last and while it depends on one that runs."""
        return math.inf if self._next is None else self._next.arrived

    def arrived(self, now: float) -> Iterator[Turn]:
        """Take out those that have arrived."""
        while self._next is not None and self._next.arrived <= now:
            turn, self._next = self._next, next(self._turns, None)
            yield turn

    def ended(self, turn: Turn) -> None:
        """Hear of the end of a turn."""


class ClosedLoop(Source):
    """Sessions that think between their turns."""

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._later: dict[int, deque[Turn]] = {}
        self._due: list[tuple[float, int, Turn]] = []
        for turn in turns:
            if turn.session in self._later:
                self._later[turn.session].append(turn)
            else:
                self._later[turn.session] = deque()
                self._schedule(turn)

    def _schedule(self, turn: Turn) -> None:
        heapq.heappush(self._due, (turn.arrived, turn.number, turn))

    @property
    def next_time(self) -> float:
        """See :attr:`Source.next_time`."""
        return self._due[0][0] if self._due else math.inf

    def arrived(self, now: float) -> Iterator[Turn]:
        """See :meth:`Source.arrived`."""
        while self._due and self._due[0][0] <= now:
            yield heapq.heappop(self._due)[2]

    def ended(self, turn: Turn) -> None:
        """Let the session think, and ask again."""
        later = self._later[turn.session]
        if later:
            following = later.popleft()
            if following.think_s is None:
                following.arrived = max(following.arrived, turn.ended)
            else:
                following.arrived = turn.ended + following.think_s
            self._schedule(following)
