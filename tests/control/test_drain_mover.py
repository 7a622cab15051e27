"""Draining over a store without threads: what is written, what is kept, what is turned away, and in which order."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from fake_store import ERROR, FakeStore
from mover_fakes import Answers, World, fake_world, on_nvme

from radixtier.mover import Trigger
from radixtier.mover.draining import DRAINED, DRAINING, RUNS_AT_ONCE, Drain
from radixtier.mover.mover import HEAT_RUNS
from radixtier.policy.admission import Candidate, Verdict
from radixtier.tree.residency import PARKED, State
from radixtier.tree.writequeue import Piece

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST
WAIT_S = 20.0


class Store(FakeStore):
    """Closes on any thread but this one, when the test lets it."""

    def __init__(self, n_slots: int, memory: Any) -> None:
        super().__init__(n_slots, memory)
        self.may_close = threading.Event()
        self.may_close.set()
        self.asked = 0
        self.closers: list[str] = []
        self.dropped = 0
        self.sealed: list[str] = []
        self.cleared = 0

    def stats(self) -> dict[str, float]:
        return {"journal_dropped": self.dropped}

    def clear(self, timeout: float = 5.0) -> bool:
        self.cleared += 1
        return super().clear(timeout)

    def seal(self, reason: str, timeout: float = 5.0) -> bool:
        self.sealed.append(reason)
        return self.clear(timeout)

    def close(self, timeout: float = 10.0) -> bool:
        assert not self.jobs, "closed while something runs"
        self.asked += 1
        self.closers.append(threading.current_thread().name)
        self.closed = self.may_close.wait(min(timeout, 0.05))
        return self.closed


def drained_world(
    n_handles: int = 80, n_frames: int = 40, n_slots: int = 60, answers: Any = None, **options: Any
) -> tuple[World, Drain]:
    """A world over a store that can be closed, and the drain of its mover."""
    if answers is not None:
        options["admission"] = Answers(answers)
    world = fake_world(n_handles, n_frames, n_slots, **options)
    world.store = world.mover.store = Store(n_slots, world.memory)  # type: ignore[assignment]
    world.store.on_read = world._watched_read
    return world, Drain(world.mover, clock=world.clock)


def tick(world: World, drain: Drain) -> None:
    world.mover.tick()
    drain.step()


def end(world: World, drain: Drain) -> None:
    """Let all I/O end well until the drain is over."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.001)):
        tick(world, drain)
        if drain.status == DRAINED:
            return
        world.store.finish_all()
        pause.wait(0.001)
    raise AssertionError(f"not drained: {drain.reason}")


def test_what_is_admitted_is_written_and_what_comes_later_is_parked() -> None:
    world, drain = drained_world()
    old = world.add(6)
    drain.start(30.0)
    assert drain.status == DRAINING and drain.unwritten == 6
    new = world.add(4)
    end(world, drain)
    assert drain.unwritten == 0 and drain.reason is None
    assert world.states(old) == [CLEAN] * 6 and len(world.store.rows) == 6
    assert world.states(new) == [DIRTY] * 4 and world.table.marked(new, PARKED).all()
    assert world.store.closed and world.store.closers == ["radixtier-drain"]
    assert world.mover.stats.write_failures == world.mover.stats.read_failures == 0
    world.table.check()


def test_dram_goes_on_after_it_and_never_asks_the_store_again() -> None:
    world, drain = drained_world()
    (cold,) = on_nvme(world, 6)
    kept = world.add(10)
    drain.start(30.0)
    end(world, drain)
    rows = dict(world.store.rows)
    world.store.jobs = None  # whoever touches it fails
    for _ in range(8):
        world.add(10)
        tick(world, drain)
        assert int(world.table.count[State.FREE]) + len(world.key) == world.table.n_handles
        oldest = next(page for page in world.leaves() if page not in set(cold.tolist()))
        if world.table.free_handles < 20:
            world.free(world.path(oldest)[::-1])
    assert world.states(cold) == [COLD] * 6
    assert (world.table.state[kept] != CLEAN).any(), "those that are on NVMe as well may go like others"
    world.free(cold[::-1])
    assert world.store.rows == rows, "what is on record stays, whatever the tree forgets"
    world.table.check()


