"""The residency table against its model: at random, step by step, and the rules one at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from mover_fakes import SCALE
from residency_model import CLEAN, COLD, DIRTY, FILLING, LOST, Model

from radixtier.tree.residency import COPY, HBM, NONE, READ, WRITE, ResidencyTable, State


class ResidencyMachine(RuleBasedStateMachine):
    """Every rule acts on any subset of the pages it may act on; the model checks after each."""

    model: Model

    @initialize(spare=st.integers(0, 6), frames=st.integers(1, 7), slots=st.integers(0, 9), landing=st.integers(0, 3))
    def start(self, spare: int, frames: int, slots: int, landing: int) -> None:
        self.model = Model(frames + spare, frames, slots, landing)

    def some(self, data: Any, candidates: list[int]) -> list[int]:
        if not candidates:
            return []
        return list(data.draw(st.lists(st.sampled_from(candidates), unique=True, max_size=6)))

    @rule(n=st.integers(0, 5))
    def alloc(self, n: int) -> None:
        self.model.alloc(n)

    @rule(data=st.data())
    def filled(self, data: Any) -> None:
        self.model.filled(self.some(data, self.model.those(live=False)))

    @rule(data=st.data())
    def fill_failed(self, data: Any) -> None:
        self.model.fill_failed(self.some(data, self.model.those(live=False)))

    @rule(data=st.data())
    def free(self, data: Any) -> None:
        self.model.free(self.some(data, self.model.those()))

    @rule(data=st.data())
    def acquire(self, data: Any) -> None:
        self.model.acquire(self.some(data, self.model.those(FILLING, DIRTY, CLEAN, COLD)))

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        self.model.release(self.some(data, [h for h, p in self.model.pages.items() if p.leases]))

    @rule(data=st.data())
    def hold(self, data: Any) -> None:
        self.model.hold(self.some(data, self.model.those()))

    @rule(data=st.data())
    def release_hold(self, data: Any) -> None:
        self.model.release_hold(self.some(data, [h for h, p in self.model.pages.items() if p.holds]))

    @rule(data=st.data())
    def refill(self, data: Any) -> None:
        self.model.refill(self.some(data, self.model.those(LOST)))

    @rule(data=st.data())
    def begin_write(self, data: Any) -> None:
        candidates = [h for h in self.model.those(DIRTY) if not self.model.pages[h].flight]
        self.model.begin_write(self.some(data, candidates))

    @precondition(lambda self: self.model.writes)
    @rule(data=st.data(), good=st.lists(st.booleans(), max_size=6))
    def end_write(self, data: Any, good: list[bool]) -> None:
        self.model.end_write(data.draw(st.integers(0, len(self.model.writes) - 1)), good)

    @rule(data=st.data(), landing=st.booleans())
    def begin_read(self, data: Any, landing: bool) -> None:
        candidates = [h for h in self.model.those(COLD) if not self.model.pages[h].flight]
        self.model.begin_read(self.some(data, candidates), landing)

    @precondition(lambda self: self.model.reads)
    @rule(data=st.data(), fates=st.lists(st.sampled_from(["ok", "failed", "cancelled"]), max_size=6))
    def end_read(self, data: Any, fates: list[str]) -> None:
        self.model.end_read(data.draw(st.integers(0, len(self.model.reads) - 1)), fates)

    @rule(data=st.data())
    def drop_frames(self, data: Any) -> None:
        self.model.drop_frames(self.some(data, self.model.those(CLEAN, idle=True)))

    @rule(data=st.data())
    def begin_verify(self, data: Any) -> None:
        candidates = [h for h in self.model.those(COLD) if not self.model.pages[h].flight]
        self.model.begin_verify(self.some(data, candidates))

    @precondition(lambda self: self.model.verifies)
    @rule(data=st.data(), bad=st.lists(st.booleans(), max_size=6))
    def end_verify(self, data: Any, bad: list[bool]) -> None:
        self.model.end_verify(data.draw(st.integers(0, len(self.model.verifies) - 1)), bad)

    @rule(data=st.data())
    def begin_copy(self, data: Any) -> None:
        candidates = [h for h in self.model.those(COLD) if not self.model.pages[h].flight]
        self.model.begin_copy(self.some(data, candidates))

    @rule(data=st.data(), ok=st.booleans())
    def end_copy(self, data: Any, ok: bool) -> None:
        self.model.end_copy(self.some(data, self.model.those(live=False)), ok)

    @rule(data=st.data())
    def adopt_slots(self, data: Any) -> None:
        candidates = [h for h in self.model.those(DIRTY) if not self.model.pages[h].flight]
        self.model.adopt_slots(self.some(data, candidates))

    @rule(data=st.data(), there=st.booleans())
    def mark_hbm(self, data: Any, there: bool) -> None:
        self.model.mark_hbm(self.some(data, self.model.those()), there)

    @rule(data=st.data(), parked=st.booleans())
    def mark_parked(self, data: Any, parked: bool) -> None:
        candidates = [h for h in self.model.those(DIRTY) if not self.model.pages[h].flight]
        self.model.mark_parked(self.some(data, candidates), parked)

    @rule(data=st.data())
    def lose_frames(self, data: Any) -> None:
        self.model.lose_frames(self.some(data, self.model.those(DIRTY, idle=True)))

    @precondition(lambda self: len(self.model.pages) > 4)
    @rule()
    def clear(self) -> None:
        self.model.clear()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            wind_down(self.model)


def wind_down(model: Model) -> None:
    """End all uses, free all pages: then nothing may be missing."""
    model.free(model.those())
    while model.writes:
        model.end_write(0, [])
    while model.reads:
        model.end_read(0, [])
    while model.verifies:
        model.end_verify(0, [])
    model.end_copy(sorted(model.pages), ok=True)
    model.filled(sorted(model.pages))
    while users := [h for h, p in model.pages.items() if p.leases]:
        model.release(users)
    while users := [h for h, p in model.pages.items() if p.holds]:
        model.release_hold(users)
    assert not model.pages and len(model.slots) == model.n_slots
    assert (model.table.free_handles, model.table.free_frames) == (model.table.n_handles, model.table.n_frames)
    assert model.table.free_landing == model.table.n_landing


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(max_examples=60 * SCALE, stateful_step_count=50)


@pytest.mark.parametrize("seed", range(2))
def test_accounts_are_exact_over_ten_thousand_operations(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(40, 16, 30, 6 * seed)
    for _ in range(5000):
        random_step(model, rng)
    wind_down(model)


def random_step(model: Model, rng: random.Random) -> None:
    def some(candidates: list[int]) -> list[int]:
        return rng.sample(candidates, rng.randint(0, min(5, len(candidates))))

    def quiet(state: State) -> list[int]:
        return [h for h in model.those(state) if not model.pages[h].flight]

    def end_read() -> None:
        fates = rng.choices(["ok", "failed", "cancelled"], (6, 1, 1), k=5)
        model.end_read(rng.randrange(len(model.reads)), fates)

    def end_write() -> None:
        model.end_write(rng.randrange(len(model.writes)), rng.choices([True, False], (5, 1), k=5))

    steps = [
        lambda: model.alloc(rng.randint(0, 5)),
        lambda: model.filled(some(model.those(FILLING, live=False))),
        lambda: model.fill_failed(some(model.those(FILLING, live=False))[:1]),
        lambda: model.free(some(model.those())[:2]),
        lambda: model.acquire(some(model.those(DIRTY, CLEAN))),
        lambda: model.release(some([h for h, p in model.pages.items() if p.leases])),
        lambda: model.hold(some(model.those())),
        lambda: model.release_hold(some([h for h, p in model.pages.items() if p.holds])),
        lambda: model.refill(some(model.those(LOST))),
        lambda: model.begin_write(some(quiet(DIRTY))),
        lambda: model.begin_read(some(quiet(COLD)), rng.random() < 0.5),
        lambda: model.drop_frames(some(model.those(CLEAN, idle=True))),
        lambda: model.lose_frames(some(model.those(DIRTY, idle=True))[:1]),
        lambda: model.begin_copy(some(quiet(COLD))),
        lambda: model.end_copy(some(model.those(COLD, live=False)), rng.random() < 0.7),
        lambda: model.begin_verify(some(quiet(COLD))[:2]),
        lambda: model.adopt_slots(some(quiet(DIRTY))[:1]),
        lambda: model.mark_hbm(some(model.those()), rng.random() < 0.5),
        lambda: model.mark_parked(some(quiet(DIRTY)), rng.random() < 0.5),
    ]
    if model.verifies:
        bad = rng.choices([True, False], (1, 5), k=5)
        steps += [lambda: model.end_verify(rng.randrange(len(model.verifies)), bad)] * 2
    if model.reads:
        steps.append(end_read)
    if model.writes:
        steps.append(end_write)
    rng.choice(steps)()


# ---- one rule at a time ---------------------------------------------------------------------------------


def pages_in(state: State, n: int = 3) -> tuple[Model, list[int]]:
    model = Model(8, 6, 8)
    model.alloc(n)
    handles = model.those()
    if state is FILLING:
        return model, handles
    model.filled(handles)
    if state is not DIRTY:
        model.begin_write(handles)
        model.end_write(0, [])
    if state in (COLD, LOST):
        model.drop_frames(handles)
    if state is LOST:
        model.begin_read(handles)
        model.end_read(0, ["failed"] * n)
    assert model.those(state) == handles
    return model, handles


@pytest.mark.parametrize("state", [FILLING, DIRTY, CLEAN, COLD, LOST])
@pytest.mark.parametrize("user", ["lease", "hold", "both"])
def test_a_page_freed_in_use_goes_with_its_last_user(state: State, user: str) -> None:
    model, handles = pages_in(state)
    if user != "hold":
        model.acquire(handles)
    if user != "lease":
        model.hold(handles)
    model.free(handles)
    assert model.table.free_handles == 8 - len(handles)
    if user != "hold":
        model.release(handles)
    if user != "lease":
        model.release_hold(handles)
    if state is FILLING:
        model.filled(handles)
    assert model.table.free_handles == 8 and model.table.free_frames == 6 and len(model.slots) == 8


def test_a_page_freed_under_a_write_keeps_frame_and_slot_until_it_ends() -> None:
    model, handles = pages_in(DIRTY)
    model.begin_write(handles)
    model.free(handles)
    assert (model.table.frame[handles] != NONE).all() and (model.table.slot[handles] != NONE).all()
    assert (model.table.flight[handles] & WRITE != 0).all()
    model.end_write(0, [True, False, True])
    assert model.table.free_frames == 6 and len(model.slots) == 8


@pytest.mark.parametrize("fates", [["ok", "failed", "cancelled"], ["cancelled"] * 3, ["failed"] * 3])
def test_a_page_freed_under_a_read_keeps_frame_and_slot_until_it_ends(fates: list[str]) -> None:
    model, handles = pages_in(COLD)
    model.begin_read(handles)
    model.free(handles)
    assert (model.table.flight[handles] & READ != 0).all() and model.table.free_frames == 3
    model.end_read(0, fates)
    assert model.table.free_frames == 6 and len(model.slots) == 8


def test_a_failed_read_is_lost_and_a_cancelled_one_is_cold_again() -> None:
    model, handles = pages_in(COLD)
    model.begin_read(handles)
    model.end_read(0, ["ok", "failed", "cancelled"])
    assert [model.pages[h].state for h in handles] == [CLEAN, LOST, COLD]
    model.refill([handles[1]])
    model.filled(handles)
    assert model.pages[handles[1]].state is DIRTY and model.pages[handles[2]].state is COLD


@pytest.mark.parametrize("ok", [True, False])
def test_a_cold_page_copied_from_hbm_keeps_its_slot_whatever_becomes_of_the_copy(ok: bool) -> None:
    model, handles = pages_in(COLD)
    slots = model.table.slot[handles].tolist()
    model.begin_copy(handles)
    assert (model.table.flight[handles] & COPY != 0).all() and model.table.free_frames == 3
    assert not model.table.in_dram(np.array(handles)).any(), "half a copy can be loaded"
    model.end_copy(handles, ok)
    assert [model.pages[h].state for h in handles] == [CLEAN if ok else COLD] * 3
    assert model.table.slot[handles].tolist() == slots and model.table.free_frames == (3 if ok else 6)


@pytest.mark.parametrize("ok", [True, False])
def test_a_page_freed_under_a_copy_keeps_frame_and_slot_until_it_ends(ok: bool) -> None:
    model, handles = pages_in(COLD)
    model.begin_copy(handles)
    model.free(handles)
    assert model.table.free_handles == 5 and model.table.free_frames == 3
    model.end_copy(handles, ok)
    assert model.table.free_handles == 8 and model.table.free_frames == 6 and len(model.slots) == 8


def test_a_page_is_not_copied_and_read_at_once() -> None:
    model, handles = pages_in(COLD)
    model.begin_copy(handles)
    for begin in (model.table.begin_read, model.table.begin_copy, model.table.begin_verify):
        with pytest.raises(AssertionError):
            begin(np.array(handles))


def test_a_parked_page_may_go_and_is_parked_no_more_once_it_is_written_lost_or_freed() -> None:
    model, handles = pages_in(DIRTY)
    model.mark_parked(handles, True)
    assert model.table.droppable(np.array(handles)).all()
    model.begin_write(handles[:1])
    model.lose_frames(handles[1:2])
    model.free(handles[2:])
    assert not model.table.mark.any()
    model.end_write(0, [False])
    assert model.pages[handles[0]].state is DIRTY and not model.table.droppable(np.array(handles[:1])).any()


def test_a_mark_does_not_touch_the_other_one() -> None:
    model, handles = pages_in(DIRTY)
    model.mark_parked(handles, True)
    model.mark_hbm(handles, True)
    model.mark_parked(handles, False)
    assert model.table.marked(np.array(handles), HBM).all()
    model.free(handles)
    model.alloc(3)
    assert not model.table.mark.any(), "a new page has the marks of an old one"


def test_double_free_is_an_error_also_of_a_page_in_use() -> None:
    model, handles = pages_in(CLEAN)
    model.acquire(handles[:1])
    model.free(handles)
    for handle in handles:
        with pytest.raises(AssertionError, match="double free"):
            model.table.free(np.array([handle]))
    model.check()


def test_leases_and_holds_do_not_go_below_zero() -> None:
    model, handles = pages_in(CLEAN)
    for give_back in (model.table.release, model.table.release_hold):
        with pytest.raises(AssertionError, match="twice"):
            give_back(np.array(handles))
    model.check()


@pytest.mark.parametrize("user", ["acquire", "acquire_hold"])
def test_a_page_may_have_very_many_users(user: str) -> None:
    model, handles = pages_in(CLEAN)
    page = np.array(handles[:1])
    for _ in range(1 << 16):
        getattr(model.table, user)(page)
    assert not model.table.unused(page, CLEAN).any()
    model.table.check()


def test_what_is_in_use_cannot_lose_its_frame() -> None:
    model, handles = pages_in(CLEAN)
    model.acquire(handles[:1])
    with pytest.raises(AssertionError):
        model.table.drop_frames(np.array(handles))
    with pytest.raises(AssertionError):
        model.table.lose_frames(np.array(handles[1:]))


def test_alloc_takes_nothing_when_it_declines() -> None:
    model, _ = pages_in(COLD, 6)
    for n in (3, 7, 100):
        assert model.table.alloc(n) is None
        model.check()
    model.alloc(2)


@pytest.mark.parametrize(("n_handles", "n_frames"), [(3, 4), (4, 0), (0, 0)])
def test_a_table_needs_a_handle_per_frame_and_a_frame(n_handles: int, n_frames: int) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        ResidencyTable(n_handles, n_frames)


@pytest.mark.parametrize(("n_handles", "n_frames"), [(1_000_000, 1000), (200_000, 200_000)])
def test_a_handle_costs_at_most_64_bytes(n_handles: int, n_frames: int) -> None:
    table = ResidencyTable(n_handles, n_frames)
    arrays = [a for a in vars(table).values() if isinstance(a, np.ndarray)]
    assert sum(a.nbytes for a in arrays) - 4 * n_frames - 64 <= table.nbytes() <= 64 * n_handles


def test_clear_forgets_everything() -> None:
    model, handles = pages_in(CLEAN)
    model.acquire(handles)
    model.hold(handles)
    model.clear()
    model.alloc(6)
    assert model.table.run[model.those()].tolist() == [NONE] * 6
    wind_down(model)
