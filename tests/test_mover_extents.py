"""Several runs that wait together go down as one extent, and each page of it has its own fate."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fake_store import ERROR, OK
from mover_fakes import World, fake_world

from radixtier.mover.writebehind import WRITE_CHUNK_PAGES
from radixtier.tree.residency import Pages, State

DIRTY, CLEAN = State.DIRTY, State.CLEAN


def waiting(*lengths: int, slots: int = 600, chain: bool = False) -> tuple[World, list[Pages]]:
    """Runs that wait to be written."""
    world = fake_world(600, 600, slots)
    runs: list[Pages] = []
    for n in lengths:
        runs.append(world.add(n, int(runs[-1][-1]) if chain and runs else None))
    return world, runs


@pytest.mark.parametrize("chain", [True, False])
def test_small_runs_are_one_write_to_consecutive_slots(chain: bool) -> None:
    world, runs = waiting(3, 1, 2, 4, chain=chain)
    world.mover.tick()
    pages = np.concatenate(runs)
    assert world.store.writes == [list(range(10))] and world.table.slot[pages].tolist() == list(range(10))
    world.check()
    world.settle()
    assert world.states(pages) == [CLEAN] * 10
    assert len(world.store.rows) == 10, "each is entered under its own tokens"
    world.check()


def test_an_extent_is_no_larger_than_a_chunk_and_splits_a_run_if_it_must() -> None:
    world, runs = waiting(200, 100, 30)
    world.mover.tick()
    assert [len(slots) for slots in world.store.writes] == [WRITE_CHUNK_PAGES, 330 - WRITE_CHUNK_PAGES]
    world.settle()
    assert world.table.slot[np.concatenate(runs)].tolist() == list(range(330)) and len(world.store.rows) == 330
    world.check()


def test_of_an_extent_that_fails_in_part_exactly_the_pages_that_arrived_are_entered() -> None:
    world, (a, b, c) = waiting(3, 2, 3)
    world.mover.tick()
    fates = [OK, OK, ERROR, ERROR, OK, OK, ERROR, OK]
    world.store.finish_all(*fates)
    world.mover.tick()
    pages = np.concatenate([a, b, c])
    assert world.states(pages) == [CLEAN if fate == OK else DIRTY for fate in fates]
    assert sorted(world.store.rows) == [i for i, fate in enumerate(fates) if fate == OK]
    assert world.mover.stats.write_failures == 3 and world.mover.stats.written == 5
    world.check()
    world.clock.now += 100.0
    world.mover.tick()
    assert len(world.store.writes) == 2 and len(world.store.writes[1]) == 3, "what failed goes out as one, too"
    world.settle()
    assert world.states(pages) == [CLEAN] * 8 and len(world.store.rows) == 8
    world.check()


def test_pages_that_go_while_their_extent_is_written_are_not_entered() -> None:
    world, (a, b, c) = waiting(2, 3, 2)
    world.mover.tick()
    world.free(b[1:])
    world.free(c)
    world.store.finish_all(OK, ERROR, OK, OK, ERROR, OK, ERROR)
    world.mover.tick()
    assert world.states(np.append(a, b[0])) == [CLEAN, DIRTY, CLEAN] and len(world.store.rows) == 2
    world.check()
    world.settle()
    assert world.states(np.append(a, b[0])) == [CLEAN] * 3 and world.store.used_slots == 3
    world.check()


def test_pages_freed_while_they_wait_leave_no_hole_in_the_extent() -> None:
    world, (a, b, c) = waiting(4, 3, 2)
    world.free(a[2:])
    world.free(b[2:])
    world.free(b[:1])
    world.mover.tick()
    assert world.store.writes == [list(range(5))]
    assert world.table.slot[np.concatenate([a[:2], b[1:2], c])].tolist() == list(range(5))
    world.settle()
    world.check()


def test_a_page_that_waits_twice_is_written_once() -> None:
    world, (a, b) = waiting(3, 2)
    world.queue(a[1:])
    world.queue(b)
    world.mover.tick()
    world.check()
    world.settle()
    assert sum(map(len, world.store.writes)) == 5 and world.store.used_slots == 5
    world.check()


@pytest.mark.parametrize("slots", [1, 4, 7])
def test_an_extent_is_as_long_as_there_is_room(slots: int) -> None:
    world, runs = waiting(3, 3, 3, slots=slots)
    world.settle()
    pages = np.concatenate(runs)
    assert world.states(pages) == [CLEAN] * slots + [DIRTY] * (9 - slots)
    assert world.mover.slots_wanted == 9 - slots
    world.check()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_each_page_ends_on_the_drive_once_under_its_own_tokens(seed: int) -> None:
    rng = random.Random(seed)
    world, runs = waiting(*[rng.randint(1, 40) for _ in range(12)], chain=seed % 2 == 0)
    for _ in range(60):
        world.clock.now += 2.0
        world.mover.tick()
        for tag in list(world.store.jobs):
            world.store.finish(tag, rng.choices([OK, ERROR], (3, 1), k=WRITE_CHUNK_PAGES))
        world.mover.tick()
        world.check()
    world.settle()
    pages = np.concatenate(runs)
    assert world.states(pages) == [CLEAN] * len(pages)
    assert {row[0] for row in world.store.rows.values()} == {world.key[page] for page in pages.tolist()}
    assert world.store.used_slots == len(pages) == world.mover.stats.written
    world.check()