def test_pages_on_nvme_are_not_read_any_more_and_those_on_their_way_arrive() -> None:
    world, drain = drained_world()
    first, second, third = on_nvme(world, 4, 5, 3)
    moving = world.promote(first)
    assert len(world.store.reads) == 1
    assert world.ahead(third, Trigger.RETURN) == 3
    drain.start(30.0)
    tick(world, drain)
    assert drain.status == DRAINING and drain.reason == "pages are being written"
    waiting = world.promote(second)
    assert world.ahead(third, Trigger.HINT) == 0
    end(world, drain)
    assert len(world.store.reads) == 1 and world.states(first) == [CLEAN] * 4 and moving.ready(world.table)
    assert world.states(second) == [COLD] * 5 and not waiting.ready(world.table)
    assert world.awaited == [float("inf")] * 2
    for promotion in (moving, waiting):
        world.drop(promotion)
    world.table.check()


def test_time_bounds_what_begins_and_what_runs_is_waited_for() -> None:
    world, drain = drained_world(2000, 1000, 1000, max_write_pages=256)
    pages = world.add(600)
    drain.start(5.0)
    tick(world, drain)
    assert len(world.store.jobs) == 1
    world.clock.now += 6.0
    for _ in range(5):
        tick(world, drain)
        assert drain.reason == "transfers have not ended" and len(world.store.jobs) == 1
    end(world, drain)
    assert drain.unwritten == 344 and len(world.store.rows) == 256
    assert world.states(pages[:256]) == [CLEAN] * 256 and world.states(pages[256:]) == [DIRTY] * 344
    assert world.table.marked(pages[256:], PARKED).all(), "DRAM can give them up"
    world.table.check()


def test_a_later_call_can_only_shorten_it() -> None:
    world, drain = drained_world(2000, 1000, 1000, max_write_pages=256)
    world.add(600)
    drain.start(5.0)
    drain.start(3600.0)
    world.clock.now += 4.0
    tick(world, drain)
    assert drain.reason == "pages are being written"
    drain.start(0.0)
    end(world, drain)
    assert drain.unwritten == 344
    drain.start(5.0)
    assert drain.status == DRAINED and drain.unwritten == 344


@pytest.mark.parametrize("parked", [Verdict.REJECT, Verdict.THROTTLED])
def test_what_is_parked_is_neither_written_nor_counted(parked: Verdict) -> None:
    answers: list[Verdict] = [Verdict.ADMIT]

    def answer(candidate: Candidate) -> Verdict:
        return answers[-1]

    world, drain = drained_world(answers=answer)
    world.add(3)
    answers.append(parked)
    turned_away = world.add(5)
    answers.append(Verdict.ADMIT)
    granted = world.mover.parking.admission.granted  # type: ignore[attr-defined]
    drain.start(30.0)
    end(world, drain)
    world.clock.now += 100.0
    tick(world, drain)
    world.mover.used_by_request(int(turned_away[-1]))
    assert drain.unwritten == 0 and len(world.store.rows) == 3
    assert world.states(turned_away) == [DIRTY] * 5 and granted == 3 * world.mover.page_bytes
    world.table.check()


def test_a_budget_gets_back_what_was_not_written() -> None:
    world, drain = drained_world(answers=lambda candidate: Verdict.ADMIT)
    world.add(4)
    world.store.writable = False
    admission: Any = world.mover.parking.admission
    assert admission.granted == 4 * world.mover.page_bytes
    drain.start(0.0)
    end(world, drain)
    assert admission.granted == 0 and drain.unwritten == 4
    assert world.mover.parking.admission.name == admission.name
    assert world.mover.parking.admission.budget is None  # type: ignore[attr-defined]


