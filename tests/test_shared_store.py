"""One rank writes what all have, and all read it: places, failures, slots that come back, new slabs, the end."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from shared_rig import PAGE, SharedRanks

from radixtier.io.faults import FaultEngine
from radixtier.mover import writebehind
from radixtier.store import borrowed_drive, health
from radixtier.tree.residency import DOOMED, READ, State

Make = Callable[..., SharedRanks]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((health, "FIRST_PROBE_S"), (health, "LAST_PROBE_S"), (writebehind, "PAUSE_S")):
        monkeypatch.setattr(module, name, 0.001)
    monkeypatch.setattr(borrowed_drive, "RETRY_S", 0.01)


@pytest.fixture
def make_ranks(tmp_path: Path) -> Iterator[Make]:
    made: list[SharedRanks] = []

    def make(ranks: int = 2, **options: int) -> SharedRanks:
        made.append(SharedRanks(tmp_path, ranks, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def states(ranks: SharedRanks, pages: object) -> set[State]:
    return {State(state) for table in ranks.tables for state in table.state[pages].tolist()}


@pytest.mark.parametrize("n", [2, 3])
def test_pages_are_written_once_and_read_by_all(make_ranks: Make, tmp_path: Path, n: int) -> None:
    ranks = make_ranks(n)
    pages = ranks.on_nvme(9)
    ranks.bring_up(pages)
    figures = [world.store.stats() for world in ranks.worlds]
    assert [each["write_bytes"] for each in figures] == [9 * PAGE] + [0] * (n - 1)
    assert [each["read_bytes"] for each in figures] == [9 * PAGE] * n
    assert [world.mover.stats.written for world in ranks.worlds] == [9] * n
    assert ranks.owner.used_slots == 9
    assert len(list(tmp_path.glob("*.slab"))) == 1


def test_places_are_known_when_the_write_is_over(make_ranks: Make) -> None:
    ranks = make_ranks()
    held = ranks.engines[0].hold("write")
    pages = ranks.each(lambda world: world.add(3))
    ranks.until(lambda: bool(ranks.worlds[0].mover.busy))
    assert held.wait(1)
    ranks.check()
    assert (ranks.tables[0].slot[pages] >= 0).all()
    assert (ranks.tables[1].slot[pages] < -1).all()
    assert states(ranks, pages) == {State.DIRTY}
    held.release()
    ranks.quiet()
    assert states(ranks, pages) == {State.CLEAN}
    assert (ranks.tables[1].slot[pages] >= 0).all()


def test_a_write_that_fails_stays_in_dram_everywhere(make_ranks: Make) -> None:
    ranks = make_ranks()
    ranks.engines[0].error("write", errno.EIO, times=1)
    ranks.engines[1].error("write", errno.EIO)
    pages = ranks.each(lambda world: world.add(3))
    ranks.quiet()
    assert {world.mover.stats.write_failures for world in ranks.worlds} == {2}
    assert states(ranks, pages) == {State.CLEAN}
    ranks.each(lambda world: world.demote(world.table.n_frames))
    ranks.bring_up(pages)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("how", ["error", "flip", "short"])
def test_a_page_that_one_rank_cannot_read_is_lost_for_all(make_ranks: Make, rank: int, how: str) -> None:
    ranks = make_ranks(3)
    pages = ranks.on_nvme(4)
    getattr(ranks.engines[rank], how)("read", times=1)
    promotions = ranks.promote(pages)
    ranks.until(lambda: not ranks.worlds[0].mover.busy)
    ranks.check()
    lost = ranks.tables[0].state[pages] == State.LOST
    assert 1 <= lost.sum() <= 2
    assert (ranks.tables[0].state[pages[~lost]] == State.CLEAN).all()
    ranks.drop(promotions)
    ranks.until(lambda: ranks.owner.used_slots + ranks.owner.quarantined == int((~lost).sum()))
    assert ranks.owner.quarantined in ((0, int(lost.sum())) if rank == 0 else (0,))
    ranks.check()


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slot_is_free_when_the_last_rank_has_read_it(make_ranks: Make, slow: int) -> None:
    ranks = make_ranks()
    pages = ranks.on_nvme(4)
    slots = set(ranks.tables[0].slot[pages].tolist())
    held = ranks.engines[slow].hold("read", times=1)
    promotions = ranks.promote(pages)
    assert held.wait(1)
    ranks.until(lambda: ranks.worlds[1 - slow].store.stats()["read_pages"] == 4)
    ranks.drop(promotions)
    ranks.each(lambda world: world.free(pages[::-1]))
    for _ in range(20):
        ranks.step()
        ranks.check()
        assert all((table.flight[pages] == READ | DOOMED).all() for table in ranks.tables)
        assert ranks.owner.used_slots == 4
    more = ranks.each(lambda world: world.add(8))
    ranks.until(lambda: (ranks.tables[0].state[more] == State.CLEAN).all())
    assert not slots & set(ranks.tables[0].slot[more].tolist()), "a slot that somebody reads was written over"
    held.release()
    ranks.until(lambda: ranks.owner.used_slots == 8)
    ranks.check()


def test_the_first_rank_looks_for_bad_pages_for_all(make_ranks: Make, tmp_path: Path) -> None:
    ranks = make_ranks(3, scrub_rate=1000 * PAGE)
    pages = ranks.on_nvme(6)
    bad = int(ranks.tables[0].slot[pages[2]])
    (slab,) = tmp_path.glob("*.slab")
    with slab.open("r+b") as file:
        file.seek(8192 + bad * PAGE + 7)
        file.write(b"\xff\x00\xff")
    ranks.until(lambda: ranks.worlds[0].mover.stats.scrubbed_bad == 1)
    ranks.check()
    assert [table.state[pages].tolist().count(State.LOST) for table in ranks.tables] == [1, 1, 1]
    assert all(world.store.stats()["verify_bytes"] == 0 for world in ranks.worlds[1:])


def test_room_is_the_first_ranks(make_ranks: Make) -> None:
    ranks = make_ranks(sizes=(48, 12, 4))
    ranks.each(lambda world: world.add(10))
    ranks.until(lambda: ranks.worlds[0].mover.slots_wanted == 6)
    ranks.check()
    assert {world.mover.slots_wanted for world in ranks.worlds} == {6}
    assert {world.mover.store.room() for world in ranks.worlds if world.mover.store} == {(0, 0)}
    assert {world.store.n_slots for world in ranks.worlds} == {4}


def test_a_new_slab_is_followed(make_ranks: Make, tmp_path: Path) -> None:
    ranks = make_ranks(3)
    old = ranks.on_nvme(4)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir(mode=0o700)
    ranks.until(lambda: ranks.owner.renewals == [1] and ranks.owner.writable)
    ranks.step()
    readers = [world.store._drives[0] for world in ranks.worlds[1:]]
    ranks.until(lambda: all(drive.transfers.serving and drive._opened == 1 for drive in readers))
    ranks.drop(ranks.promote(old))
    promotions = ranks.promote(old)
    ranks.until(lambda: bool((ranks.tables[0].state[old] == State.LOST).all()))
    ranks.drop(promotions)
    ranks.check()
    new = ranks.on_nvme(5)
    ranks.bring_up(new)


def test_what_is_being_written_when_the_ranks_part_is_the_first_ones(make_ranks: Make) -> None:
    ranks = make_ranks()
    held = ranks.engines[0].hold("write")
    pages = ranks.each(lambda world: world.add(3))
    ranks.until(lambda: bool(ranks.worlds[0].mover.busy))
    assert held.wait(1)
    for agreement in ranks.agreements:
        agreement.leave()
    other = ranks.worlds[1]
    other.mover.tick()
    assert other.states(pages) == [State.DIRTY] * 3
    assert other.mover.store is not None and not other.mover.store.writable and other.mover.store.alloc(1) is None
    held.release()
    first = ranks.worlds[0]
    first.wait(lambda: not first.mover.busy)
    assert first.states(pages) == [State.CLEAN] * 3
    for world in ranks.worlds:
        world.table.check()


def misbehave(engine: FaultEngine, pick: int) -> None:
    if pick < 2:
        engine.error("read" if pick else "write", errno.EIO, times=1)
    elif pick == 2:
        engine.flip("read", times=1)
    elif pick == 3:
        engine.delay("read", 0.003, times=4)
    else:
        engine.clear()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_steps_leave_all_ranks_alike(make_ranks: Make, seed: int) -> None:
    """Each rank's drive fails in its own way and time."""
    ranks, rng = make_ranks(3), random.Random(seed)
    faults = 0
    for _ in range(400):
        roll, first = rng.random(), ranks.worlds[0]
        if roll < 0.25:
            parent = rng.choice([None, *sorted(first.key)])
            n = rng.randint(1, 4)
            backups = [world.backup(n, parent) for world in ranks.worlds]
            for world, backup in zip(ranks.worlds, backups, strict=True):
                if backup is not None:
                    world.finish_backup(backup)
        elif roll < 0.45 and first.key:
            path = first.path(rng.choice(sorted(first.key)))
            ranks.promote(path)
        elif roll < 0.60 and first.promotions:
            at = rng.randrange(len(first.promotions))
            ranks.drop([world.promotions[at] for world in ranks.worlds])
        elif roll < 0.70 and first.key:
            leaf = rng.choice(first.leaves())
            ranks.each(lambda world, leaf=leaf: world.free(np.array([leaf], np.int64)))  # type: ignore[misc]
        elif roll < 0.80:
            misbehave(rng.choice(ranks.engines), rng.randrange(5))
            faults += 1
        ranks.step()
        ranks.check()
    for engine in ranks.engines:
        engine.clear()
    while ranks.worlds[0].promotions:
        ranks.drop([world.promotions[0] for world in ranks.worlds])
    ranks.until(lambda: not any(world.mover.busy for world in ranks.worlds))
    ranks.check()
    stats = [world.mover.stats for world in ranks.worlds]
    assert faults > 10 and stats[0].written > 20 and stats[0].promoted > 0 and stats[0].read_failures > 0, stats[0]
    assert {(each.written, each.promoted, each.read_failures, each.lost) for each in stats} == {
        (stats[0].written, stats[0].promoted, stats[0].read_failures, stats[0].lost)
    }
    assert [world.store.stats()["write_pages"] for world in ranks.worlds] == [stats[0].written, 0, 0]
