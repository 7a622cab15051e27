"""Promotion, frames under pressure, and whole-tier operations of the mover, over the fake store."""

from __future__ import annotations

import logging
import random
import tracemalloc

import numpy as np
import pytest
from mover_fakes import CORRUPT, ERROR, NOTHING, OK, World, fake_world

from radixtier.tree.residency import NONE, Pages, State

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST


def on_nvme(world: World, *lengths: int) -> list[Pages]:
    """Insert runs of these lengths, each a path of its own, and take them all out of DRAM."""
    runs = []
    for n in lengths:
        runs.append(world.add(n))
        world.settle()
    world.demote(world.table.n_frames)
    assert all(world.states(run) == [COLD] * len(run) for run in runs)
    world.store.reads.clear()
    return runs


def pages_read(world: World) -> int:
    return sum(map(len, world.store.reads))


# ---- one promotion --------------------------------------------------------------------------------------


def test_a_path_comes_up_with_its_bytes_and_stays_until_it_is_dropped() -> None:
    world = fake_world(40, 8, 40)
    (a,) = on_nvme(world, 5)
    promotion = world.promote(a)
    assert promotion.held and not promotion.ready(world.table) and promotion.cold.tolist() == a.tolist()
    world.settle()
    assert promotion.ready(world.table) and world.states(a) == [CLEAN] * 5
    world.check()
    world.demote(3)
    assert world.mover.alloc(4) is None
    assert world.states(a) == [CLEAN] * 5
    world.load(a)
    world.drop(promotion)
    assert world.mover.alloc(4) is None
    world.finish_load()
    world.demote(8)
    assert world.states(a) == [COLD] * 5
    world.check()


def test_only_what_is_not_there_is_read() -> None:
    world = fake_world(40, 16, 40)
    a = world.add(5)
    b = world.add(3, int(a[-1]))
    world.settle()
    world.table.drop_frames(b)
    promotion = world.promote(world.path(int(b[-1])))
    assert promotion.cold.tolist() == b.tolist()
    world.settle()
    assert pages_read(world) == 3 and world.mover.stats.promoted == 3
    assert world.states(world.path(int(b[-1]))) == [CLEAN] * 8


def test_a_promotion_of_nothing_is_ready_and_costs_nothing() -> None:
    world = fake_world(20, 4, 20)
    a = world.add(4)
    world.settle()
    for _ in range(1000):
        promotion = world.promote(NOTHING)
        assert promotion.ready(world.table)
        world.mover.tick()
        world.drop(promotion)
    assert world.states(a) == [CLEAN] * 4
    assert world.mover.stats.demoted == 0 and pages_read(world) == 0


@pytest.mark.parametrize("outcome", [ERROR, CORRUPT])
def test_a_page_that_cannot_be_read_is_lost_after_one_try_and_filled_again_behind_its_handle(outcome: str) -> None:
    world = fake_world(40, 8, 40)
    (a,) = on_nvme(world, 6)
    promotion = world.promote(a)
    world.store.finish_all(OK, OK, OK, outcome)
    world.settle()
    assert promotion.ready(world.table)
    assert world.states(a) == [CLEAN] * 3 + [LOST] + [CLEAN] * 2
    assert pages_read(world) == 6 and world.mover.stats.read_failures == 1
    assert world.mover.stats.corrupt == (outcome == CORRUPT)
    world.check()
    world.drop(promotion)
    again = world.promote(a)
    world.settle()
    assert again.ready(world.table) and pages_read(world) == 6
    backup = world.refill(a[3:4])
    assert backup is not None
    world.finish_backup(backup)
    world.drop(again)
    world.settle()
    world.demote(8)
    assert world.states(a) == [COLD] * 6
    last = world.promote(a)
    world.settle()
    assert last.ready(world.table) and world.states(a) == [CLEAN] * 6
    world.check()


def test_a_path_longer_than_what_may_be_held_comes_up_as_far_as_that() -> None:
    world = fake_world(60, 8, 60)
    a = world.add(8)
    world.settle()
    b = world.add(6, int(a[-1]))
    world.settle()
    path = world.path(int(b[-1]))
    promotion = world.promote(path)
    world.settle()
    assert world.mover.hold_limit == 7 == world.table.held
    assert promotion.ready(world.table) and promotion.pages.tolist() == path[:7].tolist()
    assert world.mover.alloc(1) is not None, "backups keep a share of DRAM"