def test_writes_that_fail_are_tried_until_the_time_is_over() -> None:
    world, drain = drained_world()
    pages = world.add(4)
    drain.start(10.0)
    for _ in range(5):
        tick(world, drain)
        world.store.finish_all(*[ERROR] * 4)
        world.clock.now += 2.5
    end(world, drain)
    assert drain.unwritten == 4 and world.states(pages) == [DIRTY] * 4
    assert world.mover.stats.write_failures == 12 and not world.store.rows


def test_a_full_drive_ends_it_at_once_and_nothing_is_forgotten_for_it() -> None:
    world, drain = drained_world(80, 40, 8)
    old = world.add(8)
    world.settle()
    new = world.add(4)
    world.mover.tick()
    assert world.mover.to_forget > 0
    drain.start(3600.0)
    assert world.mover.to_forget == 0
    end(world, drain)
    assert drain.unwritten == 4 and len(world.store.rows) == 8
    assert world.states(old) == [CLEAN] * 8 and world.states(new) == [DIRTY] * 4


def test_a_transfer_that_hangs_keeps_it_draining_with_a_reason() -> None:
    world, drain = drained_world()
    world.add(4)
    world.mover.tick()
    drain.start(1.0)
    for _ in range(20):
        world.clock.now += 10.0
        tick(world, drain)
        assert (drain.status, drain.reason) == (DRAINING, "transfers have not ended")
    assert not world.store.asked
    end(world, drain)
    assert drain.unwritten == 0


def test_files_that_cannot_be_closed_yet_are_tried_again() -> None:
    world, drain = drained_world()
    world.add(4)
    world.store.may_close.clear()
    world.store.dropped = 7
    drain.start(30.0)
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.001)):
        tick(world, drain)
        world.store.finish_all()
        if world.store.asked > 1:
            break
        pause.wait(0.001)
    tick(world, drain)
    assert (drain.status, drain.reason) == (DRAINING, "the files are being closed")
    world.store.dropped += 2
    world.store.may_close.set()
    end(world, drain)
    assert drain.unwritten == 2, "what the record did not take since the start counts as well"


def test_whatever_goes_wrong_does_not_reach_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    world, drain = drained_world()
    drain._ready = lambda: 1 / 0  # type: ignore[assignment, return-value]
    drain.start(30.0)
    for _ in range(5):
        tick(world, drain)
    assert drain.status == DRAINING and "log" in str(drain.reason) and "draining NVMe failed" in caplog.text
    world, drain = drained_world()
    drain._closed = lambda: 1 / 0  # type: ignore[assignment, return-value]
    drain.start(30.0)
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.001)):
        tick(world, drain)
        if drain._phase is None:
            break
        pause.wait(0.001)
    assert drain.status == DRAINING and "closing failed" in str(drain.reason)


def test_it_waits_for_others_who_have_files_open() -> None:
    world, drain = drained_world()
    words: list[str | None] = ["the journals are still being read"]
    drain._ready = lambda: words[-1]
    drain.start(30.0)
    for _ in range(5):
        tick(world, drain)
    assert drain.reason == words[0] and not world.store.asked
    words.append(None)
    end(world, drain)


def test_the_record_learns_of_every_use_before_it_is_closed() -> None:
    world, drain = drained_world(2 * HEAT_RUNS + 60, 2 * HEAT_RUNS + 60, 2 * HEAT_RUNS + 60)
    for _ in range(HEAT_RUNS + 10):
        world.add(1)
    drain.start(30.0)
    end(world, drain)
    assert len(world.store.touched) >= HEAT_RUNS + 10


