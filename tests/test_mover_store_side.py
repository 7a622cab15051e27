"""What the store is told: what a restart may find, what was used, what went bad; and what comes back from it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_store import CORRUPT, ERROR, OK, PAGE_BYTES
from mover_fakes import World, fake_world, on_nvme

from radixtier.mover.mover import HEAT_S
from radixtier.mover.scrub import Scrub
from radixtier.tree.residency import Pages, State

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST


# ---- what a restart may find ----------------------------------------------------------------------------


def test_a_page_is_entered_once_its_bytes_are_stored_and_not_before() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(4)
    world.mover.tick()
    assert not world.store.rows
    world.store.finish_all(OK, OK, ERROR, OK)
    world.mover.tick()
    assert sorted(world.store.rows) == [0, 1, 3]
    world.settle()
    assert {row[0] for row in world.store.rows.values()} == {world.key[page] for page in a.tolist()}
    world.check()


def test_a_page_freed_while_it_is_written_is_not_entered() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(4)
    world.mover.tick()
    world.free(a[2:])
    world.settle()
    assert len(world.store.rows) == 2
    world.free(a[:2])
    assert not world.store.rows and world.store.used_slots == 0


def test_after_a_flush_nothing_is_found_again() -> None:
    world = fake_world(20, 10, 20)
    world.add(4)
    world.settle()
    world.add(3)
    world.mover.tick()
    world.clear()
    assert not world.store.rows
    world.settle()
    assert not world.store.rows
    world.check_empty()


def test_a_reused_handle_is_never_entered_under_the_old_tokens() -> None:
    world = fake_world(2, 2, 4)
    a = world.add(2)
    world.store.writable = False
    world.free(a)
    b = world.add(2)
    assert set(a.tolist()) == set(b.tolist())
    world.store.writable = True
    world.settle()
    assert {row[0] for row in world.store.rows.values()} == {world.key[page] for page in b.tolist()}
    world.check()


# ---- heat -----------------------------------------------------------------------------------------------


def test_the_store_learns_what_was_used_every_now_and_then() -> None:
    world = fake_world(60, 20, 60)
    a, b = world.add(3), world.add(2)
    c = world.add(2, int(a[-1]))
    world.settle()
    world.mover.tree.use_page(int(a[0]))
    world.clock.now += HEAT_S
    world.mover.tick()
    world.store.touched.clear()
    world.mover.tree.use_page(int(c[0]))
    world.mover.tick()
    assert not world.store.touched
    world.clock.now += HEAT_S
    world.mover.tick()
    assert sorted(world.store.touched) == sorted(world.table.slot[np.concatenate([a, c])].tolist())
    world.store.touched.clear()
    world.mover.tree.use_page(int(b[0]))
    assert world.mover.close(1.0)
    assert sorted(world.store.touched) == sorted(world.table.slot[b].tolist())


# ---- scrubbing ------------------------------------------------------------------------------------------


def scrubbing(*lengths: int) -> tuple[World, list[Pages]]:
    """A world with runs on the drive only, and a scrubber that may read two pages per second from now on."""
    world = fake_world(40, 6, 40)
    runs = on_nvme(world, *lengths)
    world.mover.scrub = Scrub(
        world.table, world.mover._jobs, world.mover.stats, world.mover._free_slots,
        page_bytes=PAGE_BYTES, rate=2 * PAGE_BYTES, clock=world.clock,
    )  # fmt: skip
    return world, runs


def seconds(world: World, n: int, *outcomes: str) -> None:
    for _ in range(n):
        world.clock.now += 1.0
        world.mover.tick()
        world.check()
        world.store.finish_all(*outcomes)
    world.mover.tick()


def test_every_page_that_is_on_the_drive_only_is_read_at_the_rate_given() -> None:
    world, runs = scrubbing(3, 3, 3, 3)
    seconds(world, 4)
    assert world.mover.stats.scrubbed == 8
    seconds(world, 2)
    assert world.mover.stats.scrubbed == 12 and world.mover.stats.scrubbed_bad == 0
    seconds(world, 30)
    assert world.mover.stats.scrubbed > 40, "it starts over"
    assert all(world.states(run) == [COLD] * 3 for run in runs)


def test_scrubbing_waits_while_anything_else_is_in_flight() -> None:
    world, (a,) = scrubbing(3)
    world.promote(a)
    world.clock.now += 10.0
    world.mover.tick()
    assert [job.kind for job in world.store.jobs.values()] == ["read"]


@pytest.mark.parametrize("outcome", [ERROR, CORRUPT])
def test_a_page_that_went_bad_is_lost_before_anybody_asks_for_it(outcome: str) -> None:
    world, (a,) = scrubbing(3)
    seconds(world, 1, OK, outcome)
    assert world.states(a) == [COLD, LOST, COLD] and len(world.store.rows) == 2
    assert world.mover.stats.scrubbed_bad == 1 and len(world.store.aside) == 1
    world.check()


def test_a_promotion_waits_for_the_scrubber_to_let_go_of_its_pages() -> None:
    world, (a, b) = scrubbing(1, 1)
    world.clock.now += 1.0
    world.mover.tick()
    assert [job.kind for job in world.store.jobs.values()] == ["verify"]
    world.free(b)
    promotion = world.promote(a)
    world.check()
    assert len(world.store.jobs) == 1
    world.settle()
    assert promotion.ready(world.table) and world.states(a) == [CLEAN]
    world.drop(promotion)
    world.free(a)
    world.settle()
    world.check_empty()


# ---- restart --------------------------------------------------------------------------------------------


def test_restored_pages_are_cold_and_come_up_right() -> None:
    world = fake_world(30, 10, 20)
    pages = world.restore(4)
    assert pages is not None
    tail = world.restore(2, int(pages[-1]))
    assert tail is not None
    path = np.concatenate([pages, tail])
    assert world.states(path) == [COLD] * 6
    assert not world.store.writes and world.mover.stats.restored == 6
    promotion = world.promote(path)
    world.settle()
    assert promotion.ready(world.table) and world.states(path) == [CLEAN] * 6
    world.load(path)
    world.finish_load()
    assert not world.store.writes, "what is on the drive is not written again"
    world.check()
    world.drop(promotion)
    world.free(path)
    world.settle()
    world.check_empty()


def test_what_does_not_fit_is_given_back() -> None:
    world = fake_world(4, 2, 20)
    assert world.restore(5) is None
    assert world.store.used_slots == 0
    world.check()


def test_pages_computed_before_their_turn_take_over_the_slots_unless_they_are_being_written() -> None:
    world = fake_world(20, 10, 20)
    front = world.add(1)
    world.settle()
    stretch, slots, sums = world.on_disk(3, world.key[int(front[0])])
    world.born -= 3  # the same tokens again
    a = world.add(3, int(front[0]))
    assert stretch.keys[0].tobytes() == world.key[int(a[0])]
    world.mover.restore_again(a, slots, sums)
    world.settle()
    assert world.states(a) == [CLEAN] * 3 and len(world.store.writes) == 1
    stretch, slots, sums = world.on_disk(2, world.key[int(a[-1])])
    world.born -= 2
    b = world.add(2, int(a[-1]))
    world.mover.tick()
    world.mover.restore_again(b, slots, sums)
    world.settle()
    assert world.states(b) == [CLEAN] * 2 and world.store.used_slots == 6
    world.check()
