"""Write-behind: every page once, nothing lost by a failure, pauses by the clock, and what it asks of the tree."""

from __future__ import annotations

import numpy as np
import pytest
from fake_store import CORRUPT, ERROR, OK, PAGE_BYTES
from mover_fakes import World, fake_world, on_nvme

from radixtier.mover.writebehind import LOSSY_AFTER_S, WRITE_CHUNK_PAGES
from radixtier.policy.admission import AdmitAll, Candidate, Verdict
from radixtier.tree.residency import State

DIRTY, CLEAN, COLD, LOST = State.DIRTY, State.CLEAN, State.COLD, State.LOST


def written(world: World) -> int:
    return sum(map(len, world.store.writes))


def test_every_page_is_written_once_however_often_it_is_queued() -> None:
    world = fake_world(40, 20, 40)
    a, b = world.add(5), world.add(4)
    world.queue(a)
    world.mover.tick()
    world.queue(a)
    world.queue(b[:2])
    world.settle()
    world.queue(a)
    world.settle()
    assert world.states(a) == [CLEAN] * 5 and world.states(b) == [CLEAN] * 4
    assert written(world) == 9 and world.store.used_slots == 9 and world.mover.stats.written == 9
    assert not world.mover.writes.pending and not world.mover.busy
    world.check()


def test_pages_of_one_run_go_out_in_order_as_one_extent() -> None:
    world = fake_world(40, 20, 40)
    a = world.add(6)
    world.mover.tick()
    assert world.store.writes == [[0, 1, 2, 3, 4, 5]]
    assert world.table.slot[a].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_on_its_way_is_bounded() -> None:
    world = fake_world(2000, 2000, 2000, max_write_pages=300)
    world.add(900)
    for _ in range(60):
        world.add(10)
    most = 0
    for _ in range(40):
        world.mover.tick()
        most = max(most, sum(len(job.slots) for job in world.store.jobs.values()))
        assert max(map(len, world.store.writes)) <= WRITE_CHUNK_PAGES
        if world.store.jobs:
            world.store.finish(next(iter(world.store.jobs)))
    world.settle()
    assert 300 <= most < 300 + WRITE_CHUNK_PAGES
    assert int(world.table.count[CLEAN]) == 1500 == written(world)


def test_a_page_is_loaded_from_dram_while_its_write_is_pending() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(3)
    world.load(a)
    world.mover.tick()
    world.load(a)
    world.check()
    world.finish_load()
    world.store.finish_all()
    world.mover.tick()
    world.finish_load()
    assert world.states(a) == [CLEAN] * 3
    world.check()


# ---- failures -------------------------------------------------------------------------------------------


def test_of_a_write_that_fails_half_way_the_first_half_counts_and_the_rest_is_tried_again() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(6)
    world.mover.tick()
    world.store.finish_all(OK, OK, ERROR, ERROR, ERROR, ERROR)
    world.mover.tick()
    assert world.states(a) == [CLEAN] * 2 + [DIRTY] * 4
    assert world.store.used_slots == 2 and world.mover.stats.write_failures == 4
    world.check()
    world.settle()
    assert world.states(a) == [CLEAN] * 6
    assert written(world) == 10 and world.store.used_slots == 6
    world.check()


def test_write_behind_pauses_after_a_failure() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(2)
    for _ in range(3):
        world.mover.tick()
        world.store.finish_all(ERROR, ERROR)
        world.mover.tick()
        assert pause_of(world) == 1
    world.store.finish_all()
    world.mover.tick()
    assert world.states(a) == [CLEAN] * 2


def test_nothing_is_written_while_no_drive_takes_it() -> None:
    world = fake_world(20, 10, 20)
    world.store.writable = False
    a = world.add(2)
    for _ in range(3):
        world.clock.now += 100.0
        world.mover.tick()
        assert world.mover.writes.failing and not world.store.jobs and world.mover.slots_wanted == 0
    world.store.writable = True
    world.settle()
    assert world.states(a) == [CLEAN] * 2


def pause_of(world: World) -> int:
    """Seconds until the next write starts, by trying."""
    for second in range(200):
        world.mover.tick()
        if world.store.jobs:
            return second
        assert world.mover.writes.failing
        world.clock.now += 1.0
    raise AssertionError("write-behind never starts again")


