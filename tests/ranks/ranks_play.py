"""A mover per rank over a fake store per rank: all make the same moves, and each store ends its jobs in its own way.

What a rank draws for a move, the others draw as well, and out of equally many choices: that they have the same ones is
what is tested first of all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fake_store import CORRUPT, ERROR, OK, PAGE_BYTES, FakeStore
from mover_fakes import World
from mover_play import BOUND, Chooser, Play, leading
from ranks_rig import Ranks

from radixtier.mover import Mover
from radixtier.ranks import AgreedStore
from radixtier.tree.residency import NONE, READ, VERIFY, WRITE, ResidencyTable, State
from radixtier.tree.tiertree import TierTree

T = TypeVar("T")

FATES = [OK] * 8 + [ERROR, CORRUPT]

EQUAL = ("state", "flight", "hold", "lease", "mark", "run", "frame", "key", "count")
"""Arrays of a table that are the same on all ranks."""


class RankStore(FakeStore):
    """A fake store with an order of its own in which slots go; it may close at any time, and is as slow as it is."""

    slot_bytes = PAGE_BYTES

    def __init__(self, *args: Any, seed: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.hurried = 0
        self._rng = random.Random(seed)
        self._rng.shuffle(self._free)

    def alloc(self, n: int) -> np.ndarray[Any, Any] | None:
        return super().alloc(n) if self.writable else None

    def hurry(self) -> None:
        self.hurried += 1

    def poll(self) -> list[Any]:
        draw = self._rng.random
        return [done._replace(queue_seconds=draw(), service_seconds=draw()) for done in super().poll()]


class RankWorld(World):
    """A world whose mover learns what became of a job when all ranks know."""

    def _check_store(self, store: FakeStore) -> None:
        table = self.table
        assert store.used == set(table.slot[table.slot >= 0].tolist()), (
            "slots without an owner, or owners of free slots"
        )
        assert len(store.used) + store.free_slots + len(store.aside) == store.n_slots
        in_flight = np.flatnonzero(table.flight & (READ | WRITE | VERIFY))
        assert set(store.in_flight()) <= set(table.slot[in_flight].tolist()), "jobs that the table does not know"
        nowhere = np.flatnonzero(table.slot < NONE)
        assert (table.flight[nowhere] & WRITE != 0).all(), "a place that there is not, of a page that is not written"
        assert self.mover.busy or not store.in_flight()
        for page, key in self.key.items():
            slot = int(table.slot[page])
            assert slot not in store.rows or store.rows[slot] == (key, tuple(self.tokens[page])), "a wrong row"
            if table.state[page] in (State.CLEAN, State.COLD) and slot not in store.rotten:
                assert store.disk[slot] == self.contents(key).tobytes(), f"wrong KV on NVMe of page {page}"


def rank_world(
    n_handles: int, n_frames: int, n_slots: int, n_landing: int = 0, *, ranks: Ranks, rank: int, **options: Any
) -> RankWorld:
    """The world of one rank."""
    memory = np.zeros((n_frames + n_landing, PAGE_BYTES), np.uint8)
    store = RankStore(n_slots, memory, n_landing, seed=rank)
    table, agreement = ResidencyTable(n_handles, n_frames, n_landing), ranks.agreements[rank]
    agreed: Any = AgreedStore(store, agreement)  # type: ignore[arg-type]
    tree = TierTree(table, clock=agreement.now)
    mover = Mover(table, tree, agreed, page_bytes=PAGE_BYTES, clock=agreement.now, **options)
    return RankWorld(table, mover, store, memory, ranks.clocks[rank])  # type: ignore[arg-type]


class Tape:
    """Choices that were made, for those who have to make the same ones."""

    def __init__(self, choose: Chooser) -> None:
        self.choose = choose
        self.made: list[tuple[int, int, int]] = []


class Same:
    """Choices of one rank: the first one makes them, the others find them on the tape."""

    def __init__(self, tape: Tape, first: bool) -> None:
        self._tape, self._first = tape, first
        self.at = 0

    def one(self, of: Sequence[T]) -> T:
        return of[self.number(0, len(of) - 1)]

    def number(self, low: int, high: int) -> int:
        made = self._tape.made
        if self._first:
            made.append((low, high, self._tape.choose.number(low, high)))
        assert self.at < len(made), "a rank has a choice that the first one had not"
        assert made[self.at][:2] == (low, high), "the ranks have different choices"
        self.at += 1
        return made[self.at - 1][2]


class RankPlay(Play):
    """What all ranks do; what only one store does is no part of it."""

    choose: Same

    def finish_job(self) -> None:
        pass


class RanksPlay:
    """Several ranks and the moves that they make together, or each by itself."""

    def __init__(self, choose: Chooser, ranks: Ranks) -> None:
        self.ranks = ranks
        self.tape = Tape(choose)
        self.plays = [
            RankPlay(Same(self.tape, rank == 0), partial(rank_world, ranks=ranks, rank=rank))
            for rank in range(ranks.size)
        ]
        self.impossible = 0
        """Writes that some rank had no slot for although all seemed to have some."""

    def together(self, name: str) -> None:
        """All make a move."""
        for play in self.plays:
            getattr(play, name)()
        self._note()

    def _note(self) -> None:
        assert len({play.choose.at for play in self.plays}) == 1, "a rank made fewer choices"
        self.impossible += any((play.world.table.slot < NONE).any() for play in self.plays)

    # ---- each by itself -----------------------------------------------------------------------------

    def finish_some(self) -> None:
        """Every store ends some of its jobs, in its own order."""
        choose = self.tape.choose
        for play in self.plays:
            jobs = play.world.store.jobs
            for _ in range(choose.number(0, min(3, len(jobs)))):
                if jobs:
                    fates = [choose.one(FATES) for _ in range(4)]
                    play.world.store.finish(choose.one(list(jobs)), fates)

    def start_some(self) -> None:
        """Of every store some pages begin to move: no cancel reaches them any more."""
        choose = self.tape.choose
        for play in self.plays:
            jobs = play.world.store.jobs
            if jobs:
                play.world.store.start(choose.one(list(jobs)), choose.number(1, 5))

    def switch(self) -> None:
        """The drive of one rank takes no more pages, or does again; mostly it does."""
        self.tape.choose.one(self.plays).world.store.writable = self.tape.choose.number(0, 4) > 0

    def drift(self) -> None:
        """The clocks go each their way."""
        for clock in self.ranks.clocks:
            clock.now += self.tape.choose.one([0.0, 0.01, 2.0])

    # ---- together -----------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of the scheduler: the ranks agree, and then each commits; a drive may close in between."""
        self.ranks.ride()
        if not self.tape.choose.number(0, 9):
            self.switch()
        self.together("tick")

    def restore(self) -> None:
        """Earlier runs left a few pages, which all ranks have."""
        stores = [play.world.store for play in self.plays]
        if all(store.writable and store.free_slots >= 3 for store in stores):
            self.together("restore")

    def lone_request(self) -> None:
        """With all else over and drives that work, a path is up, or known to be lost, in bounded steps."""
        self.together("end_everything")
        if not self.plays[0].world.key:
            return
        promotions = [play.world.promote(play.some_path()) for play in self.plays]
        self.settle(BOUND)
        for play, promotion in zip(self.plays, promotions, strict=True):
            table = play.world.table
            assert promotion.ready(table), "a lone request waits for ever"
            there = leading(promotion.pages, table.state[promotion.pages] != State.LOST)
            assert table.in_dram(there).all()
            play.world.drop(promotion)
        self.check()

    def settle(self, steps: int) -> None:
        """Step with drives that work; where slots are short the tree drops leaves, as SGLang's does."""
        for _ in range(steps):
            for play, clock in zip(self.plays, self.ranks.clocks, strict=True):
                play.world.store.writable = True
                clock.now += 100.0
            self.ranks.ride()
            self.together("tick")
            for play in self.plays:
                play.world.store.finish_all()
                self._forget(play.world)
        for _ in range(2):
            self.ranks.ride()
            self.together("tick")
        self.check()

    def _forget(self, world: World) -> None:
        held = {page for promotion in world.promotions for page in promotion.pages.tolist()}
        leaves = [leaf for leaf in world.leaves() if leaf not in held]
        if world.mover.slots_wanted and leaves:
            world.free(np.array(leaves[: world.mover.slots_wanted], np.int64))

    def check(self) -> None:
        """Each rank's accounts are exact, and all ranks have decided the same."""
        for play in self.plays:
            play.check()
        first, *others = (play.world for play in self.plays)
        for other in others:
            for name in EQUAL:
                ours, theirs = getattr(first.table, name), getattr(other.table, name)
                assert np.array_equal(ours, theirs), f"{name} differs"
            assert np.array_equal(first.table.slot != NONE, other.table.slot != NONE), "who has a slot"
            for one, same in zip(decided(first), decided(other), strict=True):
                assert one == same, "the ranks decided differently"

    def end(self) -> None:
        """Everything is over and dropped: every count is where it started. Then the ranks part company."""
        self.together("end_everything")
        for play in self.plays:
            play.world.free(np.array(sorted(play.world.key), np.int64))
        self.settle(8)
        for play, agreement in zip(self.plays, self.ranks.agreements, strict=True):
            assert len(play.world.awaited) == play.brought, "somebody was not told, or twice"
            play.world.check_empty()
            assert not agreement.diverged
            agreement.leave()
            assert play.world.mover.close(1.0)

    def part(self) -> None:
        """The ranks end with all that is on its way: each stores what it can, and closes."""
        for play, agreement in zip(self.plays, self.ranks.agreements, strict=True):
            play.world.store.writable = True
            agreement.leave()
            play.end_everything()
            assert play.world.mover.close(5.0)
            assert not play.world.mover.busy and not play.world.store.in_flight()


def decided(world: World) -> list[Any]:
    """What a rank decided beside the states of its pages."""
    table, mover = world.table, world.mover
    tree = mover.tree
    return [
        (table.epoch, table.held, table.free_handles, table.free_frames, table.free_landing),
        vars(mover.stats),
        {number: (run.parent, run.uses, run.live, run.warmth) for number, run in tree.runs.items()},
        [number for number in tree.runs if number in tree.order],
        (len(mover.parking), mover.writes.pending, mover.writes.slots_wanted, mover.writes.failing, len(mover._jobs)),
        [(p.pages.tolist(), p.held, p.ready(table)) for p in world.promotions],
        mover.promotions.demanded_bytes,
    ]