def test_while_dirty_pages_block_dram_a_path_comes_up_in_part_and_goes_on_when_they_are_clean() -> None:
    world = fake_world(60, 8, 12)
    (a,) = on_nvme(world, 7)
    b = world.add(6)
    promotion = world.promote(a)
    assert world.store.reads == [world.table.slot[a[:2]].tolist()], "what is needed first is read first"
    world.settle()
    assert world.states(b) == [COLD] * 5 + [DIRTY], "the drive had room for five"
    assert promotion.ready(world.table) and world.states(a) == [CLEAN] * 7
    world.check()


def test_read_jobs_are_small_enough_that_a_deadline_finds_some_of_them_over() -> None:
    world = fake_world(40, 20, 40)
    (a,) = on_nvme(world, 10)
    world.mover.read_job_pages = 4
    promotion = world.promote(a)
    assert [len(slots) for slots in world.store.reads] == [4, 4, 2]
    world.store.finish(next(iter(world.store.jobs)))
    world.mover.tick()
    world.mover.stop(promotion)
    world.mover.tick()
    assert world.states(a) == [CLEAN] * 4 + [COLD] * 6
    world.check()
    world.drop(promotion)
    world.check()


# ---- several requests -----------------------------------------------------------------------------------


def test_frames_go_to_requests_in_the_order_of_arrival() -> None:
    world = fake_world(60, 8, 60)
    a, b, c = on_nvme(world, 5, 5, 1)
    first, second, third = (world.promote(pages) for pages in (a, b, c))
    assert (first.held, second.held, third.held) == (True, False, False)
    world.settle()
    assert first.ready(world.table) and not second.ready(world.table)
    assert pages_read(world) == 5
    world.drop(first)
    world.settle()
    assert second.ready(world.table) and third.ready(world.table)
    assert world.states(b) == [CLEAN] * 5 and world.states(c) == [CLEAN]
    world.check()


def test_two_requests_for_the_same_pages_read_them_once_and_hold_them_twice() -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 6)
    first, second = world.promote(a), world.promote(a)
    assert first.held and second.held and world.table.held == 6
    world.settle()
    assert pages_read(world) == 6
    world.drop(first)
    assert world.mover.alloc(3) is None
    world.check()
    world.drop(second)
    assert world.mover.alloc(3) is not None


@pytest.mark.parametrize("end", ["stop", "drop"])
@pytest.mark.parametrize("started", [0, 2])
def test_a_request_that_gives_up_does_not_take_the_pages_of_another(end: str, started: int) -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 6)
    first, second = world.promote(a), world.promote(a[:4])
    world.store.start(next(iter(world.store.jobs)), started)
    world.mover.stop(first) if end == "stop" else world.drop(first)
    world.check()
    world.settle()
    assert second.ready(world.table) and world.states(a[:4]) == [CLEAN] * 4
    world.check()


def test_a_request_that_gives_up_keeps_what_has_arrived_until_it_is_dropped() -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 6)
    promotion = world.promote(a)
    (tag,) = world.store.jobs
    world.store.start(tag, 2)
    world.mover.stop(promotion)
    world.mover.tick()
    assert world.states(a) == [COLD] * 6
    world.check()
    world.store.finish(tag)
    world.settle()
    assert world.states(a) == [CLEAN] * 2 + [COLD] * 4, "nothing is read again for it"
    assert world.table.held == 6 and pages_read(world) == 6
    assert world.mover.stats.read_failures == 0
    world.demote(6)
    assert world.states(a[:2]) == [CLEAN] * 2
    world.drop(promotion)
    assert world.table.held == 0
    world.check()


def test_a_cancel_does_not_lose_pages_that_were_failing_but_finds_out_next_time() -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 4)
    promotion = world.promote(a)
    (tag,) = world.store.jobs
    world.store.start(tag, 3)
    world.drop(promotion)
    world.store.finish(tag, [OK, CORRUPT, ERROR])
    world.settle()
    assert world.states(a) == [CLEAN, LOST, COLD, COLD]
    world.check()


def test_pages_that_left_dram_while_their_request_waited_are_read() -> None:
    """A request that may not hold yet does not keep its pages; once it may, all that is missing comes up."""
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 6)
    first = world.promote(a)
    world.settle()
    b = world.add(2)
    world.settle()
    second = world.promote(b)
    assert not second.held and not len(second.cold)
    world.demote(2)
    assert world.states(b) == [COLD] * 2
    world.drop(first)
    world.settle()
    assert second.held and second.ready(world.table) and world.states(b) == [CLEAN] * 2
    world.check()


