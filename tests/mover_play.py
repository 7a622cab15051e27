"""Everything that can happen around a mover, as moves that a Hypothesis machine or a seeded generator chooses from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from fake_store import CORRUPT, ERROR, OK, PAGE_BYTES
from mover_fakes import Answers, World, fake_world

from radixtier.mover import Promotion, Trigger
from radixtier.policy.admission import Candidate, Verdict
from radixtier.tree.residency import DOOMED, NONE, PARKED, Pages, State

T = TypeVar("T")

ANSWERS = [[Verdict.ADMIT], [Verdict.ADMIT, Verdict.REJECT, Verdict.THROTTLED]]
AHEAD = [Trigger.RETURN, Trigger.RETURN, Trigger.HINT, Trigger.IDLE, Trigger.PROBE]
FATES = [OK] * 8 + [ERROR, CORRUPT]
BOUND = 60
"""Ticks within which whatever can happen has happened, if the drive works."""


class Chooser(Protocol):
    """Where the choices come from."""

    def one(self, of: Sequence[T]) -> T: ...

    def number(self, low: int, high: int) -> int: ...


class Seeded:
    """Choices of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def one(self, of: Sequence[T]) -> T:
        return self._rng.choice(of)

    def number(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)


class Play:
    """One world, which ``make`` builds, and the moves in it. Each move does nothing where it is not possible."""

    def __init__(self, choose: Chooser, make: Callable[..., World] = fake_world) -> None:
        self.choose = choose
        frames = choose.number(2, 10)
        self.answers = choose.one(ANSWERS)
        self.world = make(
            frames + choose.number(0, 24), frames, choose.number(1, 30), choose.one([0, 1, 3, 8]),
            max_write_pages=choose.number(1, 8),
            scrub_rate=choose.one([0, PAGE_BYTES, 100 * PAGE_BYTES]), admission=Answers(self._answer),
        )  # fmt: skip
        promotions = self.world.mover.promotions
        promotions.job_pages = choose.number(1, 5)
        if choose.number(0, 3):
            # Paths are short and branch off everywhere here: else hardly any would go straight to HBM.
            promotions.landings._has_room = lambda n, pages: False  # type: ignore[method-assign]
            promotions.landings._wanted_again = lambda run: run % 4 == 0  # type: ignore[method-assign]
        # A budget of so many pages, in units of a drive that moves a page per second.
        budget = choose.one([1, 3, 1000]) * PAGE_BYTES
        promotions._allowed_bytes = lambda: budget  # type: ignore[method-assign]
        self.brought = 0
        """Promotions ahead that were asked for."""

    def _answer(self, candidate: Candidate) -> Verdict:
        return self.choose.one(self.answers)

    # ---- the tree -----------------------------------------------------------------------------------

    def insert(self) -> None:
        """A run whose copy from HBM is over at once."""
        backup = self.world.backup(self.choose.number(1, 5), self._any_page())
        if backup is not None:
            self.world.finish_backup(backup)

    def backup(self) -> None:
        self.world.backup(self.choose.number(1, 5), self._any_page())

    def _any_page(self) -> int | None:
        return self.choose.one([None, *sorted(self.world.key)])

    def finish_backup(self) -> None:
        if self.world.backups:
            self.world.finish_backup(self.choose.one(self.world.backups), ok=self.choose.number(0, 4) > 0)

    def refill(self) -> None:
        """Pages that were computed again, or are in HBM still, are copied down once more."""
        table = self.world.table
        gone = [p for p in sorted(self.world.key) if table.state[p] in (State.LOST, State.COLD)]
        if gone:
            n = self.choose.number(1, min(6, len(gone)))
            self.world.refill(np.array(gone[:n], np.int64))

    def came_to_hbm(self) -> None:
        if self.world.key:
            self.world.came_to_hbm(self.some_path())

    def left_hbm(self) -> None:
        there = sorted(self.world.hbm)
        if there:
            self.world.left_hbm(np.array(there[: self.choose.number(1, len(there))], np.int64))

    def evict(self) -> None:
        """Leaf first, up to a few pages of one path; a page that is being copied may go, too."""
        if self.world.key:
            gone: list[int] = []
            at: int | None = self.choose.one(self.world.leaves())
            n = self.choose.number(1, 4)
            while at is not None and len(gone) < n:
                gone.append(at)
                at = self.world.parent[at]
                if any(up == at and page not in gone for page, up in self.world.parent.items()):
                    break
            self.world.free(np.array(gone, np.int64))

    def demote(self) -> None:
        """A backup needs room and is over as soon as it has it."""
        pages = self.world.mover.alloc(self.choose.number(1, self.world.table.n_frames))
        if pages is not None:
            self.world.mover.fill_failed(pages)
            self.world.mover.free(pages)

    def clear(self) -> None:
        self.world.clear()

    def _any_run(self) -> int | None:
        runs = sorted(self.world.mover.tree.runs)
        return self.choose.one(runs) if runs else None

    def sink(self) -> None:
        if (run := self._any_run()) is not None:
            self.world.mover.tree.sink(run)

    def pin(self) -> None:
        """Pin some pages of a run, or unpin it."""
        if (run := self._any_run()) is not None:
            self.world.pins[run] = self.choose.number(0, 3)

    def expect(self) -> None:
        """A use is predicted, or is not any more."""
        if (run := self._any_run()) is not None:
            when = self.choose.one([None, 1.0, 5.0, 50.0])
            self.world.mover.tree.expect(run, None if when is None else self.world.mover._clock() + when)

    # ---- requests -----------------------------------------------------------------------------------

    def some_path(self) -> Pages:
        """A path up to its first page that cannot be delivered."""
        path = self.world.path(self.choose.one(sorted(self.world.key)))
        state = self.world.table.state[path]
        return leading(path, (state != State.LOST) & (state != State.FILLING))

    def promote(self) -> None:
        if self.world.key and len(self.world.promotions) < 6:
            self.world.promote(self.some_path())

    def cold_requests(self) -> None:
        """Those that wait go, what can leave DRAM leaves it, and others ask for some paths: some land, some fail."""
        world = self.world
        for promotion in list(world.promotions):
            world.drop(promotion)
        world.mover.give_up_frames(np.flatnonzero(world.table.unused(np.arange(world.table.n_handles), State.CLEAN)))
        for _ in range(self.choose.number(1, 3)):
            self.promote()
        self.finish_job()
        world.mover.tick()

    def rank(self) -> None:
        """The scheduler reorders those that wait."""
        if self.world.promotions:
            self.choose.one(self.world.promotions).rank = float(self.choose.number(0, 9))

    def keep(self) -> None:
        """A hint wants a path on the drive."""
        if (run := self._any_run()) is not None:
            self.world.mover.parking.admit([run])

    def request(self) -> None:
        """A request uses a path."""
        if self.world.key:
            self.world.mover.used_by_request(self.choose.one(sorted(self.world.key)))

    def ahead(self) -> None:
        """A path is to come up for a request that is expected."""
        if self.world.key:
            self.brought += 1
            self.world.ahead(self.some_path(), self.choose.one(AHEAD))

    def drop(self) -> None:
        if self.world.promotions:
            self.world.drop(self.choose.one(self.world.promotions))

    def load(self) -> None:
        if self.world.key and len(self.world.loads) < 3:
            path = self.some_path()
            path = leading(path, self.world.table.in_dram(path))
            if len(path):
                self.world.load(path)

    def finish_load(self) -> None:
        if self.world.loads:
            self.world.finish_load(self.choose.number(0, len(self.world.loads) - 1))

    # ---- the drive ----------------------------------------------------------------------------------

    def finish_job(self) -> None:
        jobs = self.world.store.jobs
        if jobs:
            self.world.store.finish(self.choose.one(list(jobs)), [self.choose.one(FATES) for _ in range(4)])

    def finish_all(self) -> None:
        self.world.store.finish_all()
        self.world.mover.tick()

    def start_job(self) -> None:
        jobs = self.world.store.jobs
        if jobs:
            self.world.store.start(self.choose.one(list(jobs)), self.choose.number(1, 5))

    def tick(self) -> None:
        self.world.mover.tick()

    def pass_time(self) -> None:
        self.world.clock.now += self.choose.one([0.5, 1.0, 70.0])

    def switch(self) -> None:
        """The drive takes no more pages, or does again."""
        self.world.store.writable = not self.world.store.writable

    def restore(self) -> None:
        """An earlier run left a few pages that hang from a page in the tree."""
        world = self.world
        n = self.choose.number(1, 3)
        if world.store.writable and n <= world.store.free_slots:
            world.restore(n, self._any_page())

    # ---- a way forward ------------------------------------------------------------------------------

    def lone_request(self) -> None:
        """With all else over and a drive that works, a path is up, or known to be lost, in bounded ticks."""
        self.end_everything()
        if not self.world.key:
            return
        path = self.some_path()
        promotion = self.world.promote(path)
        self.settle(promotion)
        table = self.world.table
        assert promotion.ready(table), "a lone request waits for ever"
        assert len(promotion.pages) == min(len(path), self.world.mover.promotions.hold_limit)
        assert promotion.held or not len(path)
        there = leading(promotion.pages, table.state[promotion.pages] != State.LOST)
        assert table.in_dram(there).all()
        self.world.drop(promotion)

    def waiting_line(self) -> None:
        """With a drive that works, all that wait are served in bounded ticks, whatever their ranks are and become."""
        self.end_everything()
        for _ in range(4 if self.world.key else 0):
            self.world.promote(self.some_path(), float(self.choose.number(0, 3)))
        for _ in range(6):
            for promotion in list(self.world.promotions):
                if promotion.ready(self.world.table):
                    self.world.drop(promotion)
            self.rank()
            self.settle(*self.world.promotions, rounds=BOUND // 4)
        assert all(p.ready(self.world.table) for p in self.world.promotions), "some wait for each other"

    def end_everything(self) -> None:
        world = self.world
        while world.loads:
            world.finish_load()
        while world.backups:
            world.finish_backup(world.backups[0])
        while world.promotions:
            world.drop(world.promotions[0])

    def settle(self, *promotions: Promotion, rounds: int = BOUND) -> None:
        """Tick with a drive that works; where slots are short the tree drops leaves, as SGLang's does."""
        world, table = self.world, self.world.table
        world.store.writable = True
        for _ in range(rounds):
            world.clock.now += 100.0
            world.mover.tick()
            world.store.finish_all()
            keep = {page for promotion in promotions if promotion.held for page in promotion.pages.tolist()}
            leaves = [leaf for leaf in world.leaves() if leaf not in keep]
            if world.mover.slots_wanted and leaves:
                world.free(np.array(leaves[: world.mover.slots_wanted], np.int64))
        world.mover.tick()
        if rounds == BOUND:
            dirty = (table.state == State.DIRTY) & (table.mark & PARKED == 0)
            assert not dirty.any() or not world.store.free_slots, "dirty pages that nobody writes"
        self.check()

    def check(self) -> None:
        """What holds after every move."""
        self.world.check()
        table, tree = self.world.table, self.world.mover.tree
        runs = table.run[table.run != NONE].tolist()
        assert set(runs) == set(tree.runs), "runs of pages and runs that exist differ"
        assert {n: run.live for n, run in tree.runs.items()} == {n: runs.count(n) for n in set(runs)}

    def end(self) -> None:
        """Everything is over and dropped: every count is where it started."""
        world = self.world
        world.store.writable = True
        self.end_everything()
        world.free(np.array(sorted(world.key), np.int64))
        world.settle(5)
        assert not (world.table.flight & DOOMED).any()
        assert len(world.awaited) == self.brought, "somebody was not told, or twice"
        world.check_empty()
        assert world.mover.close(1.0)


def leading(pages: Pages, good: Any) -> Pages:
    """The pages in front of the first that is not good."""
    return pages if good.all() else pages[: int(np.argmin(good))]
