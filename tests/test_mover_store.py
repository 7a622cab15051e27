"""The mover over the real store and a drive that misbehaves: bytes right from end to end, accounts exact."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from mover_fakes import Clock, World

from radixtier.footprint import HEADER_BYTES, footprint, slot_bytes
from radixtier.identity import StoreIdentity
from radixtier.io.faults import FaultEngine
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.probe import choose_engine
from radixtier.mover import Mover
from radixtier.store.store import PageStore
from radixtier.tree.residency import Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST
ALIGNED, ODD = 4096, 700
"""Bytes of a page: as O_DIRECT likes it, and not."""
CHUNK = 3
"""Pages per transfer."""


class RealWorld(World):
    """A world whose store is the real one, in a directory, behind a fault engine."""

    closed = False

    def __init__(self, directory: Path, n_handles: int, n_frames: int, n_slots: int, page_bytes: int = ALIGNED) -> None:
        base = aligned_memory(n_frames * page_bytes)
        frames = FrameBuffer(base, n_frames, [(0, page_bytes, page_bytes)])
        table, clock = ResidencyTable(n_handles, n_frames), Clock()
        mover = Mover(table, TierTree(table), None, page_bytes=page_bytes, clock=clock)
        self.engine = FaultEngine(choose_engine("auto", directory).engine, seed=1)
        self.slot_bytes = slot_bytes(page_bytes)
        mover.store = PageStore(
            [directory],
            footprint(n_slots, page_bytes, self.page_size),
            frames,
            page_tokens=self.page_size,
            identity=StoreIdentity("weights", "uint8", "page_first", self.page_size, 1, 1, 1, 1),
            engine=lambda _: self.engine,
            threads=4,
            io_bytes=CHUNK * self.slot_bytes,
            wake=mover.io_done.set,
        )
        (self.slab,) = directory.glob("*.slab")
        memory = np.frombuffer(base, np.uint8).reshape(n_frames, page_bytes)
        super().__init__(table, mover, mover.store, memory, clock)

    def quiet(self) -> None:
        """Wait until all that can be written is, and nothing is in flight; a drive in trouble gets its chance."""
        self.wait(self._quiet)
        self.check()

    def _quiet(self) -> bool:
        self.clock.now += 1.0
        return not self.mover.busy and not self.mover.writes.pending

    def settled(self) -> None:
        """Wait until nothing is in flight."""
        self.mover.tick()
        self.wait(lambda: not self.mover.busy)
        self.check()

    def forgotten(self) -> None:
        """Wait until the journal has forgotten what was given back."""
        self.wait(lambda: self.store.used_slots == int((self.table.slot >= 0).sum()))

    def on_nvme(self, n: int) -> Pages:
        """A path of ``n`` pages that is in no frame."""
        pages = self.add(n)
        self.quiet()
        self.demote(self.table.n_frames)
        assert self.states(pages) == [COLD] * n
        return pages

    def bring_up(self, pages: Pages) -> None:
        """Promote, load and let go."""
        promotion = self.promote(pages)
        self.wait(lambda: promotion.ready(self.table))
        self.load(promotion.pages)
        self.drop(promotion)
        self.finish_load()

    def range_of(self, page: int) -> tuple[int, int]:
        """Where a page lies in the slab, in bytes."""
        start = HEADER_BYTES + int(self.table.slot[page]) * self.slot_bytes
        return start, start + self.slot_bytes

    def check(self) -> None:
        super().check()
        assert self.store.used_slots >= int((self.table.slot >= 0).sum())
        assert self.store.used_slots + self.store.free_slots + self.store.quarantined == self.store.n_slots


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., RealWorld]]:
    """Makes worlds in directories of their own; of each, every count must end where it started."""
    worlds: list[RealWorld] = []

    def make(*sizes: int, page_bytes: int = ALIGNED) -> RealWorld:
        directory = tmp_path / f"nvme{len(worlds)}"
        directory.mkdir(mode=0o700)
        worlds.append(RealWorld(directory, *sizes, page_bytes=page_bytes))
        return worlds[-1]

    yield make
    for world in worlds:
        world.engine.clear()
        for promotion in list(world.promotions):
            world.drop(promotion)
        world.clear()
        assert world.mover.drain(20.0)
        if not world.closed:
            world.forgotten()
            world.check_empty()
        assert world.mover.close(20.0)


@pytest.mark.parametrize("page_bytes", [ALIGNED, ODD])
def test_many_times_dram_goes_down_and_comes_back_as_it_was(
    make_world: Callable[..., RealWorld], page_bytes: int
) -> None:
    world = make_world(64, 6, 60, page_bytes=page_bytes)
    ends: list[int] = []
    for i in range(20):
        parent = ends[i // 2] if i % 3 else None
        ends.append(int(world.add(3, parent)[-1]))
        world.quiet()
    assert world.mover.stats.written == 60 == world.store.used_slots
    assert int(world.table.count[COLD]) >= 54
    for page in random.Random(0).sample(ends, 20):
        path = world.path(page)
        for start in range(0, len(path), world.mover.promotions.hold_limit):
            world.bring_up(path[start : start + world.mover.promotions.hold_limit])
    world.check()
    assert world.mover.stats.read_failures == 0 == world.mover.stats.write_failures


def test_a_device_that_fails_in_the_middle_costs_only_what_it_failed(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 10, 20)
    start = HEADER_BYTES + 2 * world.slot_bytes
    world.engine.error("write", errno.EIO, within=(start, start + world.slot_bytes), times=2)
    pages = world.add(6)
    world.settled()
    assert world.states(pages) == [CLEAN] * 2 + [DIRTY] + [CLEAN] * 3
    assert world.mover.writes.failing and world.store.quarantined == 1
    world.quiet()
    assert world.states(pages) == [CLEAN] * 6
    world.demote(10)
    world.bring_up(pages)


def test_a_full_disk_keeps_pages_in_dram_until_there_is_room(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 10, 20)
    full = world.engine.full(at=HEADER_BYTES + 4 * world.slot_bytes)
    pages = world.add(6)
    world.settled()
    assert world.states(pages) == [CLEAN] * 4 + [DIRTY] * 2 and full.hits > 0
    world.load(pages)
    world.finish_load()
    world.engine.clear()
    world.quiet()
    assert world.states(pages) == [CLEAN] * 6


def test_one_bad_sector_costs_one_pause_and_no_page(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(300, 60, 280)
    start = HEADER_BYTES + 20 * world.slot_bytes
    world.engine.error("write", errno.EIO, within=(start, start + world.slot_bytes))
    pages = np.concatenate([world.add(4) for _ in range(12)])
    world.quiet()
    assert world.states(pages) == [CLEAN] * 48
    assert 1 <= world.mover.stats.write_failures <= CHUNK and 1 <= world.store.quarantined <= CHUNK
    world.bring_up(pages)


def test_a_short_write_is_continued_and_one_that_stops_is_a_failure(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 10, 20)
    world.engine.short("write", world.slot_bytes, times=1)
    world.engine.short("write", 0, times=1, skip=1)
    pages = world.add(6)
    world.settled()
    assert 1 <= world.states(pages).count(DIRTY) <= CHUNK
    world.quiet()
    world.demote(10)
    world.bring_up(pages)


@pytest.mark.parametrize("page_bytes", [ALIGNED, ODD])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_a_flipped_byte_anywhere_in_a_page_is_never_returned(
    make_world: Callable[..., RealWorld], at: float, page_bytes: int
) -> None:
    world = make_world(20, 8, 20, page_bytes=page_bytes)
    pages = world.on_nvme(6)
    with world.slab.open("r+b") as file:
        offset = world.range_of(int(pages[3]))[0] + int(at * (page_bytes - 1))
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())
    promotion = world.promote(pages)
    world.wait(lambda: promotion.ready(world.table) and not world.mover.busy)
    assert world.states(pages) == [CLEAN] * 3 + [LOST] + [CLEAN] * 2
    assert world.mover.stats.corrupt == 1 and world.store.stats()["corrupt"] == 1
    world.check()
    backup = world.refill(pages[3:4])
    assert backup is not None
    world.finish_backup(backup)
    world.drop(promotion)
    world.quiet()
    world.demote(8)
    world.bring_up(pages)
    assert world.mover.stats.corrupt == 1


def test_a_torn_write_that_claims_success_is_found_by_the_read(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 8, 20)
    world.engine.tear("write", times=1)
    pages = world.on_nvme(6)
    promotion = world.promote(pages)
    world.wait(lambda: promotion.ready(world.table) and not world.mover.busy)
    assert 1 <= world.states(pages).count(LOST) <= CHUNK
    world.check()


def test_a_file_cut_in_the_middle_of_a_page_gives_the_pages_before_it(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 8, 20)
    pages = world.on_nvme(6)
    os.truncate(world.slab, world.range_of(int(pages[3]))[0] + world.slot_bytes // 2)
    promotion = world.promote(pages)
    world.wait(lambda: promotion.ready(world.table) and not world.mover.busy)
    assert world.states(pages) == [CLEAN] * 3 + [LOST] * 3
    assert world.mover.stats.read_failures == 3
    world.check()


def test_an_unreadable_page_is_tried_once_and_then_a_miss(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 8, 20)
    pages = world.on_nvme(4)
    fault = world.engine.error("read", errno.EIO, within=world.range_of(int(pages[2])))
    for _ in range(3):
        promotion = world.promote(pages)
        world.wait(lambda promotion=promotion: promotion.ready(world.table) and not world.mover.busy)
        world.drop(promotion)
    assert world.states(pages) == [CLEAN] * 2 + [LOST] + [CLEAN]
    assert fault.hits <= 2, "a transfer that stops short at the page, and one try at it"
    assert world.mover.stats.read_failures == 1


# ---- things end while a transfer runs -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["free", "clear"])
def test_frames_of_a_path_freed_under_a_read_are_not_reused_before_it_ends(
    make_world: Callable[..., RealWorld], how: str
) -> None:
    world = make_world(40, 8, 40)
    pages = world.on_nvme(3)
    held = world.engine.hold("read")
    promotion = world.promote(pages)
    assert held.wait(1)
    world.drop(promotion)
    world.free(pages) if how == "free" else world.clear()
    assert world.table.free_frames == 5 and world.store.used_slots == 3
    others = world.add(5)
    assert world.mover.alloc(1) is None
    held.release()
    world.wait(lambda: not world.mover.busy)
    assert world.table.free_frames == 3
    world.quiet()
    world.load(others)
    world.finish_load()


@pytest.mark.parametrize("how", ["free", "clear"])
def test_frames_of_a_path_freed_under_a_write_are_not_reused_before_it_ends(
    make_world: Callable[..., RealWorld], how: str
) -> None:
    world = make_world(40, 8, 8)
    pages = world.add(5)
    held = world.engine.hold("write")
    world.mover.tick()
    assert held.wait(1)
    world.free(pages) if how == "free" else world.clear()
    others = world.add(3)
    assert world.mover.alloc(1) is None and world.store.free_slots == 3
    world.mover.tick()
    held.release()
    world.quiet()
    assert world.table.free_frames == 5 and world.store.used_slots == 3
    world.demote(8)
    world.bring_up(others)


def test_a_request_that_gives_up_leaves_the_pages_to_the_other_that_waits(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(60, 30, 60)
    pages = world.on_nvme(24)
    held = world.engine.hold("read")
    first, second = world.promote(pages), world.promote(pages)
    assert held.wait(4), "four threads, three pages each"
    world.drop(first)
    world.check()
    held.release()
    world.wait(lambda: second.ready(world.table))
    assert world.states(pages) == [CLEAN] * 24
    assert world.store.stats()["cancelled"] == 12 and world.store.stats()["read_pages"] == 24
    world.check()


def test_close_waits_no_longer_than_it_may_and_says_so(make_world: Callable[..., RealWorld]) -> None:
    world = make_world(20, 8, 20)
    pages = world.on_nvme(4)
    held = world.engine.hold("read")
    promotion = world.promote(pages)
    assert held.wait(1)
    assert not world.mover.drain(0.05)
    assert not world.mover.close(0.05)
    held.release()
    assert world.mover.close(20.0)
    world.closed = True
    world.drop(promotion)
    world.check()


# ---- everything at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_drive_that_fails_at_random_never_gives_wrong_bytes(
    make_world: Callable[..., RealWorld], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_PROBE_S", "LAST_PROBE_S"):
        monkeypatch.setattr(f"radixtier.store.health.{name}", 0.001)
    world = make_world(60, 20, 48, page_bytes=(ALIGNED, ODD)[seed % 2])
    for op in ("read", "write"):
        world.engine.delay(op, 0.001, chance=0.3)
        world.engine.error(op, errno.EIO, chance=0.04)
        world.engine.flip(op, chance=0.04)
        world.engine.short(op, 4096, chance=0.1)
        world.engine.tear(op, chance=0.03)
    rng = random.Random(seed)
    for _ in range(800):
        random_move(world, rng)
        world.mover.tick()
        world.check()
    stats = world.mover.stats
    assert min(stats.promoted, stats.written, stats.demoted) > 10, "else this proves little"


def random_move(world: World, rng: random.Random) -> None:
    pages = sorted(world.key)
    what = rng.choice(["insert"] * 4 + ["promote"] * 5 + ["drop"] * 6 + ["load", "load", "unload", "unload"]
                      + ["evict"] * 4 + ["refill", "refill", "wait", "wait", "clear"])  # fmt: skip
    if what == "insert":
        if backup := world.backup(rng.randint(1, 4), rng.choice([None, *pages])):
            world.finish_backup(backup, ok=rng.random() < 0.95)
    elif what == "drop" and world.promotions:
        world.drop(rng.choice(world.promotions))
    elif what == "unload" and world.loads:
        world.finish_load()
    elif what == "wait":
        world.mover.io_done.wait(0.005)
        world.mover.io_done.clear()
        world.clock.now += rng.choice([0.1, 1.0, 60.0])
    elif what == "clear" and rng.random() < 0.1:
        world.clear()
    elif pages:
        path = world.path(rng.choice(pages))
        state = world.table.state[path]
        lost = path[state == LOST]
        if what == "refill" and len(lost):
            if backup := world.refill(lost):
                world.finish_backup(backup)
        elif what == "promote" and len(world.promotions) < 5:
            stop = np.flatnonzero((state == LOST) | (state == State.FILLING))
            world.promote(path[: stop[0]] if len(stop) else path)
        elif what == "load" and world.table.in_dram(path).all() and len(world.loads) < 3:
            world.load(path)
        elif what == "evict" and (world.mover.slots_wanted or world.table.free_handles < 8):
            world.free(np.array([rng.choice(world.leaves())], np.int64))
