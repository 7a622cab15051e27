"""Promotion: what is missing comes up in the order of arrival, is held while it is needed, and no longer."""

from __future__ import annotations

import pytest
from fake_store import CORRUPT, ERROR, OK
from mover_fakes import NOTHING, World, fake_world, on_nvme

from radixtier.tree.residency import State

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST


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
    world.mover.give_up_frames(b)
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
    assert world.mover.promotions.hold_limit == 7 == world.table.held
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
    world.mover.promotions.job_pages = 4
    promotion = world.promote(a)
    assert [len(slots) for slots in world.store.reads] == [4, 4, 2]
    world.store.finish(next(iter(world.store.jobs)))
    world.mover.tick()
    assert world.states(a[:4]) == [CLEAN] * 4
    world.drop(promotion)
    world.mover.tick()
    assert world.states(a) == [CLEAN] * 4 + [COLD] * 6
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


@pytest.mark.parametrize("started", [0, 2])
def test_a_request_that_gives_up_does_not_take_the_pages_of_another(started: int) -> None:
    world = fake_world(60, 8, 60)
    (a,) = on_nvme(world, 6)
    first, second = world.promote(a), world.promote(a[:4])
    world.store.start(next(iter(world.store.jobs)), started)
    world.drop(first)
    world.check()
    world.settle()
    assert second.ready(world.table) and world.states(a[:4]) == [CLEAN] * 4
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


def test_a_path_freed_before_there_were_frames_to_read_it_into_is_not_waited_for() -> None:
    world = fake_world(40, 8, 6)
    (a,) = on_nvme(world, 6)
    world.add(5)
    promotion = world.promote(a)
    world.settle()
    assert world.states(a) == [CLEAN] * 3 + [COLD] * 3 and not promotion.ready(world.table)
    world.free(a[3:])
    assert promotion.ready(world.table)
    world.check()
    world.drop(promotion)
    world.settle()
    world.check()
