"""Pages that go straight from NVMe to HBM, over a store without threads: who lands, how long, and what goes wrong."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from fake_store import CORRUPT, ERROR, OK
from mover_fakes import World, fake_world, on_nvme

from radixtier.mover import Trigger
from radixtier.policy.landing import FAILURES, LONG_PAGES
from radixtier.tree.residency import NONE, State

CLEAN, COLD, LOST = State.CLEAN, State.COLD, State.LOST
LONG = LONG_PAGES + 2


def cold_world(n_landing: int = 20, *lengths: int, frames: int = 60) -> tuple[World, list[Any]]:
    world = fake_world(200, frames, 200, n_landing)
    return world, on_nvme(world, *(lengths or (LONG,)))


def landing_frames(world: World, pages: Any) -> int:
    return int((world.table.frame[pages] >= world.table.n_frames).sum())


def test_a_long_path_that_is_used_once_takes_no_frame_of_dram() -> None:
    world, (a,) = cold_world()
    promotion = world.promote(a)
    assert landing_frames(world, a) == LONG and world.table.free_frames == world.table.n_frames
    assert not world.table.in_dram(a).any(), "half a read can be loaded"
    world.settle()
    assert promotion.ready(world.table) and promotion.whole and world.states(a) == [CLEAN] * LONG
    world.load(a)
    world.drop(promotion)
    assert landing_frames(world, a) == LONG, "a stream still reads it"
    world.check()
    world.finish_load()
    assert world.states(a) == [COLD] * LONG and world.table.free_landing == 20
    assert world.table.free_frames == world.table.n_frames and world.mover.stats.demoted == LONG
    assert world.mover.stats.landed == world.mover.stats.promoted == LONG
    world.check()


@pytest.mark.parametrize("why", ["used", "forked", "pinned"])
def test_what_is_wanted_again_goes_through_dram(why: str) -> None:
    world, (a,) = cold_world()
    (run,) = world.mover.tree.runs_of(a)
    if why == "used":
        world.mover.used_by_request(int(a[-1]))
    elif why == "pinned":
        world.pins[run] = 1
    else:
        for _ in range(2):
            world.add(1, int(a[-1]))
    world.promote(a)
    assert landing_frames(world, a) == 0 and not world.store.landed
    world.check()


def test_a_shared_front_goes_through_dram_and_the_tail_of_each_lands() -> None:
    world = fake_world(200, 60, 200, 20)
    front = world.add(4)
    tails = [world.add(LONG, int(front[-1])) for _ in range(2)]
    world.settle()
    world.demote(60)
    promotion = world.promote(world.path(int(tails[0][-1])))
    world.settle()
    assert promotion.whole and landing_frames(world, front) == 0 and landing_frames(world, tails[0]) == LONG
    assert world.table.n_frames - world.table.free_frames == 4
    world.check()


def test_a_path_longer_than_the_zone_has_its_end_land() -> None:
    world, (a,) = cold_world(6, 20)
    promotion = world.promote(a)
    world.settle()
    assert promotion.whole and (world.table.frame[a] >= world.table.n_frames).tolist() == [False] * 14 + [True] * 6
    world.check()


def test_while_the_zone_is_taken_others_go_through_dram() -> None:
    world, (a, b) = cold_world(LONG, LONG, LONG)
    first, second = world.promote(a), world.promote(b)
    world.settle()
    assert first.whole and second.whole and landing_frames(world, b) == 0
    world.drop(first)
    world.drop(second)
    assert world.states(a) == [COLD] * LONG and world.states(b) == [CLEAN] * LONG


def test_a_zone_that_fills_up_meanwhile_is_counted() -> None:
    world, (a, b) = cold_world(LONG, LONG, LONG)
    promotions = world.mover.promotions
    budget = promotions._allowed_bytes
    promotions._allowed_bytes = lambda: 0.0  # type: ignore[method-assign]
    first, second = world.promote(a), world.promote(b)
    promotions._allowed_bytes = budget  # type: ignore[method-assign]
    world.settle()
    assert first.whole and second.whole and world.mover.stats.landing_full == LONG
    assert (landing_frames(world, a), landing_frames(world, b)) == (LONG, 0)


def test_a_request_that_leases_in_time_is_served_and_everybody_else_reads_again() -> None:
    world, (a,) = cold_world()
    first = world.promote(a)
    world.settle()
    second = world.promote(a)
    world.drop(first)
    assert second.ready(world.table) and world.states(a) == [CLEAN] * LONG and len(world.store.landed) == 1
    world.drop(second)
    third = world.promote(a)
    assert world.states(a) == [COLD] * LONG and not third.ready(world.table)
    world.settle()
    assert third.whole and len(world.store.landed) == 2
    world.check()


@pytest.mark.parametrize("started", [0, 3, LONG])
def test_who_leaves_while_pages_land_leaves_nothing_behind(started: int) -> None:
    world, (a,) = cold_world()
    promotion = world.promote(a)
    (tag,) = world.store.jobs
    world.store.start(tag, started)
    world.drop(promotion)
    assert world.table.free_landing == 20 - LONG, "a frame was given away under a read"
    world.settle()
    assert world.table.free_landing == 20 and world.states(a) == [COLD] * LONG
    world.check()


def test_pages_freed_while_they_land_go_when_the_read_is_over() -> None:
    world, (a,) = cold_world()
    promotion = world.promote(a)
    world.free(a)
    world.drop(promotion)
    assert world.table.free_landing == 20 - LONG and world.store.used_slots == LONG
    world.settle()
    world.check_empty()


def test_a_flush_while_pages_land_and_load() -> None:
    world, (a, b) = cold_world(40, LONG, LONG)
    first = world.promote(a)
    world.settle()
    world.load(a)
    world.promote(b)
    world.clear()
    world.drop(first)
    world.drop(world.promotions[0])
    world.settle()
    world.check_empty()


def test_landed_pages_are_no_victims() -> None:
    world, (a,) = cold_world()
    world.promote(a)
    world.settle()
    assert len(world.mover.tree.victims(60)) == 0
    b = world.add(8)
    world.settle()
    assert set(world.mover.tree.victims(60).tolist()) == set(b.tolist())
    assert world.mover.alloc(world.table.n_frames) is not None, "DRAM is as large as before"


def test_reads_that_nobody_waits_for_never_land() -> None:
    world, (a,) = cold_world()
    assert world.ahead(a, Trigger.IDLE) == LONG
    world.settle()
    assert not world.store.landed and world.states(a) == [CLEAN] * LONG


def test_pages_without_a_weighted_sum_go_through_dram() -> None:
    world, (a,) = cold_world()
    world.table.weighted[a[2:4]] = 0
    promotion = world.promote(a)
    world.settle()
    assert promotion.whole and np.flatnonzero(world.table.frame[a] < world.table.n_frames).tolist() == [2, 3]


def test_where_dram_has_no_frame_at_all_pages_land_that_belong_there() -> None:
    world = fake_world(200, 8, 200, 20)
    (a,) = on_nvme(world, 4)
    world.mover.used_by_request(int(a[-1]))
    busy = world.add(8)
    world.settle()
    world.load(busy)
    promotion = world.promote(a)
    world.settle()
    assert promotion.whole and landing_frames(world, a) == 4
    world.finish_load()
    world.check()


# ---- what goes wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 4, LONG - 1])
def test_a_corrupt_page_is_lost_and_never_read_again(at: int, caplog: pytest.LogCaptureFixture) -> None:
    world, (a,) = cold_world()
    promotion = world.promote(a)
    world.store.finish_all(*[OK] * at, CORRUPT)
    world.settle()
    assert world.states(a) == [CLEAN] * at + [LOST] + [CLEAN] * (LONG - at - 1) and promotion.ready(world.table)
    stats = world.mover.stats
    assert (stats.corrupt, stats.read_failures, stats.landed, stats.landing_failed) == (1, 1, LONG - 1, 0)
    assert "wrong checksum" in caplog.text and len(world.store.reads) == 1
    world.check()


@pytest.mark.parametrize("then", [OK, ERROR, CORRUPT])
def test_a_read_that_fails_is_done_again_through_dram(then: str) -> None:
    world, (a,) = cold_world()
    promotion = world.promote(a)
    world.store.finish_all(*[OK] * 3, *[ERROR] * (LONG - 3))
    world.mover.tick()
    assert landing_frames(world, a) == 3 and world.table.free_frames == world.table.n_frames - (LONG - 3)
    world.store.finish_all(then)
    world.settle()
    assert promotion.ready(world.table)
    assert world.states(a)[3] == (CLEAN if then == OK else LOST) and world.states(a)[4:] == [CLEAN] * (LONG - 4)
    stats = world.mover.stats
    assert (stats.landed, stats.landing_failed) == (3, LONG - 3)
    assert stats.read_failures == (then != OK) and stats.corrupt == (then == CORRUPT)
    world.check()


def test_after_a_few_failures_in_a_row_everything_goes_through_dram(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "radixtier")
    world, paths = cold_world(20, *[LONG] * (FAILURES + 2), frames=80)
    for number, path in enumerate(paths):
        promotion = world.promote(path)
        assert landing_frames(world, path) == (LONG if number < FAILURES else 0)
        if number < FAILURES:
            world.store.finish_all(*[ERROR] * LONG)
        world.settle()
        assert promotion.whole and world.states(path) == [CLEAN] * LONG
        world.drop(promotion)
        world.check()
    told = [record.message for record in caplog.records if "everything goes through DRAM" in record.message]
    assert len(told) == 1 and "(broken)" in told[0]
    assert world.mover.promotions.landings.given_up and world.mover.stats.read_failures == 0


def test_pages_that_are_being_verified_land_when_that_is_over() -> None:
    world, (a,) = cold_world()
    world.table.begin_verify(a)
    promotion = world.promote(a)
    assert landing_frames(world, a) == 0 and set(promotion.straight.tolist()) == set(a.tolist())
    world.table.end_verify(a, np.zeros(LONG, np.bool_))
    world.settle()
    assert promotion.whole and landing_frames(world, a) == LONG
    world.check()


def test_a_way_that_turned_out_slow_is_left() -> None:
    world, (a, b) = cold_world(20, LONG, LONG)
    landings = world.mover.promotions.landings
    for _ in range(3):
        world.mover.rate.observe(1 << 20, 0.0, 0.001)
        landings.rate.observe(1 << 20, 0.0, 0.1)
    for path, landed in ((a, LONG), (b, 0)):  # the first is the try that is due
        world.promote(path)
        assert landing_frames(world, path) == landed


def test_without_a_zone_nothing_is_kept_for_one() -> None:
    world, (a,) = cold_world(0)
    assert len(world.table.weighted) == 0 and not len(world.mover.promotions.landings.choose(a))
    world.promote(a)
    world.settle()
    assert (world.table.frame[a] != NONE).all() and not world.store.landed
    world.check()