def test_a_step_with_time_to_spare_tells_of_more_uses() -> None:
    world, drain = drained_world(3 * HEAT_RUNS, 3 * HEAT_RUNS, 3 * HEAT_RUNS)
    for _ in range(2 * HEAT_RUNS + 10):
        world.add(1)
    drain.start(30.0)
    before = len(world.mover.tree.touched)
    assert before > 2 * HEAT_RUNS
    world.mover.tick()
    assert len(world.mover.tree.touched) == before - HEAT_RUNS and not world.mover.heat_told
    world.mover.tick(0.05)
    assert world.mover.heat_told


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 1), (1.5, 2), (1e9, 3)])
def test_a_step_parks_unwritten_runs_for_as_long_as_it_has(seconds: float, least: int) -> None:
    world, drain = drained_world(600, 400, 400)
    for _ in range(3 * RUNS_AT_ONCE):
        world.add(1)
    world.store.writable = False
    drain.start(0.0)
    drain._ready = lambda: "others"
    parking, ask = world.mover.parking, world.mover.parking.ask

    def slow(piece: Piece, needed: bool = False) -> None:
        world.clock.now += 1.0 / RUNS_AT_ONCE
        ask(piece, needed)

    parking.ask = slow  # type: ignore[method-assign]
    done = [0]
    while drain.reason != "others":
        world.mover.tick()
        drain.step(seconds)
        done.append(int(np.count_nonzero(world.table.mark & PARKED)))
        assert drain.unwritten == 3 * RUNS_AT_ONCE
        assert len(done) < 10
    steps = np.diff(list(dict.fromkeys(done)))
    assert steps.sum() == 3 * RUNS_AT_ONCE and (steps[:-1] == least * RUNS_AT_ONCE).all()
    drain._ready = lambda: None
    end(world, drain)
    assert drain.unwritten == 3 * RUNS_AT_ONCE


def test_a_long_table_is_looked_through_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.mover.draining.HANDLES_AT_ONCE", 7)
    world, drain = drained_world(600, 400, 400)
    pages = [world.add(3) for _ in range(20)]
    world.store.writable = False
    drain.start(0.0)
    end(world, drain)
    assert drain.unwritten == 60
    assert world.table.marked(np.concatenate(pages), PARKED).all()


def test_a_start_that_fails_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, drain = drained_world()
    world.add(4)
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "stats", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drain.start(30.0)
    assert drain.status is None and not world.mover.leaving and world.mover.store is world.store
    drain.start(30.0)
    end(world, drain)
    assert len(world.store.rows) == 4


def test_what_stays_there_is_the_reason_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    for left, words in (("a socket", "because of a socket"), (None, "can be unmounted. What")):
        world, drain = drained_world()
        drain._closed = lambda left=left: left  # type: ignore[misc]
        with caplog.at_level("INFO", "radixtier"):
            drain.start(30.0)
            end(world, drain)
        assert drain.reason == left and words in caplog.text


def test_a_flush_during_it_strikes_the_record_and_after_it_says_that_it_cannot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, drain = drained_world()
    world.add(6)
    world.settle()
    drain.start(30.0)
    world.clear()
    assert world.store.cleared == 1 and not world.store.rows
    world.add(3)
    end(world, drain)
    assert not world.store.rows and drain.unwritten == 0
    world.clear()
    assert world.store.cleared == 1 and "radixtier store clear" in caplog.text
    assert world.table.count[State.FREE] == world.table.n_handles
    world.table.check()


def test_sealing_during_it_reaches_the_store_and_after_it_changes_nothing() -> None:
    world, drain = drained_world()
    world.add(6)
    drain.start(30.0)
    store: Any = world.mover.store
    assert store.seal("new weights") and world.store.sealed == ["new weights"]
    end(world, drain)
    assert store.seal("newer weights") and world.store.sealed == ["new weights"]


@pytest.mark.parametrize("when", ["before", "during", "closing", "after"])
def test_a_stop_at_any_time_stores_what_it_can(when: str) -> None:
    world, drain = drained_world()
    world.add(6)
    if when != "before":
        drain.start(30.0)
        tick(world, drain)
    if when == "closing":
        world.store.may_close.clear()
        pause = threading.Event()
        for _ in range(int(WAIT_S / 0.001)):
            tick(world, drain)
            world.store.finish_all()
            if world.store.asked:
                break
            pause.wait(0.001)
        world.store.may_close.set()
    if when == "after":
        end(world, drain)
    assert world.mover.close(10.0)
    assert len(world.store.rows) == 6 and world.store.closed
    if drain._thread is not None:
        drain._thread.join(WAIT_S)
