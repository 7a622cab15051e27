"""What may not be written to NVMe, or not yet: it stays in DRAM, is asked for again, goes when its frame is needed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import numpy as np
import pytest
from fake_store import ERROR, OK, PAGE_BYTES
from mover_fakes import NAMESPACE, Answers, World, fake_world, growth

from radixtier.mover.parking import RETRY_RUNS, RETRY_S
from radixtier.mover.writebehind import LOSSY_AFTER_S
from radixtier.policy.admission import Candidate, Verdict
from radixtier.tree.residency import PARKED, Pages, State

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST
ADMIT, REJECT, THROTTLED = Verdict.ADMIT, Verdict.REJECT, Verdict.THROTTLED

Answer = Callable[[Candidate], Verdict]


def second_use(candidate: Candidate) -> Verdict:
    return ADMIT if candidate.uses > 1 or candidate.needed else REJECT


def world_of(answer: Answer, frames: int = 16, slots: int = 60) -> tuple[World, Answers]:
    policy = Answers(answer)
    return fake_world(60, frames, slots, admission=policy), policy


def parked(world: World, pages: Pages) -> list[bool]:
    flags: list[bool] = world.table.marked(pages, PARKED).tolist()
    return flags


# ---- when it is asked -----------------------------------------------------------------------------------


def test_a_rejected_page_stays_dirty_is_parked_and_asked_for_again_when_a_request_uses_it() -> None:
    world, policy = world_of(second_use)
    a = world.add(4)
    world.settle()
    assert world.states(a) == [DIRTY] * 4 and all(parked(world, a)) and len(world.mover.parking) == 4
    assert len(policy.asked) == 1 and not world.store.writes
    world.mover.used_by_request(int(a[-1]))
    world.settle()
    assert world.states(a) == [CLEAN] * 4 and not any(parked(world, a)) and not len(world.mover.parking)
    assert [c.uses for c in policy.asked] == [1, 2]
    assert world.mover.stats.writes_rejected == 4 and world.mover.stats.written == 4
    world.check()


def test_a_backup_that_comes_again_does_not_ask_for_what_is_parked() -> None:
    world, policy = world_of(lambda candidate: REJECT)
    a = world.add(4)
    for _ in range(50):
        world.queue(a)
    assert len(policy.asked) == 1 and len(world.mover.parking) == 4
    world.check()


def test_nothing_is_asked_for_that_is_written_or_being_written() -> None:
    answers = iter([ADMIT])
    world, policy = world_of(lambda candidate: next(answers))
    a = world.add(3)
    world.mover.tick()
    world.queue(a)
    world.store.finish_all()
    world.mover.tick()
    world.queue(a)
    assert len(policy.asked) == 1 and world.states(a) == [CLEAN] * 3
    world.check()


def test_a_queued_page_that_is_rejected_when_it_is_asked_for_again_is_written_once_and_not_parked_after() -> None:
    answers = iter([ADMIT, REJECT])
    world, _ = world_of(lambda candidate: next(answers))
    world.store.writable = False
    a = world.add(3)
    world.queue(a)
    world.store.writable = True
    world.settle()
    assert world.states(a) == [CLEAN] * 3 and not any(parked(world, a))
    world.mover.used_by_request(int(a[-1]))
    world.check()


@pytest.mark.parametrize("n", [1, RETRY_RUNS, RETRY_RUNS + 3])
def test_what_was_throttled_is_asked_for_again_as_time_passes_the_oldest_first(n: int) -> None:
    answer = THROTTLED
    world, policy = world_of(lambda candidate: answer, frames=2 * n)
    runs = [world.add(1) for _ in range(n)]
    world.mover.tick()
    assert len(policy.asked) == n
    world.clock.now += RETRY_S / 2
    world.mover.tick()
    assert len(policy.asked) == n, "too early"
    world.clock.now += RETRY_S
    world.mover.tick()
    assert len(policy.asked) == n + 1, "one no is enough"
    answer = ADMIT
    for _ in range(1 + n // RETRY_RUNS):
        world.clock.now += RETRY_S
        world.mover.tick()
        assert len(policy.asked) <= n + 1 + RETRY_RUNS * (1 + n // RETRY_RUNS)
    world.settle()
    assert all(world.states(run) == [CLEAN] for run in runs) and not len(world.mover.parking)
    assert [c.keys.tolist() for c in policy.asked[n + 1 :]] == [
        world.table.key[run, 0].tolist() for run in [*runs[1:], runs[0]]
    ]
    world.check()


def test_time_alone_does_not_bring_up_what_was_rejected() -> None:
    world, policy = world_of(lambda candidate: REJECT)
    world.add(3)
    for _ in range(20):
        world.clock.now += 10 * RETRY_S
        world.mover.tick()
    assert len(policy.asked) == 1


# ---- what is in front -----------------------------------------------------------------------------------


def test_pages_in_front_are_written_with_those_behind_them_and_before_them() -> None:
    world, policy = world_of(lambda c: ADMIT if c.pages == 1 or c.needed else REJECT)
    a = world.add(3)
    b = world.add(2, int(a[-1]))
    assert len(world.mover.parking) == 5
    c = world.add(1, int(b[-1]))
    other = world.add(2)
    assert [each.needed for each in policy.asked] == [False, False, False, True, True, False]
    world.mover.tick()
    assert len(world.store.writes) == 1
    assert world.table.slot[np.concatenate([a, b, c])].tolist() == world.store.writes[0], "root first"
    world.settle()
    assert world.states(np.concatenate([a, b, c])) == [CLEAN] * 6 and world.states(other) == [DIRTY] * 2
    world.check()


@pytest.mark.parametrize("verdict", [REJECT, THROTTLED])
def test_where_something_in_front_is_refused_nothing_is_written_and_all_is_given_back(
    verdict: Verdict,
) -> None:
    """Without what is in front of them nobody could reach the pages."""
    pages_of_root = 3
    world, policy = world_of(
        lambda c: (verdict if c.pages == pages_of_root else ADMIT) if c.needed else (ADMIT if c.pages == 1 else REJECT)
    )
    a = world.add(3)
    b = world.add(2, int(a[-1]))
    c = world.add(1, int(b[-1]))
    assert policy.granted == 0 and len(world.mover.parking) == 6 and all(parked(world, np.concatenate([a, b, c])))
    world.check()
    world.settle()
    assert not world.store.writes
    world.free(np.concatenate([c, b, a]))
    assert not len(world.mover.parking)
    world.check_empty()


@pytest.mark.parametrize("budget", [True, False])
def test_a_hint_has_a_path_written_unless_a_budget_stands_against_it(budget: bool) -> None:
    world, policy = world_of(lambda c: ADMIT if c.needed and budget else REJECT)
    a = world.add(3)
    b = world.add(2, int(a[-1]))
    c = world.add(2, int(a[-1]))
    world.mover.parking.admit([int(world.table.run[b[0]])])
    world.check()
    world.mover.tick()
    world.store.finish_all()
    world.mover.tick()
    assert world.states(np.concatenate([a, b])) == [CLEAN if budget else DIRTY] * 5 and world.states(c) == [DIRTY] * 2
    assert policy.granted == 5 * budget * PAGE_BYTES and len(world.mover.parking) == (2 if budget else 7)
    world.check()


# ---- when DRAM needs the frame --------------------------------------------------------------------------


def test_what_is_parked_is_lost_when_dram_needs_its_frame_and_the_policy_hears_of_it() -> None:
    world, policy = world_of(lambda c: REJECT if c.pages == 4 else ADMIT, frames=8)
    a, b = world.add(4), world.add(3)
    world.settle()
    keys = world.table.key[a, 0].tolist()
    c = world.add(3)
    assert world.states(a) == [DIRTY, DIRTY, LOST, LOST] and parked(world, a) == [True, True, False, False]
    assert world.states(b) == [CLEAN] * 3 and sorted(policy.left) == sorted(keys[2:])
    assert world.mover.stats.lost == 2 and len(world.mover.parking) == 2
    world.check()
    world.free(np.concatenate([a, b, c]))
    assert set(policy.left) >= set(keys), "freed for good counts as well"
    world.settle()
    world.check_empty()


def test_the_policy_hears_of_what_is_forgotten_and_had_been_written() -> None:
    world, policy = world_of(lambda candidate: ADMIT if candidate.pages == 3 else REJECT)
    written, parked_only = world.add(3), world.add(2)
    world.settle()
    keys = world.table.key[written, 0].tolist()
    world.free(parked_only)
    assert policy.evictions == []
    world.free(written)
    assert sorted(policy.evictions) == sorted(keys) and set(policy.left) > set(keys)


def test_what_hbm_still_has_is_not_gone_until_it_leaves_there() -> None:
    world, policy = world_of(lambda c: REJECT if c.pages == 4 else ADMIT, frames=8)
    a = world.add(4)
    world.came_to_hbm(a)
    world.settle()
    keys = world.table.key[a, 0].tolist()
    for _ in range(2):
        world.add(3)
        world.settle()
    assert world.states(a).count(LOST) >= 2 and policy.left == []
    lost = [key for key, state in zip(keys, world.states(a), strict=True) if state == LOST]
    world.left_hbm(a)
    assert sorted(policy.left) == sorted(lost)


def test_a_parked_page_in_use_keeps_its_frame() -> None:
    world, _ = world_of(lambda candidate: REJECT, frames=8)
    a, b = world.add(4), world.add(4)
    world.load(a)
    promotion = world.promote(b)
    assert world.mover.alloc(1) is None
    world.drop(promotion)
    assert world.mover.alloc(1) is not None and world.states(a) == [DIRTY] * 4
    world.finish_load()


def test_a_lost_page_that_is_computed_again_is_asked_for_once_more_and_parked_once() -> None:
    world, policy = world_of(lambda candidate: REJECT, frames=4)
    a = world.add(3)
    for _ in range(60):
        world.demote(4)
        assert world.states(a) == [LOST] * 3 and not len(world.mover.parking)
        backup = world.refill(a)
        assert backup is not None
        world.finish_backup(backup)
        assert world.states(a) == [DIRTY] * 3 and len(world.mover.parking) == 3
        world.check()
    assert len(policy.asked) == 61


def test_a_page_that_takes_over_a_slot_is_parked_no_more() -> None:
    world, _ = world_of(lambda candidate: REJECT)
    _, slots, sums = world.on_disk(3, NAMESPACE)
    world.born -= 3  # the same tokens again
    a = world.add(3)
    world.mover.restore_again(a, slots, sums)
    assert world.states(a) == [CLEAN] * 3 and not any(parked(world, a))
    world.mover.used_by_request(int(a[-1]))
    assert not len(world.mover.parking)
    world.check()


def test_while_the_drive_fails_what_is_parked_goes_before_what_is_only_waiting() -> None:
    world, _ = world_of(lambda c: REJECT if c.pages == 2 else ADMIT, frames=8)
    world.store.writable = False
    a, b = world.add(5), world.add(2)
    assert not world.mover.writes.hopeless
    world.clock.now += LOSSY_AFTER_S + 1
    assert world.mover.writes.hopeless
    world.add(4)
    assert world.states(b) == [LOST] * 2 and world.states(a) == [DIRTY] * 4 + [LOST]
    assert world.mover.stats.lost == 3
    world.check()


# ---- the budget -----------------------------------------------------------------------------------------


def test_what_was_granted_and_not_written_is_given_back() -> None:
    world, policy = world_of(lambda candidate: ADMIT)
    world.store.writable = False
    a, b = world.add(4), world.add(2)
    assert policy.granted == 6 * PAGE_BYTES
    world.free(a[2:])
    world.store.writable = True
    world.mover.tick()
    assert policy.granted == 4 * PAGE_BYTES
    world.free(b[1:])
    world.store.finish_all(OK, ERROR, ERROR, ERROR)
    world.mover.tick()
    world.check()
    assert policy.granted == 3 * PAGE_BYTES, "one is written, two are tried again, one failed and is gone"
    world.settle()
    assert policy.granted == 3 * PAGE_BYTES == world.mover.stats.written * PAGE_BYTES


def test_what_waits_when_all_is_forgotten_is_given_back() -> None:
    world, policy = world_of(lambda candidate: ADMIT)
    world.store.writable = False
    world.add(4)
    world.clear()
    assert policy.granted == 0
    world.check_empty()


def test_what_the_queue_drops_to_stay_small_is_given_back() -> None:
    world, policy = world_of(lambda candidate: ADMIT, frames=4)
    world.store.writable = False
    for _ in range(40):
        world.free(world.add(3))
        world.check()
        assert policy.granted <= 12 * PAGE_BYTES


# ---- bounded --------------------------------------------------------------------------------------------


def test_memory_is_flat_over_100_000_operations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "radixtier")
    rng = random.Random(2)
    policy = Answers(lambda candidate: rng.choice([ADMIT, REJECT, REJECT, THROTTLED]))
    world = fake_world(96, 32, 40, admission=policy)
    world.unwatched()
    ends: list[int] = []

    def churn(rounds: int) -> None:
        """About thirty-five operations on parking, mover and store in each round."""
        for _ in range(rounds):
            if backup := world.backup(rng.randint(1, 3), rng.choice(ends) if ends and rng.random() < 0.6 else None):
                ends.append(int(world.finish_backup(backup)[-1]))
            world.clock.now += 0.3
            world.mover.used_by_request(rng.choice(ends))
            path = world.path(rng.choice(ends))
            lost = path[world.table.state[path] == LOST][:3]
            if len(lost) and (backup := world.refill(lost)):
                world.finish_backup(backup)
            world.queue(path)
            world.mover.tick()
            world.store.finish_all()
            while world.mover.slots_wanted or world.table.free_handles < 4:
                world.free(np.array([rng.choice(world.leaves())]))
                world.mover.tick()
            ends[:] = [page for page in ends if page in world.key]
            world._check_admission()
            assert len(world.mover.parking) <= 2 * world.table.n_frames
            for log in (world.store.writes, world.store.touched, policy.asked, policy.left, policy.evictions):
                log.clear()
        len(world.mover.tree.forgotten)  # puts into its table what it put aside

    churn(2600)
    grown = growth(churn, 300)
    world.check()
    assert grown < 64 << 10
    stats = world.mover.stats
    assert min(stats.writes_rejected, stats.writes_throttled, stats.written, stats.lost, stats.refilled) > 400
    world.settle()
    world.free(np.array(sorted(world.key), np.int64))
    world.settle(5)
    world.check_empty()
