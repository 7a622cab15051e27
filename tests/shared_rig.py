"""Ranks with the same bytes, in one process and in lockstep: a mover each, one store, and what is borrowed of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from mover_fakes import Clock, World

from radixtier.footprint import footprint
from radixtier.identity import StoreIdentity
from radixtier.io.faults import FaultEngine
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.posix import PosixEngine
from radixtier.mover import Mover, Promotion
from radixtier.ranks import Agreement, SharedStore
from radixtier.store.borrowed import BorrowedStore
from radixtier.store.store import PageStore
from radixtier.tree.residency import WRITE, Pages, ResidencyTable
from radixtier.tree.tiertree import TierTree

T = TypeVar("T")

WAIT = 20.0
"""Seconds that any wait may take at most."""

PAGE = 4096
"""Bytes of a page."""

SIZES = (48, 12, 36)
"""Handles, frames and slots."""


class Solo:
    """A group whose members reduce outside of it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def minimum(self, values: Any) -> Any:
        return values


class SharedRanks:
    """All ranks; what is done to one is done to each."""

    def __init__(self, directory: Path, ranks: int, sizes: tuple[int, int, int] = SIZES, scrub_rate: int = 0) -> None:
        self.directory = directory
        self.engines: list[FaultEngine] = []
        self.agreements = [Agreement(Solo(rank, ranks)) for rank in range(ranks)]
        self.worlds = [self._world(rank, sizes, scrub_rate) for rank in range(ranks)]

    def _world(self, rank: int, sizes: tuple[int, int, int], scrub_rate: int) -> World:
        n_handles, n_frames, n_slots = sizes
        base = aligned_memory(n_frames * PAGE)
        table, clock = ResidencyTable(n_handles, n_frames), Clock()
        mover = Mover(table, TierTree(table), None, page_bytes=PAGE, clock=clock, scrub_rate=scrub_rate)
        store = self.open(rank, FrameBuffer(base, n_frames, [(0, PAGE, PAGE)]), n_slots, mover.io_done.set)
        mover.store = cast(PageStore, SharedStore(store, self.agreements[rank]))
        return World(table, mover, store, np.frombuffer(base, np.uint8).reshape(n_frames, PAGE), clock)

    def open(self, rank: int, frames: FrameBuffer, n_slots: int, wake: Callable[[], None]) -> PageStore | BorrowedStore:
        self.engines.append(FaultEngine(PosixEngine(direct=False), seed=rank))
        common: dict[str, Any] = {
            "page_tokens": 2, "wake": wake, "threads": 2, "io_bytes": 2 * PAGE,
            "identity": StoreIdentity("weights", "uint8", "page_first", 2, 1, 1, 1, 1, attention="mla"),
        }  # fmt: skip
        if rank:
            return BorrowedStore([self.directory], frames, engine=lambda _: self._engine(rank), **common)
        capacity = footprint(n_slots, PAGE, 2)
        return PageStore([self.directory], capacity, frames, engine=lambda _: self._engine(rank), **common)

    def _engine(self, rank: int) -> FaultEngine:
        """Return the engine of a rank; a new one for a new slab."""
        if len(getattr(self, "worlds", [])) > rank:
            self.engines[rank] = FaultEngine(PosixEngine(direct=False), seed=rank)
        return self.engines[rank]

    @property
    def owner(self) -> PageStore:
        return cast(PageStore, self.worlds[0].store)

    @property
    def tables(self) -> list[ResidencyTable]:
        return [world.table for world in self.worlds]

    def each(self, act: Callable[[World], T]) -> T:
        """Do the same on every rank; returns what the first one says, which all say."""
        said = [act(world) for world in self.worlds]
        if isinstance(said[0], np.ndarray):
            assert all(np.array_equal(said[0], other) for other in said)
        return said[0]

    def step(self) -> None:
        """One step of the scheduler of every rank."""
        agreed = np.minimum.reduce([agreement.offer() for agreement in self.agreements])
        for agreement in self.agreements:
            agreement.learn(agreed.copy())
        for world in self.worlds:
            world.clock.now += 1.0
            world.mover.tick()

    def until(self, true: Callable[[], bool]) -> None:
        """Take steps until something is so."""
        end = time.monotonic() + WAIT
        while not true():
            assert time.monotonic() < end, "it never came to that"
            self.step()
            time.sleep(0.001)

    def quiet(self) -> None:
        """Take steps until nothing moves and nothing is to be written, and hold the ranks against each other."""
        self.until(lambda: not any(w.mover.busy or w.mover.writes.pending for w in self.worlds))
        self.check()

    def on_nvme(self, n: int) -> Pages:
        """A path of ``n`` pages that is in no frame of any rank."""
        pages = self.each(lambda world: world.add(n))
        self.quiet()
        self.each(lambda world: world.demote(world.table.n_frames))
        assert all(table.is_cold(pages).all() for table in self.tables)
        return pages

    def promote(self, pages: Pages) -> list[Promotion]:
        return [world.promote(pages) for world in self.worlds]

    def drop(self, promotions: list[Promotion]) -> None:
        for world, promotion in zip(self.worlds, promotions, strict=True):
            world.drop(promotion)

    def bring_up(self, pages: Pages) -> None:
        """Promote a path on every rank, load it, which compares its bytes, and let go."""
        promotions = self.promote(pages)
        self.until(lambda: promotions[0].ready(self.tables[0]))
        for world, promotion in zip(self.worlds, promotions, strict=True):
            world.load(promotion.pages)
            world.drop(promotion)
            world.finish_load()
        self.check()

    def check(self) -> None:
        """Every account of every rank, and that they are the same on all."""
        first = self.tables[0]
        for world in self.worlds:
            world.check()
            for name in ("state", "flight", "mark", "lease", "hold", "frame", "run", "key", "count"):
                assert np.array_equal(getattr(world.table, name), getattr(first, name)), name
            settled = first.flight & WRITE == 0
            assert np.array_equal(world.table.slot[settled], first.slot[settled]), "places"
            assert np.array_equal(world.table.checksum, first.checksum), "checksums"
        store = self.owner
        assert store.used_slots >= int((first.slot >= 0).sum())
        assert store.used_slots + store.free_slots + store.quarantined == store.n_slots

    def close(self) -> None:
        """Give everything up; every count must end where it started."""
        for engine in self.engines:
            engine.clear()
        while self.worlds[0].promotions:
            self.drop([world.promotions[0] for world in self.worlds])
        self.each(World.clear)
        self.until(lambda: not any(world.mover.busy for world in self.worlds))
        self.until(lambda: self.owner.used_slots == 0)
        for world in self.worlds:
            world.check_empty()
        for agreement in self.agreements:
            agreement.leave()
        assert all(world.mover.close(WAIT) for world in self.worlds)
