"""The mover under any order of events: accounts exact after every step, bytes right, and always a way forward."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mover_fakes import CORRUPT, ERROR, OK, SCALE, World, fake_world

from radixtier.mover import Promotion
from radixtier.tree.residency import DOOMED, NONE, State

FATES = st.lists(st.sampled_from([OK, OK, OK, ERROR, CORRUPT]), max_size=5)
BOUND = 60
"""Ticks within which whatever can happen has happened, if the drive works."""


class MoverMachine(RuleBasedStateMachine):
    """Any mix of backups, loads, requests, evictions, flushes, and I/O that ends in any order and way."""

    world: World

    @initialize(
        frames=st.integers(2, 8), spare=st.integers(0, 16), slots=st.integers(1, 20), chunk=st.integers(1, 4)
    )
    def start(self, frames: int, spare: int, slots: int, chunk: int) -> None:
        self.world = fake_world(frames + spare, frames, slots, max_write_pages=2 * chunk)
        self.world.mover.read_job_pages = chunk

    def pick(self, data: Any, candidates: list[Any]) -> Any:
        return data.draw(st.sampled_from(candidates))

    def some_path(self, data: Any) -> Any:
        """The part of a path in front of its first page that cannot be delivered."""
        path = self.world.path(self.pick(data, sorted(self.world.key)))
        state = self.world.table.state[path]
        stops = np.flatnonzero((state == State.LOST) | (state == State.FILLING))
        return path[: stops[0]] if len(stops) else path

    # ---- backups ------------------------------------------------------------------------------------

    @rule(n=st.integers(1, 5), data=st.data())
    def backup(self, n: int, data: Any) -> None:
        parents = [None, *sorted(self.world.key)]
        self.world.backup(n, self.pick(data, parents))

    @precondition(lambda self: self.world.backups)
    @rule(data=st.data(), ok=st.sampled_from([True, True, True, False]))
    def finish_backup(self, data: Any, ok: bool) -> None:
        self.world.finish_backup(self.pick(data, self.world.backups), ok)

    @precondition(lambda self: self.lost_pages())
    @rule(data=st.data())
    def refill(self, data: Any) -> None:
        lost = self.lost_pages()
        self.world.refill(np.array(data.draw(st.lists(st.sampled_from(lost), min_size=1, unique=True)), np.int64))

    def lost_pages(self) -> list[int]:
        return [p for p in sorted(self.world.key) if self.world.table.state[p] == State.LOST]

    # ---- requests -----------------------------------------------------------------------------------

    @precondition(lambda self: self.world.key)
    @rule(data=st.data())
    def promote(self, data: Any) -> None:
        self.world.promote(self.some_path(data))

    @precondition(lambda self: self.world.promotions)
    @rule(data=st.data())
    def stop(self, data: Any) -> None:
        self.world.mover.stop(self.pick(data, self.world.promotions))

    @precondition(lambda self: self.world.promotions)
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        self.world.drop(self.pick(data, self.world.promotions))

    @precondition(lambda self: self.world.key)
    @rule(data=st.data())
    def load(self, data: Any) -> None:
        path = self.some_path(data)
        in_dram = self.world.table.in_dram(path)
        path = path if in_dram.all() else path[: int(np.argmin(in_dram))]
        if len(path):
            self.world.load(path)

    @precondition(lambda self: self.world.loads)
    @rule(data=st.data())
    def finish_load(self, data: Any) -> None:
        self.world.finish_load(data.draw(st.integers(0, len(self.world.loads) - 1)))

    # ---- the drive ----------------------------------------------------------------------------------

    @precondition(lambda self: self.world.store.jobs)
    @rule(data=st.data(), fates=FATES)
    def finish_job(self, data: Any, fates: list[str]) -> None:
        self.world.store.finish(self.pick(data, list(self.world.store.jobs)), fates)

    @precondition(lambda self: self.world.store.jobs)
    @rule(data=st.data(), pages=st.integers(1, 5))
    def start_job(self, data: Any, pages: int) -> None:
        self.world.store.start(self.pick(data, list(self.world.store.jobs)), pages)

    @rule()
    def tick(self) -> None:
        self.world.mover.tick()

    @rule(seconds=st.sampled_from([0.5, 1.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.now += seconds

    # ---- the tree -----------------------------------------------------------------------------------

    @precondition(lambda self: self.world.leaves())
    @rule(data=st.data(), n=st.integers(1, 4))
    def evict(self, data: Any, n: int) -> None:
        """Leaf first, part of a run or pages of several; a page that is being copied may go, too."""
        gone: list[int] = []
        at: int | None = self.pick(data, self.world.leaves())
        while at is not None and len(gone) < n:
            gone.append(at)
            at = self.world.parent[at]
            if any(up == at and page not in gone for page, up in self.world.parent.items()):
                break
        self.world.free(np.array(gone, np.int64))

    @precondition(lambda self: len(self.world.key) > 6)
    @rule()
    def clear(self) -> None:
        self.world.clear()

    # ---- what always holds --------------------------------------------------------------------------

    @invariant()
    def accounts_are_exact(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.check()
        for page in self.world.table.run[self.world.table.run != NONE].tolist():
            assert page in self.world.mover.tree.runs

    @precondition(lambda self: self.world.key)
    @rule(data=st.data())
    def a_lone_request_gets_its_pages(self, data: Any) -> None:
        """With all else over and a drive that works, a path is up, or known to be lost, in bounded ticks."""
        self.end_everything()
        path = self.some_path(data)
        promotion = self.world.promote(path)
        self.settle(promotion)
        assert promotion.ready(self.world.table), "a lone request waits for ever"
        state = self.world.table.state[promotion.pages]
        lost = np.flatnonzero(state == State.LOST)
        up_to = int(lost[0]) if len(lost) else len(state)
        assert self.world.table.in_dram(promotion.pages[:up_to]).all()
        assert len(promotion.pages) == min(len(path), self.world.mover.hold_limit)
        assert promotion.held or not len(path)
        self.world.drop(promotion)

    def end_everything(self) -> None:
        world = self.world
        while world.loads:
            world.finish_load()
        while world.backups:
            world.finish_backup(world.backups[0])
        while world.promotions:
            world.drop(world.promotions[0])

    def settle(self, promotion: Promotion) -> None:
        """Tick with a drive that works; where slots are short the tree drops leaves, as SGLang's does."""
        world = self.world
        keep = set(promotion.pages.tolist())
        for _ in range(BOUND):
            world.clock.now += 100.0
            world.mover.tick()
            world.store.finish_all()
            leaves = [leaf for leaf in world.leaves() if leaf not in keep]
            if world.mover.slots_wanted and leaves:
                world.free(np.array(leaves[: world.mover.slots_wanted], np.int64))
        world.mover.tick()
        dirty = world.table.count[State.DIRTY]
        assert not dirty or world.store.free_slots == 0, "dirty pages that nobody writes"
        world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        self.end_everything()
        world.free(np.array(sorted(world.key), np.int64))
        world.settle(5)
        assert not (world.table.flight & DOOMED).any()
        world.check_empty()
        assert world.mover.close(1.0)


TestMoverMachine = MoverMachine.TestCase
TestMoverMachine.settings = settings(
    max_examples=70 * SCALE,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