@pytest.mark.parametrize("reuse", [False, True])
def test_pages_freed_while_their_request_waited_are_none_of_its_business(reuse: bool) -> None:
    world = fake_world(20, 8, 60)
    a, b = on_nvme(world, 6, 4)
    first, second = world.promote(a), world.promote(b)
    world.settle()
    assert not second.held
    world.free(b[1:])
    if reuse:
        assert set(world.add(2).tolist()) <= set(b[1:].tolist())
    world.check()
    world.drop(first)
    world.settle()
    world.check()
    assert second.pages.tolist() == b[:1].tolist() and second.ready(world.table)
    world.drop(second)
    world.check()


@pytest.mark.parametrize("outcome", [OK, ERROR])
def test_a_path_freed_while_it_comes_up_is_ready_and_its_frames_wait_for_the_read(outcome: str) -> None:
    world = fake_world(14, 8, 60)
    (a,) = on_nvme(world, 6)
    promotion = world.promote(a)
    world.free(a[2:])
    assert world.table.free_frames == 2 and world.table.free_handles == 8
    world.check()
    world.store.finish_all(OK, OK, *[outcome] * 4)
    world.settle()
    assert promotion.ready(world.table) and world.states(a[:2]) == [CLEAN] * 2
    assert world.table.free_handles == 8, "the hold keeps the handles"
    world.drop(promotion)
    assert world.table.free_handles == 12 and world.store.used_slots == 2
    world.check()


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
    world.table.drop_frames(b[1:])
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
        for start in range(0, len(path), world.mover.hold_limit):
            promotion = world.promote(path[start : start + world.mover.hold_limit])
            world.settle(4)
            assert promotion.ready(world.table)
            world.load(promotion.pages)
            world.drop(promotion)
            world.finish_load()


# ---- all at once ----------------------------------------------------------------------------------------


def busy_world() -> tuple[World, list[str]]:
    """Everything that can be going on: writes, reads, a read of a request that gave up, one that waits, a queue."""
    world = fake_world(60, 16, 60)
    a, b, c = on_nvme(world, 5, 4, 6)
    gave_up, _, waiting = (world.promote(pages) for pages in (a, b, c))
    assert not waiting.held
    world.store.start(next(iter(world.store.jobs)), 3)
    world.mover.stop(gave_up)
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
    assert world.table.held == 5, "the request that gave up still holds until it is dropped"
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


def test_close_ends_all_io_and_starts_none() -> None:
    world, _ = busy_world()
    writes = len(world.store.writes)
    assert world.mover.close(1.0)
    world.promotions = [p for p in world.promotions if p.held]
    assert world.store.closed and not world.mover.busy and len(world.store.writes) == writes
    world.check()
    assert world.mover.close(1.0)


def test_close_says_when_something_is_stuck() -> None:
    world, _ = busy_world()
    world.store.stuck = True
    assert not world.mover.close(0.1)


def test_memory_is_flat_over_100_000_operations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    world = fake_world(64, 16, 48)
    rng = random.Random(5)
    ends: list[int] = []

    def churn(rounds: int) -> None:
        """About twenty operations on the mover in each round."""
        for _ in range(rounds):
            if backup := world.backup(rng.randint(1, 3), rng.choice(ends) if ends and rng.random() < 0.5 else None):
                ends.append(int(world.finish_backup(backup)[-1]))
            world.mover.tick()
            world.store.finish_all(*rng.choices([OK, ERROR], (30, 1), k=3))
            world.clock.now += 0.5
            if ends:
                promotion = world.promote(world.path(rng.choice(ends)))
                if rng.random() < 0.3:
                    world.mover.stop(promotion)
                world.store.finish_all(*rng.choices([OK, CORRUPT], (30, 1), k=3))
                world.mover.tick()
                world.drop(promotion)
            while world.mover.slots_wanted or world.table.free_handles < 4:
                leaf = rng.choice(world.leaves())
                world.free(np.array([leaf]))
                world.mover.tick()
            ends[:] = [page for page in ends if page in world.key]
            world.store.reads.clear()
            world.store.writes.clear()

    churn(3500)
    tracemalloc.start()
    try:
        churn(500)
        before = tracemalloc.get_traced_memory()[0]
        churn(1000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    world.check()
    assert grown < 64 << 10
    stats = world.mover.stats
    assert min(stats.written, stats.promoted, stats.demoted, stats.corrupt, stats.write_failures) > 50
    world.settle()
    for page in ends:
        assert world.table.run[page] != NONE
