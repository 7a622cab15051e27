"""Who is served first: reads in the order of ranks, within a budget, and speculation behind everybody."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from fake_store import ERROR, OK, PAGE_BYTES
from mover_fakes import Answers, World, fake_world, on_nvme
from mover_play import Play, Seeded

from radixtier.mover import Trigger
from radixtier.mover.promotions import AHEAD_PROMOTIONS
from radixtier.store.jobs import Priority
from radixtier.tree.residency import Pages, State

CLEAN, COLD, DIRTY = State.CLEAN, State.COLD, State.DIRTY


def budgeted(*lengths: int, budget: int = 2, frames: int = 24) -> tuple[World, list[Pages]]:
    """Runs on the drive only, read a page per job, and no more than so many pages on their way."""
    world = fake_world(80, frames, 80)
    runs = on_nvme(world, *lengths)
    world.mover.promotions.job_pages = 1
    world.mover.promotions._allowed_bytes = lambda: budget * PAGE_BYTES  # type: ignore[method-assign]
    return world, runs


def reads_of(world: World, runs: list[Pages]) -> list[int]:
    """For each read so far, which run it was of."""
    run_of = {int(slot): i for i, run in enumerate(runs) for slot in world.table.slot[run]}
    return [run_of[slot] for slots in world.store.reads for slot in slots]


def step(world: World) -> None:
    """The oldest job ends."""
    world.store.finish(next(iter(world.store.jobs)))
    world.mover.tick()
    world.check()


# ---- the order of reads ---------------------------------------------------------------------------------


def test_what_is_needed_first_is_read_first_whoever_came_first() -> None:
    world, runs = budgeted(4, 4, 4)
    promotions = [world.promote(run, rank) for run, rank in zip(runs, (3.0, 2.0, 1.0), strict=True)]
    assert reads_of(world, runs) == [0, 0], "nobody else was there yet"
    while world.store.jobs:
        step(world)
    assert reads_of(world, runs) == [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0]
    assert all(p.ready(world.table) for p in promotions)


def test_a_request_that_moves_to_the_front_waits_for_one_budget_and_no_more() -> None:
    world, runs = budgeted(6, 6)
    promotions = [world.promote(run, rank) for run, rank in zip(runs, (1.0, 2.0), strict=True)]
    step(world)
    assert reads_of(world, runs) == [0, 0, 0]
    promotions[1].rank = 0.5
    step(world)
    promotions[1].rank, promotions[0].rank = 9.0, 1.0
    step(world)
    assert reads_of(world, runs) == [0, 0, 0, 1, 0]
    while world.store.jobs:
        step(world)
    assert reads_of(world, runs) == [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]


def test_pages_of_a_request_come_root_first() -> None:
    world, (run,) = budgeted(5, budget=1)
    world.promote(run)
    while world.store.jobs:
        step(world)
    assert [slots[0] for slots in world.store.reads] == world.table.slot[run].tolist()


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_no_more_is_on_its_way_than_the_budget_and_a_job(budget: int) -> None:
    world, runs = budgeted(7, 7, budget=budget)
    world.mover.promotions.job_pages = 2
    for run in runs:
        world.promote(run)
    most = 0
    while world.store.jobs:
        most = max(most, sum(len(job.slots) for job in world.store.jobs.values()))
        step(world)
    assert budget <= most < budget + 2
    assert int(world.table.count[CLEAN]) == 14


def test_the_budget_is_what_the_drive_moves_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.mover.promotions.READ_JOB_BYTES", PAGE_BYTES)
    world = fake_world(80, 24, 80)
    promotions = world.mover.promotions
    for _ in range(200):
        world.mover.rate.observe(1000, 0.0, 1.0)
    for _ in range(100):
        world.clock.now += 0.5
        world.mover.tick()
    often = promotions._allowed_bytes()
    world.clock.now += 5.0
    world.mover.tick()
    assert often == pytest.approx(world.mover.rate.rate, rel=0.2), "twice half a second"
    assert promotions._allowed_bytes() == pytest.approx(10 * often, rel=0.1), "one long pass counts at once"


# ---- completion does not depend on the place in line ----------------------------------------------------


def test_a_request_whose_pages_are_up_is_ready_whatever_is_read_before_it() -> None:
    world, (a, b) = budgeted(8, 2)
    first = world.promote(b)
    while world.store.jobs:
        step(world)
    world.promote(a, rank=1.0)
    last = world.promote(b, rank=99.0)
    assert last.ready(world.table) and len(world.store.jobs) == 2
    world.drop(first)
    world.demote(4)
    assert world.states(b) == [CLEAN] * 2, "what it is ready with is held"


def test_pages_that_come_up_for_another_request_make_this_one_ready() -> None:
    world, (a,) = budgeted(8)
    front = world.promote(a, rank=1.0)
    behind = world.promote(a[:2], rank=50.0)
    step(world)
    step(world)
    assert behind.ready(world.table) and not front.ready(world.table)


def test_one_that_finds_no_room_does_not_stop_those_that_are_held() -> None:
    """Else two would wait for each other: it for their frames, they for its turn."""
    world, (a, b) = budgeted(8, 6, budget=1, frames=12)
    held = world.promote(a, rank=5.0)
    front = world.promote(b, rank=1.0)
    assert held.held and not front.held
    for _ in range(8):
        step(world)
    assert held.ready(world.table) and not front.held and not world.store.jobs
    world.drop(held)
    world.settle()
    assert front.ready(world.table)
    world.check()


def test_one_that_finds_no_room_lets_nobody_behind_it_take_what_gets_free() -> None:
    world, (a, b, c) = budgeted(8, 6, 2, budget=9, frames=12)
    first, second, third = world.promote(a, 1.0), world.promote(b, 2.0), world.promote(c, 3.0)
    world.settle(3)
    assert first.ready(world.table) and not second.held and not third.held
    world.drop(first)
    world.settle()
    assert second.ready(world.table) and third.ready(world.table)


# ---- cancelled with the request -------------------------------------------------------------------------


def test_what_has_not_started_is_cancelled_with_its_request() -> None:
    world, (a, b) = budgeted(6, 2, budget=4)
    promotion = world.promote(a, 1.0)
    other = world.promote(b, 2.0)
    tags = list(world.store.jobs)
    world.store.start(tags[0], 1)
    world.drop(promotion)
    assert list(world.store.jobs) == tags[:1]
    world.mover.tick()
    assert reads_of(world, [a, b]) == [0] * 4 + [1] * 2, "its budget goes to the next"
    world.settle()
    assert world.states(a) == [CLEAN] + [COLD] * 5 and other.ready(world.table)
    world.check()


def test_a_request_that_was_dropped_is_not_read_for_again() -> None:
    world, (a,) = budgeted(6)
    world.drop(world.promote(a))
    world.settle()
    assert len(world.store.reads) == 2 and world.states(a) == [COLD] * 6
    assert not world.mover.promotions and world.mover.promotions.demanded_bytes == 0


def test_ten_thousand_aborts_at_random_points_leave_every_account_where_it_was() -> None:
    world = fake_world(120, 24, 120, admission=Answers())
    a = world.add(6)
    runs = [a, *(world.add(5, int(a[-1])) for _ in range(3))]
    for i, run in enumerate(runs):
        assert i < 9 and len(run)
        world.settle(2)
    promotions, rng = world.mover.promotions, random.Random(11)
    ends = [int(run[-1]) for run in runs]
    budget = 4 * PAGE_BYTES
    promotions.job_pages, promotions._allowed_bytes = 2, lambda: budget  # type: ignore[method-assign]

    def accounts() -> tuple[object, ...]:
        table = world.table
        users = tuple(int(each.sum()) for each in (table.lease, table.hold, table.flight, table.mark))
        admission = world.mover.parking.admission
        assert isinstance(admission, Answers)
        return (
            users, table.held, promotions.demanded_bytes, len(promotions._reading), promotions._reading_ahead,
            len(promotions._demanded), len(promotions._ahead), len(world.mover.parking), world.store.used_slots,
            len(world.mover._jobs), admission.granted,
        )  # fmt: skip

    before = accounts()
    aborted = 0
    while aborted < 10_000:
        what = rng.random()
        if what < 0.4 and len(world.promotions) < 6:
            path = world.path(rng.choice(ends))
            world.promote(path[: rng.randint(1, len(path))], float(rng.randint(0, 5)))
        elif what < 0.75 and world.promotions:
            world.drop(rng.choice(world.promotions))
            aborted += 1
        elif what < 0.8:
            world.ahead(world.path(rng.choice(ends)), rng.choice([Trigger.RETURN, Trigger.HINT, Trigger.IDLE]))
        elif what < 0.85:
            world.mover.give_up_frames(world.mover.tree.victims(rng.randint(1, 8)))
        elif what < 0.9 and world.store.jobs:
            world.store.start(rng.choice(list(world.store.jobs)), rng.randint(1, 2))
        elif what < 0.97 and world.store.jobs:
            world.store.finish(rng.choice(list(world.store.jobs)))
        else:
            world.mover.tick()
    while world.promotions:
        world.drop(world.promotions[0])
    world.settle()
    world.check()
    assert accounts() == before
    assert world.mover.stats.promoted > 1000, "else this proves little"


# ---- ahead of requests ----------------------------------------------------------------------------------


def speculative(world: World) -> list[int]:
    return [n for priority, n in world.store.unreported_reads.values() if priority is Priority.SPECULATIVE]


def test_nothing_is_brought_up_ahead_before_every_request_has_what_it_waits_for() -> None:
    world, (a, b) = budgeted(3, 3)
    assert world.ahead(b) == 3
    world.promote(a)
    while world.store.jobs:
        assert not speculative(world)
        step(world)
        if world.states(a) == [CLEAN] * 3:
            break
    world.settle()
    assert world.states(b) == [CLEAN] * 3
    assert world.mover.stats.promoted_by == {"arrival": 3, "return": 3}


def test_a_request_does_not_wait_for_speculation_that_has_not_begun() -> None:
    world, (a, b) = budgeted(3, 6, budget=1)
    world.ahead(b)
    world.mover.tick()
    assert speculative(world) == [1]
    world.promote(a)
    assert len(world.store.jobs) == 2 and reads_of(world, [a, b]) == [1, 0]
    step(world)
    assert reads_of(world, [a, b]) == [1, 0]
    while world.states(a) != [CLEAN] * 3:
        step(world)
    assert reads_of(world, [a, b])[:4] == [1, 0, 0, 0]


def test_a_request_takes_over_what_is_on_its_way_for_it_already() -> None:
    world, (a,) = budgeted(3, budget=1)
    world.ahead(a)
    world.mover.tick()
    assert speculative(world) == [1]
    promotion = world.promote(a)
    world.settle()
    assert promotion.ready(world.table) and len(world.store.reads) == 3


@pytest.mark.parametrize("trigger", [Trigger.RETURN, Trigger.HINT])
def test_speculation_takes_the_frames_of_what_is_less_warm_and_of_nothing_else(trigger: Trigger) -> None:
    world, (a, b) = budgeted(4, 4, budget=99, frames=8)
    world.mover.promotions.job_pages = 9
    tree = world.mover.tree
    c, d = world.add(4), world.add(4)
    world.settle()
    world.clock.now += 1000.0
    tree.expect(int(world.table.run[d[0]]), world.clock.now + 1.0)
    tree.expect(int(world.table.run[a[0]]), world.clock.now + 2.0)
    assert world.ahead(a, trigger) == 4
    for _ in range(9):
        world.mover.tick()
        world.store.finish_all()
    assert world.states(d) == [CLEAN] * 4 and world.states(c) == [COLD] * 4, "d is wanted before a"
    assert world.states(a) == [CLEAN] * 4
    world.ahead(b, trigger)
    for _ in range(9):
        world.mover.tick()
        world.store.finish_all()
    assert world.states(b) == [COLD] * 4, "nobody expects b, and it was used least recently"
    world.check()


def test_idle_speculation_takes_free_frames_only() -> None:
    world, (a,) = budgeted(6, frames=8)
    world.add(5)
    world.settle()
    world.ahead(a, Trigger.IDLE)
    world.settle()
    assert world.states(a) == [CLEAN] * 3 + [COLD] * 3 and world.mover.stats.demoted == 6


def test_speculation_leaves_a_share_of_the_frames_to_backups() -> None:
    world = fake_world(100, 32, 100)
    (a,) = on_nvme(world, 32)
    world.ahead(a, Trigger.IDLE)
    world.settle()
    assert world.table.free_frames == 2 and world.states(a).count(CLEAN) == 30


def test_a_path_longer_than_dram_is_read_once_and_not_round_and_round() -> None:
    world = fake_world(100, 8, 100)
    a = world.restore(20)
    assert a is not None
    world.mover.promotions.job_pages = 3
    world.mover.tree.expect(int(world.table.run[a[0]]), world.clock.now + 1e6)
    world.ahead(a)
    world.settle(60)
    assert sum(map(len, world.store.reads)) <= 20
    assert not world.mover.promotions and len(world.awaited) == 1
    assert world.states(a)[:3] == [CLEAN] * 3, "the front of a path is worth more than its end"
    world.check()


def test_what_hbm_has_is_not_read_ahead() -> None:
    world, (a,) = budgeted(6)
    world.came_to_hbm(a[:4])
    assert world.ahead(a) == 2
    world.settle()
    assert world.states(a) == [COLD] * 4 + [CLEAN] * 2
    world.left_hbm(a[:4])
    assert world.ahead(a) == 4
    world.settle()
    assert world.states(a) == [CLEAN] * 6


def test_paths_that_wait_to_come_up_are_bounded_and_the_oldest_give_way() -> None:
    world, (a, b) = budgeted(2, 2)
    blocker = world.promote(a)
    told: list[int] = []
    for i in range(AHEAD_PROMOTIONS + 3):
        world.mover.promotions.ahead(b, Trigger.RETURN, lambda seconds, i=i: told.append(i))
    assert told == [0, 1, 2]
    world.settle()
    world.drop(blocker)
    world.settle()
    assert sorted(told) == list(range(AHEAD_PROMOTIONS + 3)) and sum(map(len, world.store.reads)) == 4


@pytest.mark.parametrize("outcome", [OK, ERROR])
def test_whoever_asked_is_told_once_how_long_the_first_read_took(outcome: str) -> None:
    world, (a,) = budgeted(3)
    world.ahead(a)
    world.mover.tick()
    world.store.finish(next(iter(world.store.jobs)), [outcome])
    world.settle()
    assert world.awaited == [0.0 if outcome == OK else math.inf]
    assert world.ahead(world.add(1)) == 0 and world.awaited[1:] == [math.inf]


def test_what_was_brought_is_counted_as_used_or_wasted_once() -> None:
    world, (a, b) = budgeted(4, 4)
    for run in (a, b):
        world.ahead(run)
        world.settle()
    world.mover.used_by_request(int(a[-1]))
    world.mover.used_by_request(int(a[-1]))
    world.mover.give_up_frames(np.concatenate([a, b[2:]]))
    world.check()
    world.free(b)
    assert world.mover.stats.ahead_used == {"return": 4} and world.mover.stats.ahead_wasted == {"return": 4}
    world.check()


@pytest.mark.parametrize("seed", range(4))
def test_a_line_of_requests_is_served_whatever_its_order(seed: int) -> None:
    play = Play(Seeded(1000 + seed))
    for _ in range(30):
        for name in ("insert", "ahead", "insert", "demote", "came_to_hbm", "demote"):
            getattr(play, name)()
        play.waiting_line()
        play.check()
    play.end()