def test_a_burst_of_failures_is_one_reason_to_pause() -> None:
    world = fake_world(20, 10, 20)
    for _ in range(6):
        world.add(1)
        world.mover.tick()
    assert len(world.store.jobs) == 6
    for tag in list(world.store.jobs):
        world.store.finish(tag, [ERROR])
        world.mover.tick()
    assert pause_of(world) == 1


def fail_writes(world: World, times: int = 2) -> None:
    """The drive fails whatever is queued, so many pauses in a row."""
    for _ in range(times):
        world.clock.now += 100.0
        world.mover.tick()
        for tag in list(world.store.jobs):
            world.store.finish(tag, [ERROR] * 9)
        world.mover.tick()
    assert world.mover.writes.failing


def test_after_one_failure_backups_wait_rather_than_cost_what_has_no_other_copy() -> None:
    world = fake_world(20, 4, 20)
    a = world.add(4)
    fail_writes(world, times=1)
    assert world.mover.alloc(1) is None and world.states(a) == [DIRTY] * 4
    world.clock.now += LOSSY_AFTER_S - 1.0
    assert world.mover.alloc(1) is None and world.states(a) == [DIRTY] * 4
    world.settle()
    assert len(world.add(1)) == 1 and world.mover.stats.lost == 0


def test_while_writes_keep_failing_a_backup_takes_the_coldest_dirty_frames() -> None:
    world = fake_world(20, 4, 20)
    a, b = world.add(2), world.add(2)
    assert world.mover.alloc(1) is None, "dirty pages have no other copy yet"
    fail_writes(world)
    c = world.add(1)
    assert world.states(a) == [DIRTY, LOST] and world.states(b) == [DIRTY] * 2
    assert world.mover.stats.lost == 1
    world.check()
    world.settle()
    assert world.states(a) == [CLEAN, LOST] and world.states(b) == [CLEAN] * 2 and world.states(c) == [CLEAN]
    backup = world.refill(a[1:])
    assert backup is not None
    world.finish_backup(backup)
    world.settle()
    assert world.states(a[1:]) == [CLEAN]
    world.check()


def test_a_promotion_never_costs_what_has_no_other_copy() -> None:
    world = fake_world(20, 4, 20)
    (a,) = on_nvme(world, 3)
    b = world.add(4)
    fail_writes(world)
    promotion = world.promote(a)
    world.mover.tick()
    assert world.states(b) == [DIRTY] * 4 and not promotion.ready(world.table)
    world.settle()
    assert promotion.ready(world.table) and world.mover.stats.lost == 0
    world.check()


@pytest.mark.parametrize("use", ["load", "hold"])
def test_a_dirty_page_in_use_is_not_given_up(use: str) -> None:
    world = fake_world(20, 4, 20)
    a, b = world.add(2), world.add(2)
    fail_writes(world)
    world.load(a) if use == "load" else world.promote(a)
    assert world.mover.alloc(3) is None
    assert world.states(a) == [DIRTY] * 2 and world.states(b) == [DIRTY] * 2
    world.add(2)
    assert world.states(a) == [DIRTY] * 2 and world.states(b) == [LOST] * 2
    world.check()


def test_a_dirty_page_that_is_being_written_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.mover.writebehind.WRITE_CHUNK_PAGES", 2)
    world = fake_world(20, 4, 20)
    a, b = world.add(2), world.add(2)
    fail_writes(world)
    world.clock.now += 100.0
    world.mover.tick()
    first, second = world.store.jobs
    world.store.finish(first, [ERROR, ERROR])
    world.mover.tick()
    assert world.mover.writes.failing and len(world.store.jobs) == 1
    assert world.mover.alloc(3) is None
    world.add(2)
    assert world.states(a) == [LOST] * 2 and world.states(b) == [DIRTY] * 2
    world.check()
    world.store.finish(second)
    world.settle()
    assert world.states(b) == [CLEAN] * 2
    world.check()


# ---- slots that fail ------------------------------------------------------------------------------------


