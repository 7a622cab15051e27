"""The mover under any order of events: accounts exact after every step, bytes right, and always a way forward."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mover_fakes import SCALE
from mover_play import Play, Seeded

from radixtier.mover import Trigger

T = TypeVar("T")

MOVES = {
    "insert": 8, "backup": 3, "finish_backup": 4, "refill": 4, "evict": 3, "demote": 4,
    "promote": 8, "drop": 5, "load": 3, "finish_load": 4, "rank": 3, "request": 4, "keep": 1, "ahead": 5,
    "cold_requests": 6,
    "came_to_hbm": 3, "left_hbm": 3, "sink": 1, "pin": 2, "expect": 2,
    "restore": 2, "switch": 2,
    "finish_job": 12, "finish_all": 4, "start_job": 3, "tick": 12, "pass_time": 4,
}  # fmt: skip
"""How often a seeded play makes which move; flushes and lone requests come on top."""


class Drawn:
    """Choices that Hypothesis makes."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def one(self, of: Sequence[T]) -> T:
        choice: T = self._data.draw(st.sampled_from(of))
        return choice

    def number(self, low: int, high: int) -> int:
        return int(self._data.draw(st.integers(low, high)))


class MoverMachine(RuleBasedStateMachine):
    """Starts with some pages on the drive, so that a few steps lead far."""

    play: Play

    @initialize(data=st.data(), inserts=st.integers(0, 5))
    def start(self, data: Any, inserts: int) -> None:
        self.play = Play(Drawn(data))
        for _ in range(inserts):
            self.play.insert()
            self.play.world.settle(3)

    @rule(data=st.data(), name=st.sampled_from(sorted(MOVES)))
    def move(self, data: Any, name: str) -> None:
        self.play.choose = Drawn(data)
        getattr(self.play, name)()

    @rule(data=st.data())
    def cold_request(self, data: Any) -> None:
        self.play.choose = Drawn(data)
        self.play.demote()
        self.play.promote()

    @rule(data=st.data())
    def lone_request(self, data: Any) -> None:
        self.play.choose = Drawn(data)
        self.play.lone_request()

    @rule(data=st.data())
    def waiting_line(self, data: Any) -> None:
        self.play.choose = Drawn(data)
        self.play.waiting_line()

    @rule()
    def clear(self) -> None:
        self.play.clear()

    @invariant()
    def accounts_are_exact(self) -> None:
        if hasattr(self, "play"):
            self.play.check()

    def teardown(self) -> None:
        if hasattr(self, "play"):
            self.play.end()


TestMoverMachine = MoverMachine.TestCase
TestMoverMachine.settings = settings(
    max_examples=40 * SCALE,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("seed", range(12 * SCALE))
def test_a_long_play(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    choose = Seeded(seed)
    play = Play(choose)
    names = [name for name, weight in MOVES.items() for _ in range(weight)]
    for step in range(400):
        getattr(play, choose.one(names))()
        play.check()
        if step % 100 == 60:
            play.lone_request()
        if step % 100 == 90:
            play.waiting_line()
        if step % 150 == 149:
            play.clear()
            play.check()
    play.end()


def test_long_plays_go_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """Else the tests above would prove little."""
    caplog.set_level(logging.CRITICAL, "radixtier")
    seen: Counter[str] = Counter()
    for seed in range(100, 140):
        choose = Seeded(seed)
        play = Play(choose)
        names = [name for name, weight in MOVES.items() for _ in range(weight)]
        for _ in range(400):
            getattr(play, choose.one(names))()
        for name, value in vars(play.world.mover.stats).items():
            if name in ("in_time", "late"):  # the waiting room's, which a play has not
                continue
            seen[name] += (value.total() if isinstance(value, Counter) else value) > 0
        seen.update({f"for {trigger.value}": play.world.mover.stats.promoted_by[trigger.value] for trigger in Trigger})
    assert min(seen.values()) > 0, seen
