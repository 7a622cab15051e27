"""Frames under pressure, and whole-tier operations of the mover: nothing is taken in vain, nothing is left behind."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
from fake_store import CORRUPT, ERROR, OK
from mover_fakes import World, fake_world, growth, on_nvme

from radixtier.tree.residency import NONE, State

CLEAN, COLD = State.CLEAN, State.COLD


# ---- frames under pressure ------------------------------------------------------------------------------


def test_alloc_says_none_while_all_frames_are_in_use_and_goes_on_after() -> None:
    world = fake_world(40, 4, 40)
    a = world.add(4)
    world.settle()
    world.load(a)
    for _ in range(5):
        assert world.mover.alloc(1) is None
        world.mover.tick()
    assert world.mover.stats.backups_declined == 5
    world.finish_load()
    assert len(world.add(1)) == 1
    world.check()


def test_a_demand_that_cannot_be_met_takes_nothing_away() -> None:
    world = fake_world(60, 8, 60)
    a, b = world.add(4), world.add(4)
    world.settle()
    promotion = world.promote(a)
    epoch = world.table.epoch
    assert world.mover.alloc(6) is None and world.mover.alloc(9) is None and world.mover.alloc(53) is None
    assert world.states(b) == [CLEAN] * 4 and world.mover.stats.demoted == 0
    assert world.table.epoch == epoch
    world.drop(promotion)
    assert world.mover.alloc(6) is not None


def test_a_refill_that_cannot_be_met_takes_nothing_away() -> None:
    world = fake_world(60, 4, 60)
    (a,) = on_nvme(world, 3)
    promotion = world.promote(a)
    world.store.finish_all(ERROR, ERROR, ERROR)
    world.settle()
    world.drop(promotion)
    b, c = world.add(2), world.add(2)
    world.settle()
    world.load(b)
    assert world.refill(a) is None and world.mover.stats.refilled == 0
    assert world.states(c) == [CLEAN] * 2
    world.finish_load()
    backup = world.refill(a)
    assert backup is not None
    world.finish_backup(backup)
    world.check()


def test_no_handle_means_none_whatever_the_frames() -> None:
    world = fake_world(4, 4, 40)
    world.add(4)
    world.settle()
    assert world.mover.alloc(1) is None
    assert int(world.table.count[CLEAN]) == 4


def test_the_coldest_leave_first_and_what_arrived_last_stays() -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 4)
    b, c = world.add(2), world.add(2)
    world.settle()
    promotion = world.promote(a)
    world.settle()
    world.drop(promotion)
    world.demote(2)
    assert world.states(b) == [COLD] * 2 and world.states(c) == [CLEAN] * 2 and world.states(a) == [CLEAN] * 4
    world.demote(4)
    assert world.states(c) == [COLD] * 2 and world.states(a) == [CLEAN] * 4


def test_victims_of_a_promotion_are_never_its_own_pages() -> None:
    world = fake_world(60, 8, 60)
    a = world.add(4)
    world.settle()
    b = world.add(4, int(a[-1]))
    world.settle()
    world.mover.give_up_frames(b[1:])
    other = world.add(3)
    world.settle()
    path = world.path(int(b[-1]))[:7]
    world.promote(path)
    world.settle()
    assert world.states(path) == [CLEAN] * 7 and world.states(other).count(COLD) == 2
    world.check()


def test_dram_smaller_than_hbm_still_fills_the_drive_and_serves_from_it() -> None:
    world = fake_world(64, 4, 64)
    rng = random.Random(3)
    ends: list[int] = []
    for _ in range(200):
        parent = rng.choice(ends) if ends and rng.random() < 0.5 else None
        pages = world.add(2, parent)
        ends.append(int(pages[-1]))
        world.settle(2)
        while world.mover.slots_wanted or world.table.free_handles < 2:
            leaf = rng.choice(world.leaves())
            world.free(np.array([leaf]))
            world.mover.tick()
        ends = [page for page in ends if page in world.key]
        world.check()
    assert world.store.used_slots > 55 and world.mover.stats.written > 350
    for page in ends:
        path = world.path(page)
        for start in range(0, len(path), world.mover.promotions.hold_limit):
            promotion = world.promote(path[start : start + world.mover.promotions.hold_limit])
            world.settle(4)
            assert promotion.ready(world.table)
            world.load(promotion.pages)
            world.drop(promotion)
            world.finish_load()


# ---- all at once ----------------------------------------------------------------------------------------


def busy_world() -> tuple[World, list[str]]:
    """Everything that can be going on: writes, reads, one that waits, a queue."""
    world = fake_world(60, 16, 60)
    a, b, c = on_nvme(world, 5, 4, 6)
    _, _, waiting = (world.promote(pages) for pages in (a, b, c))
    assert not waiting.held
    world.store.start(next(iter(world.store.jobs)), 3)
    world.add(3)
    world.mover.tick()
    world.add(2)
    world.backup(1)
    assert sorted(job.kind for job in world.store.jobs.values()) == ["read", "read", "write"]
    world.check()
    return world, [job.kind for job in world.store.jobs.values()]


def test_clear_forgets_at_once_and_takes_back_what_is_in_flight_when_it_lands() -> None:
    world, _ = busy_world()
    world.clear()
    world.check()
    assert world.table.held == 0
    fresh = [world.add(2), world.add(1)]
    world.mover.tick()
    world.check()
    world.settle()
    world.check()
    for promotion in list(world.promotions):
        world.drop(promotion)
    world.check()
    assert world.states(np.concatenate(fresh)) == [CLEAN] * 3 and world.store.used_slots == 3
    world.clear()
    world.check_empty()


def test_a_second_clear_does_no_harm() -> None:
    world, _ = busy_world()
    world.clear()
    world.clear()
    for promotion in list(world.promotions):
        world.drop(promotion)
    world.clear()
    world.settle()
    world.check_empty()


def test_drain_says_whether_all_is_over() -> None:
    world, _ = busy_world()
    world.store.stuck = True
    assert not world.mover.drain(0.1) and world.mover.busy
    world.store.stuck = False
    assert world.mover.drain(0.1) and not world.mover.busy
    world.check()


def test_close_ends_all_io_and_leaves_nothing_dirty() -> None:
    world, _ = busy_world()
    assert world.mover.close(1.0)
    world.promotions = [p for p in world.promotions if p.held]
    assert world.store.closed and not world.mover.busy and not world.table.count[State.DIRTY]
    world.check()
    assert world.mover.close(1.0)


def test_close_writes_roots_first_and_what_there_is_room_for() -> None:
    world = fake_world(40, 20, 6)
    world.store.writable = False
    a = world.add(4)
    b = world.add(2, int(a[-1]))
    c = world.add(2, int(b[-1]))
    world.mover.tick()
    for pages in (c, b, a):  # as after failures: the newest is in front
        world.queue(pages)
    world.store.writable = True
    assert world.mover.close(1.0)
    assert [row[1][0] for _, row in sorted(world.store.rows.items())] == [0, 2, 4, 6, 8, 10]
    assert world.states(c) == [State.DIRTY] * 2


def test_close_says_when_something_is_stuck() -> None:
    world, _ = busy_world()
    world.store.stuck = True
    assert not world.mover.close(0.1)


def test_memory_is_flat_over_100_000_operations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    world = fake_world(64, 16, 48)
    world.unwatched()
    rng = random.Random(5)
    ends: list[int] = []

    def churn(rounds: int) -> None:
        """About thirty operations on the mover and its store in each round."""
        for _ in range(rounds):
            if backup := world.backup(rng.randint(1, 3), rng.choice(ends) if ends and rng.random() < 0.5 else None):
                ends.append(int(world.finish_backup(backup)[-1]))
            world.mover.tick()
            world.store.finish_all(*rng.choices([OK, ERROR], (30, 1), k=3))
            world.clock.now += 0.5
            if ends:
                promotion = world.promote(world.path(rng.choice(ends)))
                world.store.finish_all(*rng.choices([OK, CORRUPT], (30, 1), k=3))
                world.mover.tick()
                world.drop(promotion)
            while world.mover.slots_wanted or world.table.free_handles < 4:
                leaf = rng.choice(world.leaves())
                world.free(np.array([leaf]))
                world.mover.tick()
            ends[:] = [page for page in ends if page in world.key]
            for log in (world.store.reads, world.store.writes, world.store.touched):
                log.clear()
        len(world.mover.tree.forgotten)  # puts into its table what it put aside

    churn(2900)
    grown = growth(churn, 400)
    world.check()
    assert grown < 64 << 10
    stats = world.mover.stats
    assert min(stats.written, stats.promoted, stats.demoted, stats.corrupt, stats.write_failures) > 50
    world.settle()
    for page in ends:
        assert world.table.run[page] != NONE