def test_a_slot_that_failed_is_not_used_before_the_store_tested_it() -> None:
    world = fake_world(300, 8, 256)
    a = world.add(3)
    world.mover.tick()
    world.store.finish_all(OK, ERROR, ERROR)
    world.mover.tick()
    assert world.store.aside == {1, 2} and world.store.used_slots == 1
    world.check()
    for _ in range(100):
        world.free(world.add(2))
        world.settle(2)
    assert all(slot not in (1, 2) for slots in world.store.writes[1:] for slot in slots)
    assert world.states(a) == [CLEAN] * 3
    world.clear()
    world.check_empty()


@pytest.mark.parametrize("outcome", [ERROR, CORRUPT])
def test_a_slot_that_could_not_be_read_is_given_back(outcome: str) -> None:
    world = fake_world(300, 8, 256)
    (a,) = on_nvme(world, 3)
    promotion = world.promote(a)
    world.store.finish_all(OK, outcome)
    world.settle()
    assert promotion.ready(world.table) and len(world.store.aside) == 1 and len(world.store.rows) == 2
    world.check()


def test_slots_of_a_cancelled_read_are_kept() -> None:
    world = fake_world(300, 8, 256)
    (a,) = on_nvme(world, 3)
    world.drop(world.promote(a))
    world.settle()
    assert not world.store.aside and world.states(a) == [COLD] * 3


def test_a_failed_page_does_not_keep_others_from_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.mover.writebehind.WRITE_CHUNK_PAGES", 2)
    world = fake_world(40, 20, 40, max_write_pages=2)
    a, b = world.add(2), world.add(2)
    world.mover.tick()
    world.store.finish_all(ERROR, ERROR)
    world.mover.tick()
    world.clock.now += 100.0
    world.mover.tick()
    assert (world.table.flight[b] != 0).all() and (world.table.flight[a] == 0).all()


def test_silent_corruption_is_found_by_the_read_and_the_page_is_recomputed() -> None:
    world = fake_world(20, 4, 20)
    a = world.add(3)
    world.mover.tick()
    world.store.finish_all(OK, CORRUPT, OK)
    world.mover.tick()
    world.demote(4)
    promotion = world.promote(a)
    world.settle()
    assert promotion.ready(world.table) and world.states(a) == [CLEAN, LOST, CLEAN]
    assert world.mover.stats.corrupt == 1 == world.mover.stats.read_failures
    assert world.store.used_slots == 2
    backup = world.refill(a[1:2])
    assert backup is not None
    world.finish_backup(backup)
    world.settle()
    assert world.states(a) == [CLEAN] * 3 and world.mover.stats.refilled == 1
    world.check()


# ---- slots ----------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_asked_for_and_written_once_there_is_room() -> None:
    world = fake_world(40, 20, 6)
    a, b = world.add(4), world.add(4)
    world.settle()
    assert world.states(a) == [CLEAN] * 4 and world.states(b) == [CLEAN] * 2 + [DIRTY] * 2
    assert world.mover.slots_wanted == 2
    world.free(a[2:])
    world.settle()
    assert world.states(b) == [CLEAN] * 4 and world.mover.slots_wanted == 0
    world.check()


def test_free_slots_of_a_drive_that_takes_no_pages_do_not_count() -> None:
    world = fake_world(40, 20, 40)
    world.store.elsewhere = True
    world.add(4)
    world.settle()
    assert world.mover.slots_wanted == 4 and world.store.free_slots == 40
    world.store.elsewhere = False
    world.settle()
    assert int(world.table.count[CLEAN]) == 4 and world.mover.slots_wanted == 0


def test_a_run_larger_than_the_drive_is_written_as_far_as_it_goes() -> None:
    world = fake_world(700, 400, 100)
    a = world.add(300)
    world.settle()
    assert int((world.table.state[a] == CLEAN).sum()) == 100 and world.store.free_slots == 0
    assert world.states(a[:100]) == [CLEAN] * 100
    assert world.mover.slots_wanted > 0


