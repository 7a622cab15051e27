"""Work ahead of requests: whose turn ended where, when it is expected back, and what is up before it asks."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from fake_store import PAGE_BYTES
from mover_fakes import World, fake_world

from radixtier.mover import Trigger
from radixtier.mover.ahead import IDLE_S, PATIENCE, Ahead
from radixtier.policy.returns import LEAST
from radixtier.tree.residency import Pages, State

CLEAN, COLD, LOST = State.CLEAN, State.COLD, State.LOST
PAUSE = 60.0


def ahead_of(world: World) -> Ahead:
    mover = world.mover
    return Ahead(mover.tree, mover.promotions, mover.rate, page_bytes=PAGE_BYTES, clock=world.clock)


def habits(world: World, ahead: Ahead, run: int, pauses: int = 8 * LEAST, lost: int = 0) -> None:
    """Sessions that come back after about a minute, ``lost`` in ten of them never."""
    for i in range(pauses // 4):
        for turn in range(5):
            began = world.clock.now
            world.clock.now += 0.1
            ahead.turn_ended(run, ("known", i), began)
            if turn < 4:
                world.clock.now += PAUSE * (0.9 + 0.05 * ((i + turn) % 5))
    for i in range(lost * pauses // 40):
        ahead.turn_ended(run, ("lost", i), world.clock.now)
        world.clock.now += 0.01


def run_of(world: World, pages: Pages) -> int:
    return int(world.table.run[pages[-1]])


def stage(frames: int = 24) -> tuple[World, Ahead, Pages]:
    """Sessions with habits, and a path that is in DRAM."""
    world = fake_world(120, frames, 120)
    ahead = ahead_of(world)
    base = world.add(1)
    habits(world, ahead, run_of(world, base))
    world.free(base)  # else it would come up with the others
    path = world.add(4)
    world.settle(2)
    return world, ahead, path


def due(ahead: Ahead, session: Hashable) -> list[float]:
    """When something is to be done for a session."""
    return [when for when, turn, key, _ in ahead._due if key == session and ahead._current(key, turn)]


def walk(world: World, ahead: Ahead, seconds: float, idle: bool = False, step: float = 0.25) -> None:
    """Let time pass, as a scheduler does that looks four times a second."""
    end = world.clock.now + seconds
    while world.clock.now < end:
        world.clock.now += step
        world.mover.tick()
        ahead.step(idle)
        world.store.finish_all()
        world.check()
    world.mover.tick()


# ---- whose turn it was ----------------------------------------------------------------------------------


def test_a_session_goes_by_its_name_wherever_its_path_is() -> None:
    world = fake_world(40, 20, 40)
    ahead = ahead_of(world)
    a, b = world.add(2), world.add(2)
    assert ahead.turn_ended(run_of(world, a), "chat", world.clock.now) == "chat"
    assert ahead.turn_ended(run_of(world, b), "chat", world.clock.now) == "chat"
    assert ahead.end_of("chat") == run_of(world, b) and ahead.session_of(run_of(world, b)) == "chat"
    assert ahead.session_of(run_of(world, a)) is None
    world.free(b)
    assert ahead.end_of("chat") is None and ahead.end_of("nobody") is None


def test_without_a_name_a_path_that_goes_on_is_the_same_session() -> None:
    world = fake_world(40, 20, 40)
    ahead = ahead_of(world)
    a = world.add(2)
    b = world.add(2, int(a[-1]))
    c = world.add(2, int(b[-1]))
    other = world.add(2, int(a[0]))
    first = ahead.turn_ended(run_of(world, b), None, world.clock.now)
    assert ahead.turn_ended(run_of(world, c), None, world.clock.now) == first
    assert ahead.turn_ended(run_of(world, c), None, world.clock.now) == first, "asked once more"
    assert ahead.turn_ended(run_of(world, other), None, world.clock.now) != first, "a common start is no session"
    assert ahead.session_of(run_of(world, c)) is None, "a session that the client did not name"


def test_a_path_without_a_name_goes_on_with_the_session_that_had_one() -> None:
    world = fake_world(40, 20, 40)
    ahead = ahead_of(world)
    a = world.add(2)
    b = world.add(2, int(a[-1]))
    ahead.turn_ended(run_of(world, a), "chat", world.clock.now)
    assert ahead.turn_ended(run_of(world, b), None, world.clock.now) == "chat"


def test_two_sessions_that_end_at_one_place_do_not_take_it_from_each_other() -> None:
    world = fake_world(40, 20, 40)
    ahead = ahead_of(world)
    a = world.add(2)
    b, c = world.add(2, int(a[-1])), world.add(2, int(a[-1]))
    ahead.turn_ended(run_of(world, a), "first", world.clock.now)
    ahead.turn_ended(run_of(world, a), "second", world.clock.now)
    ahead.turn_ended(run_of(world, b), "first", world.clock.now)
    assert ahead.session_of(run_of(world, a)) == "second"
    assert ahead.turn_ended(run_of(world, c), None, world.clock.now) == "second"


# ---- before it comes back -------------------------------------------------------------------------------


def test_a_path_is_up_before_the_earliest_likely_return_and_not_much_earlier() -> None:
    world, ahead, path = stage()
    ahead.turn_ended(run_of(world, path), "chat", world.clock.now)
    ended = world.clock.now
    world.demote(world.table.n_frames)
    assert world.states(path) == [COLD] * 4
    walk(world, ahead, 0.5 * PAUSE)
    assert world.states(path) == [COLD] * 4 and not world.store.reads, "too early: its frames would be held for nothing"
    walk(world, ahead, ended + 0.9 * PAUSE - world.clock.now)
    assert world.states(path) == [CLEAN] * 4, "one in ten comes earlier than this"
    assert world.mover.stats.promoted_by == {"return": 4}
    world.mover.used_by_request(int(path[-1]))
    assert world.mover.stats.ahead_used == {"return": 4} and not world.mover.stats.ahead_wasted


def test_the_order_of_eviction_hears_when_a_path_is_expected_and_that_it_came() -> None:
    world, ahead, path = stage()
    run = run_of(world, path)
    ahead.turn_ended(run, "chat", world.clock.now)
    expected = world.mover.tree.runs[run].expected
    assert expected is not None and 0.5 * PAUSE < expected - world.clock.now < 2 * PAUSE
    longer = world.add(1, int(path[-1]))
    world.clock.now += PAUSE
    ahead.turn_ended(run_of(world, longer), "chat", world.clock.now)
    later = world.mover.tree.runs[run].expected
    assert later is not None and later > world.clock.now


def test_patience_with_one_that_does_not_come_back_ends() -> None:
    world, ahead, path = stage()
    run = run_of(world, path)
    ahead.turn_ended(run, "chat", world.clock.now)
    world.demote(world.table.n_frames)
    walk(world, ahead, 40 * PAUSE, step=2.0)
    assert world.mover.tree.runs[run].expected is None and not due(ahead, "chat")
    reads = sum(map(len, world.store.reads))
    assert 4 <= reads <= 4 * PATIENCE
    world.demote(world.table.n_frames)
    walk(world, ahead, 10 * PAUSE, step=2.0)
    assert sum(map(len, world.store.reads)) == reads


def test_one_that_comes_early_is_not_brought_up_later() -> None:
    world, ahead, path = stage()
    ahead.turn_ended(run_of(world, path), "chat", world.clock.now)
    world.clock.now += 1.0
    longer = world.add(1, int(path[-1]))
    ahead.turn_ended(run_of(world, longer), "chat", world.clock.now)
    world.settle(2)
    world.demote(world.table.n_frames)
    walk(world, ahead, 2 * PAUSE, step=1.0)
    assert world.mover.stats.promoted_by == {"return": 5}, "once, and for where it ended last"


def test_one_that_hardly_ever_comes_back_is_not_brought_up_but_expected_for_a_while() -> None:
    world = fake_world(120, 24, 120)
    ahead = ahead_of(world)
    base = world.add(1)
    for i in range(40 * LEAST):  # of forty sessions one comes back once
        ahead.turn_ended(run_of(world, base), ("s", i), world.clock.now)
        world.clock.now += 1.0
        if i % 40 == 39:
            ahead.turn_ended(run_of(world, base), ("s", i - 20), world.clock.now)
    path = world.add(4)
    world.settle(2)
    ahead.turn_ended(run_of(world, path), "chat", world.clock.now)
    window = ahead._returns.window("chat", world.clock.now)
    assert window is not None and window.chance < 0.3
    world.demote(world.table.n_frames)
    walk(world, ahead, 3000.0, step=10.0)
    assert world.states(path) == [COLD] * 4 and not world.store.reads
    assert world.mover.tree.runs[run_of(world, path)].expected is None, "else it would be the warmest for ever"


def test_a_path_comes_up_to_its_first_page_that_is_lost() -> None:
    world = fake_world(60, 16, 60)
    ahead = ahead_of(world)
    a = world.restore(3)
    assert a is not None
    b = world.restore(3, int(a[-1]))
    assert b is not None
    promotion = world.promote(b[:1])
    world.store.finish_all("error")
    world.settle()
    world.drop(promotion)
    assert world.states(b[:1]) == [LOST]
    assert ahead.bring(run_of(world, b), Trigger.HINT) == 3
    world.settle()
    assert world.states(np.concatenate([a, b])) == [CLEAN] * 3 + [LOST] + [COLD] * 2


def test_what_was_forgotten_is_not_expected() -> None:
    world, ahead, path = stage()
    run = run_of(world, path)
    ahead.turn_ended(run, "chat", world.clock.now)
    world.free(path)
    walk(world, ahead, 3 * PAUSE, step=1.0)
    assert not world.store.reads and not due(ahead, "chat") and ahead.bring(run, Trigger.RETURN) == 0


# ---- idle -----------------------------------------------------------------------------------------------


def idle_world(frames: int = 12) -> tuple[World, Ahead, list[Pages]]:
    """Four runs of three pages that are on the drive only, the last the hottest."""
    world = fake_world(80, frames, 80)
    runs = []
    for _ in range(4):
        pages = world.restore(3)
        assert pages is not None
        runs.append(pages)
    for pages in runs:
        world.mover.tree.left_dram(pages)
    return world, ahead_of(world), runs


def test_idle_drives_bring_up_the_hottest_into_free_frames_only() -> None:
    world, ahead, runs = idle_world()
    kept = world.add(5)
    walk(world, ahead, 3.0, idle=True)
    assert world.states(np.concatenate(runs[2:])) == [CLEAN] * 6
    assert world.states(np.concatenate(runs[:2])) == [COLD] * 6 and world.states(kept) == [CLEAN] * 5
    assert world.mover.stats.demoted == 0 and world.mover.stats.promoted_by == {"idle": 6}


def test_what_was_demoted_on_request_stays_down_until_it_is_used() -> None:
    world, ahead, runs = idle_world(frames=32)
    tree = world.mover.tree
    number = tree.run_of(int(runs[3][-1]))
    assert number is not None
    tree.sink(number)
    walk(world, ahead, 3.0, idle=True)
    assert world.states(runs[3]) == [COLD] * 3
    assert world.states(np.concatenate(runs[:3])) == [CLEAN] * 9
    tree.use(number)
    walk(world, ahead, 3.0, idle=True)
    assert world.states(runs[3]) == [CLEAN] * 3


def test_nothing_is_brought_up_for_nobody_while_somebody_is_there() -> None:
    world, ahead, _ = idle_world()
    walk(world, ahead, 3.0, idle=False)
    assert not world.store.reads


def test_idle_steps_are_so_far_apart_and_one_path_at_a_time() -> None:
    world, ahead, _ = idle_world(frames=32)
    world.clock.now += 1.0
    ahead.step(True)
    ahead.step(True)
    world.mover.tick()
    assert len(world.store.reads) == 1
    world.clock.now += IDLE_S
    ahead.step(True)
    world.mover.tick()
    assert len(world.store.reads) == 1, "the first is still being read"


def test_a_path_that_does_not_fit_does_not_hide_a_smaller_one() -> None:
    world, ahead, runs = idle_world(frames=5)
    big = world.restore(9)
    assert big is not None
    world.mover.tree.left_dram(big)
    walk(world, ahead, 2.0, idle=True)
    assert world.states(runs[3]) == [CLEAN] * 3 and world.states(big) == [COLD] * 9


def test_what_hbm_has_does_not_hide_what_nobody_has() -> None:
    world, ahead, runs = idle_world()
    for pages in runs[1:]:
        world.came_to_hbm(pages)
    walk(world, ahead, 2.0, idle=True)
    assert [world.states(pages)[0] for pages in runs] == [CLEAN, COLD, COLD, COLD]
    world.left_hbm(runs[2])
    walk(world, ahead, 2.0, idle=True)
    assert [world.states(pages)[0] for pages in runs] == [CLEAN, COLD, CLEAN, COLD]


# ---- bounded --------------------------------------------------------------------------------------------


def test_sessions_are_bounded_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.mover.ahead.MOST_SESSIONS", 50)
    world = fake_world(200, 100, 200)
    ahead = ahead_of(world)
    base = world.add(1)
    habits(world, ahead, run_of(world, base), 2 * LEAST)
    runs = [run_of(world, world.add(1)) for _ in range(60)]
    for i in range(3000):
        key: Hashable = f"s{i}" if i % 3 else None
        ahead.turn_ended(runs[i % 60], key, world.clock.now)
        world.clock.now += 0.01
        assert len(ahead._sessions) <= 50 and len(ahead._ends) <= 50 and len(ahead._due) <= 4 * 50 + 2
    assert ahead.end_of("s2999") == runs[59] and ahead.end_of("s100") is None
    ahead.clear()
    assert not ahead._sessions and not ahead._ends and not ahead._due
