"""The scheduler serves the desk in its steps: as long as it may, also where the next step is a second away."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from control_rig import PATIENCE_S, Script
from test_desk import later, until

from radixtier.control import Clerk, Desk, ListNodes, Pace, ReadState
from radixtier.control import clerk as clerk_module
from radixtier.control.commands import Command, ReadRows
from radixtier.control.pace import IDLE_S, LEAST_S, SHARE
from radixtier.control.rows import NONE, Rows
from radixtier.control.sources import READ_S, Pictures

PAGE_S = 0.002
"""What a page of rows costs the scheduler thread here; it is about half of that."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Nodes:
    """Lists ``n`` nodes, and takes its time."""

    def __init__(self, n: int, clock: Clock) -> None:
        self._n = n
        self._clock = clock
        self.pages = 0

    def __call__(self, after: int, limit: int) -> Mapping[str, Any]:
        self._clock.now += PAGE_S
        self.pages += 1
        first, end = after + 1, min(after + 1 + limit, self._n)
        node = np.arange(first, end)
        zeros, never = np.zeros(end - first, np.int64), np.full(end - first, np.nan)
        rows = Rows(
            node, np.full(end - first, NONE), zeros, zeros + 16, zeros, zeros, zeros + 16, zeros, never, zeros, never
        )
        return {"rows": rows, "next": None if end == self._n else end - 1, "total": self._n}


def draw(nodes: int, step_s: float, idle: bool) -> tuple[float, list[float]]:
    """Have a picture taken by a scheduler with steps of so long; return when it was there and how long each one served.

    A step begins when a question waits: its asker takes no time here.
    """
    clock, desk = Clock(), Desk()
    listing, pace = Nodes(nodes, clock), Pace(clock)
    clerk = Clerk(desk, listing, Script(), clock)
    pictures = Pictures(lambda command: desk.ask(command, PATIENCE_S), clock)
    served: list[float] = []
    with ThreadPoolExecutor() as pool:
        picture = pool.submit(pictures.latest)
        while True:
            until(lambda: desk.pending or picture.done())
            if picture.done():
                break
            clock.now += step_s
            began = clock.now
            clerk.step(pace.step(idle), idle)
            served.append(clock.now - began)
        assert len(picture.result().rows) == nodes
    return clock.now, served


@pytest.mark.parametrize(
    ("step_s", "idle"),
    [(1.0, True), (1.0, False), (0.25, False), (0.02, False), (3.0, False)],
    ids=["asleep", "a second", "a large batch", "decoding", "a slow machine"],
)
def test_a_hundred_thousand_nodes_are_drawn_in_time_whatever_the_steps(step_s: float, idle: bool) -> None:
    over, served = draw(100_000, step_s, idle)
    assert over < READ_S
    assert max(served) <= max(SHARE * step_s, LEAST_S, IDLE_S if idle else 0.0) + PAGE_S + 1e-9
    assert max(served) <= IDLE_S + PAGE_S + 1e-9


@pytest.mark.parametrize(
    ("since", "idle", "seconds"),
    [(0.0, False, LEAST_S), (1.0, False, SHARE), (100.0, False, IDLE_S), (0.0, True, IDLE_S), (100.0, True, IDLE_S)],
)
def test_what_can_wait_gets_a_share_of_the_time(since: float, idle: bool, seconds: float) -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now += since
    assert pace.step(idle) == seconds


def test_an_idle_scheduler_stays_for_who_asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clerk_module, "GAP_S", PATIENCE_S)
    clock, desk, script = Clock(), Desk(), Script()
    clerk = Clerk(desk, Nodes(10, clock), script, clock)

    def handle(command: Command) -> Mapping[str, Any]:
        if len(script.seen) == 6:
            clock.now += 1.0  # the time of this step is over
        return script(command)

    clerk._handle = handle

    def many() -> None:
        for _ in range(7):
            desk.ask(ReadState(), PATIENCE_S)

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(many)
        until(lambda: desk.pending)
        clerk.step(IDLE_S, idle=True)
        asked.result(PATIENCE_S)
    assert len(script.seen) == 7
    clerk.step(IDLE_S, idle=True)
    assert len(script.seen) == 7, "a step in which nobody asks waits for nobody"


def test_a_busy_scheduler_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, desk, script = Clock(), Desk(), Script()
    clerk = Clerk(desk, Nodes(10, clock), script, clock)
    monkeypatch.setattr(desk, "wait", lambda seconds: pytest.fail("it waited"))
    with ThreadPoolExecutor() as pool:
        asked = later(pool, desk, ReadState())
        clerk.step(LEAST_S, idle=False)
        assert asked.result(PATIENCE_S) == {"asked": "ReadState"}


def test_rows_are_read_a_page_at_least_and_other_lists_are_not_the_clerks() -> None:
    clock, desk, script = Clock(), Desk(), Script()
    nodes = Nodes(2500, clock)
    clerk = Clerk(desk, nodes, script, clock)
    with ThreadPoolExecutor() as pool:
        for after, parts, end in ((-1, 1, 999), (999, 1, 1999), (1999, 1, None)):
            asked = later(pool, desk, ReadRows(after))
            clerk.step(0.0, idle=False)
            answer = asked.result(PATIENCE_S)
            assert (len(answer["parts"]), answer["next"], answer["total"]) == (parts, end, 2500)
        asked = later(pool, desk, ReadRows(-1))
        clerk.step(1.0, idle=False)
        assert len(asked.result(PATIENCE_S)["parts"]) == 3
        asked = later(pool, desk, ListNodes(5, 10))
        clerk.step(1.0, idle=False)
        assert asked.result(PATIENCE_S) == {"asked": "ListNodes"} and script.seen == [ListNodes(5, 10)]


def test_waiting_at_the_desk_ends_with_a_command() -> None:
    desk = Desk()
    assert not desk.wait(0.0)
    arrived = threading.Event()

    def wait() -> None:
        if desk.wait(PATIENCE_S):
            arrived.set()

    with ThreadPoolExecutor() as pool:
        pool.submit(wait)
        asked = later(pool, desk, ReadState())
        assert arrived.wait(PATIENCE_S)
        assert desk.serve(Script()) == 1 and asked.result(PATIENCE_S)
        assert not desk.wait(0.0)
    desk.close()
    assert not desk.wait(0.0)
