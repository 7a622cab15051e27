"""Movers of several ranks whose drives do as they like: every table stays the same on all, and exact on each."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mover_fakes import SCALE
from mover_play import Seeded
from ranks_play import RanksPlay
from ranks_rig import Ranks
from test_mover_machine import MOVES, Drawn

from radixtier.ranks.agreed_store import NOWHERE
from radixtier.tree.residency import State

OF_STORES = ("finish_job", "finish_all", "start_job", "switch", "restore", "tick", "pass_time")
MORE = {"insert": 14, "finish_backup": 12, "drop": 10, "finish_load": 8, "demote": 8, "cold_requests": 20}
"""What keeps things moving."""

TOGETHER = {name: weight for name, weight in (MOVES | MORE).items() if name not in OF_STORES}
APART = {"finish_some": 40, "start_some": 3, "switch": 2, "drift": 3, "restore": 2, "step": 50}


def move(play: RanksPlay, name: str) -> None:
    if name in APART:
        getattr(play, name)()
    else:
        play.together(name)


class RanksMachine(RuleBasedStateMachine):
    @initialize(data=st.data(), size=st.integers(2, 3), inserts=st.integers(0, 5))
    def start(self, data: Any, size: int, inserts: int) -> None:
        self.ranks = Ranks(size)
        self.play = RanksPlay(Drawn(data), self.ranks)
        for _ in range(inserts):
            self.play.together("insert")
            self.play.settle(3)

    @rule(data=st.data(), name=st.sampled_from(sorted([*TOGETHER, *APART])))
    def move(self, data: Any, name: str) -> None:
        self.play.tape.choose = Drawn(data)
        move(self.play, name)

    @rule(data=st.data())
    def cold_request(self, data: Any) -> None:
        self.play.tape.choose = Drawn(data)
        self.play.together("demote")
        self.play.together("promote")

    @rule(data=st.data())
    def lone_request(self, data: Any) -> None:
        self.play.tape.choose = Drawn(data)
        self.play.lone_request()

    @rule()
    def clear(self) -> None:
        self.play.together("clear")

    @invariant()
    def all_are_alike(self) -> None:
        if hasattr(self, "play"):
            self.play.check()

    def teardown(self) -> None:
        if hasattr(self, "play"):
            self.play.end()
            self.ranks.close()


TestRanksMachine = RanksMachine.TestCase
TestRanksMachine.settings = settings(
    max_examples=20 * SCALE,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def long_play(ranks: Ranks, seed: int, steps: int) -> RanksPlay:
    choose = Seeded(seed)
    play = RanksPlay(choose, ranks)
    names = [name for name, weight in (TOGETHER | APART).items() for _ in range(weight)]
    for step in range(1, steps + 1):
        move(play, choose.one(names))
        play.check()
        if step % 30 == 0:
            play.settle(5)
        if step % 120 == 100:
            play.lone_request()
        if step % 200 == 0:
            play.together("clear")
    return play


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(4 * SCALE))
def test_a_long_play_of_ranks(make_ranks: Any, size: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    long_play(make_ranks(size), seed, 300).end()


@pytest.mark.parametrize("seed", range(4 * SCALE))
def test_ranks_part_with_all_that_is_on_its_way(make_ranks: Any, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    long_play(make_ranks(2), 50 + seed, 150).part()


def test_long_plays_of_ranks_go_to_many_places(make_ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Else the tests above would prove little; the plays of one mover go everywhere."""
    caplog.set_level(logging.CRITICAL, "radixtier")
    seen: Counter[str] = Counter()
    for seed in range(100, 112):
        play = long_play(make_ranks(2), seed, 240)
        for name, value in vars(play.plays[0].world.mover.stats).items():
            seen[name] += value.total() if isinstance(value, Counter) else value
        play.end()
    assert min(seen[name] for name in MUST) > 0, seen


MUST = (
    "demoted", "lost", "promoted", "landed", "landing_failed", "written", "write_failures", "writes_rejected",
    "writes_throttled", "read_failures", "corrupt", "scrubbed", "scrubbed_bad", "restored", "refilled",
)  # fmt: skip


def test_a_write_that_one_rank_has_no_place_for_leaves_the_pages_in_dram_on_all(make_ranks: Any) -> None:
    play = RanksPlay(Seeded(7), make_ranks(2))
    frames = play.plays[0].world.table.n_frames
    play.ranks.ride()
    pages, _ = (each.world.add(min(2, frames)) for each in play.plays)
    play.plays[1].world.store.writable = False
    play.together("tick")
    one, other = (each.world.table for each in play.plays)
    assert (one.slot[pages] >= 0).all() and (other.slot[pages] == NOWHERE).all()
    play.check()
    for clock in play.ranks.clocks:
        clock.now += 70.0  # the store is told what was used
    play.ranks.ride()
    play.together("tick")
    play.check()
    play.plays[0].world.store.finish_all()
    for _ in range(2):
        play.ranks.ride()
        play.together("tick")
        play.check()
    for each in play.plays:
        assert each.world.states(pages) == [State.DIRTY] * len(pages)
        assert each.world.mover.stats.write_failures == len(pages)
        assert each.world.store.used_slots == 0
    play.settle(10)
    assert all(each.world.states(pages) == [State.CLEAN] * len(pages) for each in play.plays)
    play.end()