def test_nothing_is_asked_for_during_a_pause() -> None:
    """Else the tree would be emptied, step after step, for slots that nobody writes to."""
    world = fake_world(40, 16, 4)
    world.add(4)
    world.mover.tick()
    world.add(4)
    world.mover.tick()
    assert world.mover.slots_wanted == 4
    world.store.finish_all(ERROR, ERROR)
    for _ in range(3):
        world.mover.tick()
        assert world.mover.slots_wanted == 0
    world.settle()
    assert world.mover.slots_wanted == 4 and world.store.free_slots == 0


def test_nothing_is_asked_for_once_the_tree_dropped_what_waited() -> None:
    world = fake_world(40, 16, 4)
    world.add(4)
    b = world.add(4)
    world.settle()
    assert world.mover.slots_wanted == 4
    world.free(b)
    world.settle()
    assert world.mover.slots_wanted == 0 and not world.mover.writes.pending


# ---- pages that go away ---------------------------------------------------------------------------------


def test_a_page_freed_in_the_queue_is_not_written() -> None:
    world = fake_world(20, 10, 20)
    a = world.add(4)
    world.free(a[2:])
    world.settle()
    assert written(world) == 2 and world.store.used_slots == 2
    world.check()


def test_a_reused_handle_is_written_under_its_own_key_only() -> None:
    world = fake_world(1, 1, 4)
    a = world.add(1)
    world.free(a)
    backup = world.backup(1)
    assert backup is not None and backup.pages.tolist() == a.tolist()
    world.mover.release(backup.pages)
    world.mover.filled(backup.pages)
    world.mover.tick()
    assert written(world) == 0, "written before the tree said whose bytes these are"
    world.mover.acquire(backup.pages)
    b = world.finish_backup(backup)
    world.settle()
    world.mover.give_up_frames(b)
    world.promote(b)
    world.settle()
    assert world.states(b) == [CLEAN] and world.mover.stats.corrupt == 0
    world.check()


@pytest.mark.parametrize("outcome", [OK, ERROR])
def test_a_page_freed_while_it_is_written_keeps_its_places_until_the_write_ends(outcome: str) -> None:
    world = fake_world(3, 3, 3)
    a = world.add(3)
    world.mover.tick()
    world.free(a)
    assert world.mover.alloc(1) is None and world.store.alloc(1) is None
    world.check()
    world.store.finish_all(*[outcome] * 3)
    world.mover.tick()
    world.check_empty()
    world.clock.now += 100.0
    world.add(3)
    world.settle()
    world.check()


def test_a_refused_page_stays_in_dram_only() -> None:
    class AdmitPairs(AdmitAll):
        def admit(self, candidate: Candidate) -> Verdict:
            assert candidate.nbytes == candidate.pages * PAGE_BYTES and candidate.uses == 1
            return Verdict.ADMIT if candidate.pages == 2 else Verdict.REJECT

    world = fake_world(20, 10, 20, admission=AdmitPairs())
    a, b = world.add(2), world.add(3)
    world.settle()
    assert world.states(a) == [CLEAN] * 2 and world.states(b) == [DIRTY] * 3
    assert not world.mover.writes.pending


def test_without_a_drive_dram_is_all_there_is() -> None:
    world = fake_world(8, 8, None)
    a, b = world.add(4), world.add(4)
    assert world.mover.alloc(1) is None
    assert not world.mover.tick() and not world.mover.busy and world.mover.slots_wanted == 0
    promotion = world.promote(a)
    assert promotion.ready(world.table)
    world.load(a)
    world.finish_load()
    world.drop(promotion)
    world.free(b)
    world.add(4)
    world.check()
    world.clear()
    world.check_empty()
    assert world.mover.drain(0.0) and world.mover.close(0.0)


def test_filling_and_failing_backups_give_back_what_they_took() -> None:
    world = fake_world(10, 10, 10)
    parent = world.backup(2)
    child = world.backup(2)
    assert parent is not None and child is not None
    world.free(child.pages[1:])
    world.finish_backup(parent, ok=False)
    world.check()
    assert world.states(parent.pages) == [LOST] * 2
    world.finish_backup(child)
    world.settle()
    assert world.states(child.pages[:1]) == [CLEAN]
    assert int(world.table.run[child.pages[1]]) == -1
    world.check()
    world.free(np.concatenate([parent.pages, child.pages[:1]]))
    world.check_empty()
