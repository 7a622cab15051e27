"""Validation: what a server found, request by request, against what the lab finds at the same moments.

Owns nothing between two requests. The recording says when each request arrived, was admitted and ended; the cache of
the lab is asked at these moments, so that the queue and the speed of the machine play no part. Between them the
scheduler looks at the tiers, :data:`BRISK` times in quick succession and then every :data:`SLOW_S`. One thread.

Where they may differ, and rightly so: what the server held before the recording began, or lost by a flush; when a
read or a write ended within milliseconds of a decision; requests in flight together, whose prefills ended in an order
that the recording does not tell; pages on NVMe that the server computed again since its drive was slower than that
(the cache of the lab is to be made with the law :data:`LAW`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from radixtier.lab.timed.cache import TimedCache
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.turn import Turn
from radixtier.lab.traces.trace import Nodes, Request, Served
from radixtier.mover.waiting_room import ALWAYS

LAW = ALWAYS

BRISK, BRISK_S = 40, 0.03
SLOW_S = 1.0

LONGEST_S = 1.0
"""That the imagined drive may be behind the real one."""


class Found(NamedTuple):
    """Tokens found in each tier."""

    hbm: int
    dram: int
    nvme: int

    @property
    def total(self) -> int:
        """In any tier."""
        return self.hbm + self.dram + self.nvme


class Pair(NamedTuple):
    """One request, twice."""

    number: int
    """Place in the recording, from 0."""
    input_tokens: int
    server: Found
    lab: Found
    admitted: bool
    """Whether the lab had room for it in HBM."""


def retrace(requests: Iterable[Request], nodes: Nodes, cache: TimedCache, clock: Clock) -> Iterator[Pair]:
    """Ask the cache at the moments of a recording; yields a pair for each request, in the order of admission."""
    events: list[tuple[float, int, int, Turn, Served]] = []
    for number, request in enumerate(requests):
        if request.served is None:
            continue
        # Before the first, there is nothing to look at.
        clock.now = clock.now if number or events else max(clock.now, request.time)
        yield from _until(request.time, events, cache, clock)
        turn = Turn.of(number, request, nodes, cache.page_tokens)
        _look(cache, clock, request.time)
        cache.arrive(turn)
        heapq.heappush(events, (max(request.time, request.served.admitted), 0, number, turn, request.served))
    yield from _until(float("inf"), events, cache, clock)


def _until(
    time: float, events: list[tuple[float, int, int, Turn, Served]], cache: TimedCache, clock: Clock
) -> Iterator[Pair]:
    while events and events[0][0] <= time:
        when, kind, number, turn, served = heapq.heappop(events)
        _look(cache, clock, when)
        if kind == 0:
            _admit(turn, cache, clock)
            yield Pair(
                number, turn.input_tokens, Found(served.hbm, served.dram, served.nvme),
                Found(turn.hbm, turn.dram, turn.nvme), turn.locked is not None,
            )  # fmt: skip
            ended = when if served.ended is None else max(when, served.ended)
            heapq.heappush(events, (ended, 1, number, turn, served))
        elif turn.locked is not None:
            cache.extend(turn, turn.input_tokens + turn.output_tokens - 1)
            cache.insert(turn, turn.input_tokens + turn.output_tokens - 1, last=True)


def _admit(turn: Turn, cache: TimedCache, clock: Clock) -> None:
    """Admit a request now, as the server did, once what it waits for has been read."""
    end = clock.now + LONGEST_S
    while not (admitted := cache.admit(turn, 0)) and clock.now < end and cache.next_event < end:
        clock.now = max(clock.now, cache.next_event)
        cache.tick(False)
    if not admitted:
        cache.give_up_waiting(turn)
        cache.admit(turn, 0)
    if turn.locked is None:
        cache.leave(turn)
        return
    cache.extend(turn, turn.input_tokens)
    cache.loaded(turn)
    if turn.output_tokens > 1:
        cache.insert(turn, turn.input_tokens)


def _look(cache: TimedCache, clock: Clock, until: float) -> None:
    """Let the scheduler look at the tiers until a moment."""
    looks = 0
    while clock.now < until:
        looks += 1
        step = BRISK_S if looks < BRISK else SLOW_S
        clock.now = min(until, max(clock.now + 1e-6, min(clock.now + step, cache.next_event)))
        cache.tick(False)
    cache.tick(False)
