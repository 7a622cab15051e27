"""The page store: bytes in, the same bytes out or an honest no."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest
from store_rig import ODD, WAIT, Layout, Rig, seeds_of

from radixtier.footprint import HEADER_BYTES
from radixtier.io import posix
from radixtier.io.posix import PosixEngine
from radixtier.store.jobs import Priority, cut
from radixtier.store.slab import StoreError

MakeRig = Callable[..., Rig]


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


# Round trips


@pytest.mark.parametrize("n", [1, 2, 3, 4, 32])
def test_pages_come_back(rig: Rig, n: int) -> None:
    keys, where, sums = rig.stored(n)
    job = rig.read(keys, where, sums)
    assert job.ok.all()
    assert not job.corrupt.any()
    assert (job.checksums == sums).all()
    assert job.error is None
    assert job.nbytes == n * rig.store.slot_bytes


def test_any_pages_in_any_order_into_any_frames(rig: Rig) -> None:
    keys, where, sums = rig.stored(20)
    order = np.random.default_rng(3).permutation(20)[:13]
    frames = np.random.default_rng(4).permutation(32)[:13]
    rig.wipe()
    rig.store.read(frames, where[order], seeds_of(keys)[order], sums[order], "r")
    [job] = rig.settle()
    assert job.ok.all()
    assert [rig.image(f) for f in frames] == [rig.page(keys[i]) for i in order]
    untouched = set(range(32)) - set(frames.tolist())
    assert not any(any(rig.image(f)) for f in untouched)


def test_slots_hold_page_images_and_nothing_else(rig: Rig) -> None:
    keys, where, _ = rig.stored(5)
    size = rig.store.slot_bytes
    content = rig.slab.read_bytes()[HEADER_BYTES:]
    assert len(content) == rig.store.n_slots * size
    for key, slot in zip(keys, where.tolist(), strict=True):
        held = content[slot * size : (slot + 1) * size]
        assert held == rig.page(key) + bytes(size - rig.page_bytes)


def test_neighbours_survive_a_rewrite(rig: Rig) -> None:
    keys, where, sums = rig.stored(9)
    rewritten = rig.write(["new"], where[4:5])
    sums[4] = rewritten.checksums[0]
    keys[4] = "new"
    assert rig.read(keys, where, sums).ok.all()


def test_no_pages_end_at_once(rig: Rig) -> None:
    empty = np.empty(0, dtype=np.int64)
    rig.store.write(empty, empty, seeds_of([]), "none")
    [job] = rig.store.poll()
    assert job.tag == "none"
    assert len(job.ok) == 0


def test_results_come_in_the_order_of_completion(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1)
    _, where, sums = rig.stored(6)
    held = rig.engine.hold("read", times=1)
    for i in range(6):
        rig.store.read(slots(i), where[i : i + 1], seeds_of([("page", i)]), sums[i : i + 1], i)
    assert held.wait()
    held.release()
    assert [job.tag for job in rig.settle()] == [0, 1, 2, 3, 4, 5]
    assert rig.store.poll() == []


# Slots


def test_alloc_hands_out_extents_and_takes_them_back(make_rig: MakeRig) -> None:
    store = make_rig().store
    first, second, third = store.alloc(10), store.alloc(10), store.alloc(12)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (np.diff(first) == 1).all()
    assert store.free_slots == 0
    assert store.alloc(1) is None
    assert store.alloc(0) is not None
    store.free(second[::-1])
    store.free(first[2:5])
    assert (store.free_slots, store.used_slots) == (13, 19)
    again = store.alloc(13)
    assert again is not None
    assert sorted(again.tolist()) == sorted([*second.tolist(), *first[2:5].tolist()])
    assert len(cut(again, 99)) == 2  # as few extents as there are


def test_a_slot_has_one_owner(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys, where, _ = rig.stored(4)
    rig.store.free(where[:1])
    with pytest.raises(AssertionError, match="not in use"):
        rig.store.free(where[:1])
    with pytest.raises(AssertionError, match="not in use"):
        rig.store.write(slots(0), where[:1], seeds_of(keys[:1]), "w")
    with pytest.raises(AssertionError, match="outside the pool"):
        rig.store.write(slots(32), where[1:2], seeds_of(keys[:1]), "w")


def test_a_slot_under_transfer_is_neither_freed_nor_written(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys, where, sums = rig.stored(2)
    held = rig.engine.hold("read")
    rig.store.read(slots(0), where[:1], seeds_of(keys[:1]), sums[:1], "r")
    with pytest.raises(AssertionError, match="being read"):
        rig.store.free(where)
    with pytest.raises(AssertionError, match="being read"):
        rig.store.write(slots(1), where[:1], seeds_of(keys[:1]), "w")
    rig.store.read(slots(1), where[:1], seeds_of(keys[:1]), sums[:1], "again")  # reads may share
    held.release()
    assert rig.store.drain(WAIT)
    with pytest.raises(AssertionError, match="being read"):
        rig.store.free(where)  # not before the result was polled
    assert all(job.ok.all() for job in rig.store.poll())
    rig.store.free(where)


def test_a_page_is_not_read_before_it_is_written(make_rig: MakeRig) -> None:
    """CASES C23: the caller must serve it from DRAM."""
    rig = make_rig()
    where = rig.store.alloc(1)
    assert where is not None
    held = rig.engine.hold("write")
    rig.store.write(slots(0), where, seeds_of(["a"]), "w")
    with pytest.raises(AssertionError, match="before it is written"):
        rig.store.read(slots(1), where, seeds_of(["a"]), seeds_of(["a"]), "r")
    held.release()
    rig.settle()


# Failures


def test_partial_write_stores_only_what_arrived(make_rig: MakeRig, layout: Layout) -> None:
    """CASES C4: the writer fails on the third page of six."""
    rig = make_rig(layout=layout, pages_per_transfer=6, threads=1)
    where = rig.store.alloc(6)
    assert where is not None
    rig.engine.error("write", errno.EIO, within=rig.span(2))
    keys = list("abcdef")
    job = rig.write(keys, where)
    assert job.ok.tolist() == [True, True, False, False, False, False]
    assert "Input/output error" in (job.error or "")
    assert rig.store.stats()["write_errors"] == 4
    rig.engine.clear()
    read = rig.read(keys, where, job.checksums)
    assert read.ok.tolist() == [True, True, False, False, False, False]
    retried = rig.write(keys, where)
    assert rig.read(keys, where, retried.checksums).ok.all()


def test_failed_transfer_spoils_only_its_own_pages(make_rig: MakeRig) -> None:
    rig = make_rig(pages_per_transfer=2)
    keys, where, sums = rig.stored(8)
    rig.engine.error("read", errno.EIO, within=rig.span(4))
    job = rig.read(keys, where, sums)
    assert job.ok.tolist() == [True] * 4 + [False] * 2 + [True] * 2


def test_half_a_page_is_no_page(make_rig: MakeRig, layout: Layout) -> None:
    rig = make_rig(layout=layout, pages_per_transfer=6, threads=1)
    keys, where, sums = rig.stored(6)
    rig.engine.error("read", errno.EIO, within=(rig.span(3)[0] + 4096, 1 << 62))
    assert rig.read(keys, where, sums).ok.tolist() == [True] * 3 + [False] * 3


def test_half_a_page_written_is_not_stored(make_rig: MakeRig, layout: Layout) -> None:
    rig = make_rig(layout=layout, pages_per_transfer=6, threads=1)
    where = rig.store.alloc(6)
    assert where is not None
    rig.engine.full(at=rig.span(3)[0] + 4096)
    assert rig.write(list("abcdef"), where).ok.tolist() == [True] * 3 + [False] * 3


def test_truncated_file_shortens_the_hit(rig: Rig) -> None:
    """CASES C5: the file ends in the middle of the fourth page."""
    keys, where, sums = rig.stored(6)
    with rig.slab.open("r+b") as file:
        file.truncate(rig.span(3)[0] + rig.store.slot_bytes // 2)
    job = rig.read(keys, where, sums)
    assert job.ok.tolist() == [True] * 3 + [False] * 3
    assert job.error
    rewritten = rig.write(keys, where)
    assert rewritten.ok.all()
    assert rig.read(keys, where, rewritten.checksums).ok.all()


def test_torn_page_is_corrupt(make_rig: MakeRig, layout: Layout) -> None:
    """CASES C5: the device claims to have written what it has not."""
    rig = make_rig(layout=layout, pages_per_transfer=1)
    rig.engine.tear("write")
    where = rig.store.alloc(4)
    assert where is not None
    keys = list("abcd")
    written = rig.write(keys, where)
    assert written.ok.all()
    job = rig.read(keys, where, written.checksums)
    assert not job.ok.any()
    assert job.corrupt.all()


def test_one_of_two_writers_fails(make_rig: MakeRig) -> None:
    """CASES C6: two writes of one page interleave; what is published is complete."""
    rig = make_rig(pages_per_transfer=8)
    first, second = rig.store.alloc(4), rig.store.alloc(4)
    assert first is not None
    assert second is not None
    keys = list("abcd")
    for frame, key in enumerate(keys):
        rig.fill(frame, key)
    held = rig.engine.hold("write")
    rig.engine.error("write", within=rig.span(int(second[2])))
    rig.store.write(np.arange(4), first, seeds_of(keys), "first")
    rig.store.write(np.arange(4), second, seeds_of(keys), "second")
    held.release()
    done = {job.tag: job for job in rig.settle()}
    assert done["first"].ok.all()
    assert done["second"].ok.tolist() == [True, True, False, False]
    rig.engine.clear()
    assert rig.read(keys, first, done["first"].checksums).ok.all()
    assert rig.read(keys, second, done["first"].checksums).ok.tolist() == [True, True, False, False]


def test_a_page_deleted_behind_the_index_fails_once_per_read(rig: Rig) -> None:
    """CASES C7, as far as the store goes: one failure, no retry, no exception."""
    keys, where, sums = rig.stored(2)
    with rig.slab.open("r+b") as file:
        file.truncate(rig.span(1)[0])
    before = rig.engine.calls["read"]
    assert rig.read(keys[1:], where[1:], sums[1:]).ok.tolist() == [False]
    assert rig.engine.calls["read"] == before + 1
    assert rig.store.stats()["read_errors"] == 1
    assert rig.read(keys[:1], where[:1], sums[:1]).ok.tolist() == [True]


def test_any_flipped_byte_is_caught(rig: Rig) -> None:
    """CASES C8: on the medium."""
    keys, where, sums = rig.stored(3)
    places = np.random.default_rng(8).integers(0, rig.page_bytes, 40).tolist()
    for at in [0, rig.page_bytes - 1, *places]:
        rig.damage(int(where[1]), at, bit=1 << (at % 8))
        job = rig.read(keys, where, sums)
        assert job.ok.tolist() == [True, False, True]
        assert job.corrupt.tolist() == [False, True, False]
        assert job.error is None
        rig.damage(int(where[1]), at, bit=1 << (at % 8))
    assert rig.read(keys, where, sums).ok.all()
    assert rig.store.stats()["corrupt"] == 42
    assert rig.store.stats()["read_errors"] == 0


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_byte_flipped_on_the_way_is_caught(make_rig: MakeRig, op: str) -> None:
    """CASES C8: between memory and medium."""
    rig = make_rig(pages_per_transfer=4, threads=1)
    fault = rig.engine.flip("read" if op == "read" else "write", times=1)
    keys, where, sums = rig.stored(4)
    job = rig.read(keys, where, sums)
    assert fault.hits == 1
    assert job.ok.sum() == 3
    assert job.corrupt.sum() == 1
    assert rig.read(keys, where, sums).ok.all() == (op == "read")


def test_staged_pages_that_are_corrupt_do_not_reach_their_frames(make_rig: MakeRig) -> None:
    rig = make_rig(layout=ODD)
    keys, where, sums = rig.stored(2)
    rig.damage(int(where[0]), 17)
    rig.read(keys, where, sums)
    assert rig.image(0) == bytes(rig.page_bytes)
    assert rig.image(1) == rig.page(keys[1])


def test_a_page_of_another_identity_is_refused(rig: Rig) -> None:
    keys, where, sums = rig.stored(2)
    job = rig.read([keys[1], keys[0]], where, sums)
    assert job.corrupt.all()
    swapped = rig.read(keys, where[::-1], sums)
    assert swapped.corrupt.all()


def test_padding_is_not_part_of_the_page(make_rig: MakeRig) -> None:
    rig = make_rig(layout=ODD)
    keys, where, sums = rig.stored(1)
    rig.damage(int(where[0]), rig.page_bytes)
    assert rig.read(keys, where, sums).ok.all()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENODEV])
def test_a_dead_device_fails_jobs_and_nothing_else(rig: Rig, number: int) -> None:
    """CASES C13."""
    keys, where, sums = rig.stored(5)
    for op in ("read", "write"):
        rig.engine.error("read" if op == "read" else "write", number)
    assert not rig.read(keys, where, sums).ok.any()
    assert not rig.write(keys, where).ok.any()
    stats = rig.store.stats()
    assert (stats["read_errors"], stats["write_errors"]) == (5, 5)
    rig.engine.clear()
    assert rig.write(keys, where).ok.all()


def test_short_counts_are_finished_or_reported(rig: Rig) -> None:
    """CASES C13."""
    keys, where, sums = rig.stored(5)
    rig.engine.short("read", 4096)
    assert rig.read(keys, where, sums).ok.all()  # block by block, but all of it
    rig.engine.clear()
    rig.engine.short("read", 100)
    job = rig.read(keys, where, sums)
    assert not job.ok.any()
    assert "short" in (job.error or "")


def test_direct_io_refused_at_write(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES C31."""
    real, direct = posix.os.pwritev, []
    rig = make_rig()

    def refuse(fd: int, buffers: object, offset: int) -> int:
        if not direct or fd in direct:
            direct.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(real(fd, buffers, offset))

    monkeypatch.setattr(posix.os, "pwritev", refuse)
    with caplog.at_level(logging.WARNING):
        keys, where, sums = rig.stored(12)
    assert sum("O_DIRECT was refused" in record.message for record in caplog.records) == 1
    assert rig.read(keys, where, sums).ok.all()


def test_disk_full_in_the_middle_of_an_extent(make_rig: MakeRig) -> None:
    """CASES C32."""
    rig = make_rig(pages_per_transfer=4)
    keys, where, sums = rig.stored(4)
    rig.engine.full(at=rig.span(int(where[-1]) + 3)[0])
    more = rig.store.alloc(6)
    assert more is not None
    job = rig.write(list("abcdef"), more)
    assert job.ok.tolist() == [True, True, False, False, False, False]
    assert "No space left" in (job.error or "")
    assert rig.read(keys, where, sums).ok.all()
    rig.store.free(more)
    assert (rig.store.used_slots, rig.store.quarantined) == (4, 4)


def test_a_bug_in_an_engine_does_not_kill_its_thread(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(threads=1)
    keys, where, sums = rig.stored(2)
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine, "readv", lambda buffers, offset: 1 // 0)
        job = rig.read(keys, where, sums)
    assert not job.ok.any()
    assert "ZeroDivisionError" in (job.error or "")
    assert rig.read(keys, where, sums).ok.all()


def test_padding_on_disk_never_holds_other_bytes(make_rig: MakeRig) -> None:
    rig = make_rig(layout=ODD, threads=1)
    keys, where, sums = rig.stored(1)
    rig.damage(int(where[0]), rig.page_bytes + 3)
    rig.read(keys, where, sums)  # brings the odd byte into the staging buffer
    rig.write(keys, where)
    start, end = rig.span(int(where[0]))
    assert not any(rig.slab.read_bytes()[start + rig.page_bytes : end])


# Queue


def test_calls_return_while_the_device_stands_still(make_rig: MakeRig) -> None:
    rig = make_rig(threads=2, n_slots=64)
    held = rig.engine.hold("write")
    where = rig.store.alloc(32)
    assert where is not None
    rig.store.write(np.arange(32), where, seeds_of(range(32)), "w")
    assert held.wait()
    assert rig.store.poll() == []
    assert not rig.store.drain(0.01)
    stats = rig.store.stats()
    assert stats["running"] == 1  # half of the threads
    assert stats["queue_depth"] == 10
    held.release()
    assert rig.settle()[0].ok.all()


def test_reads_go_before_writes_and_demanded_ones_first(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=1)
    keys, where, sums = rig.stored(4)
    more = rig.store.alloc(4)
    assert more is not None
    held = rig.engine.hold("write", times=1)
    rig.store.write(slots(8, 9, 10, 11), more, seeds_of(range(4)), "write")
    assert held.wait()
    seeds = seeds_of(keys)
    rig.store.read(slots(0), where[:1], seeds[:1], sums[:1], "maybe", Priority.SPECULATIVE)
    rig.store.read(slots(1), where[1:2], seeds[1:2], sums[1:2], "now")
    rig.store.read(slots(2), where[2:3], seeds[2:3], sums[2:3], "now too")
    held.release()
    done = rig.settle()
    assert [job.tag for job in done] == ["now", "now too", "maybe", "write"]
    assert all(job.ok.all() for job in done)


def test_writes_leave_threads_for_reads(make_rig: MakeRig) -> None:
    rig = make_rig(threads=4, pages_per_transfer=1)
    keys, where, sums = rig.stored(2)
    held = rig.engine.hold("write")
    more = rig.store.alloc(8)
    assert more is not None
    rig.store.write(np.arange(8, 16), more, seeds_of(range(8)), "write")
    assert held.wait(2)
    rig.store.read(slots(0, 1), where, seeds_of(keys), sums, "read")
    deadline = threading.Event()
    for _ in range(200):
        if done := rig.store.poll():
            break
        deadline.wait(0.05)
    assert [job.tag for job in done] == ["read"]
    held.release()
    assert [job.tag for job in rig.settle()] == ["write"]


def test_cancel_drops_what_has_not_started(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=2)
    keys, where, sums = rig.stored(8)
    held = rig.engine.hold("read", times=1)
    rig.store.read(np.arange(8), where, seeds_of(keys), sums, "a")
    rig.store.read(np.arange(8, 10), where[:2], seeds_of(keys[:2]), sums[:2], "b")
    assert held.wait()
    before = rig.engine.calls["read"]
    rig.store.cancel("a")
    rig.store.cancel("nobody")
    held.release()
    done = {job.tag: job for job in rig.settle()}
    assert done["a"].cancelled
    assert done["a"].ok.tolist() == [True, True] + [False] * 6
    assert done["a"].error is None
    assert not done["b"].cancelled
    assert done["b"].ok.all()
    assert rig.engine.calls["read"] == before + 1
    assert rig.store.stats()["cancelled"] == 6
    rig.store.free(where)


def test_cancel_of_a_job_that_has_not_begun_ends_it_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1)
    keys, where, sums = rig.stored(2)
    held = rig.engine.hold("read")
    rig.store.read(slots(0), where[:1], seeds_of(keys[:1]), sums[:1], "first")
    assert held.wait()
    rig.store.read(slots(1), where[1:], seeds_of(keys[1:]), sums[1:], "second")
    rig.store.cancel("second")
    [job] = rig.store.poll()
    assert (job.tag, job.cancelled, job.ok.tolist()) == ("second", True, [False])
    rig.store.free(where[1:])
    held.release()
    rig.settle()


def test_wake_is_called_once_per_job(make_rig: MakeRig) -> None:
    wakes: list[int] = []
    rig = make_rig(wakes=wakes, pages_per_transfer=1)
    keys, where, sums = rig.stored(6)
    rig.read(keys, where, sums)
    assert len(wakes) == 2


def test_a_failing_wake_does_not_stop_the_store(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig(threads=1)
    rig.wake = lambda: 1 // 0  # type: ignore[assignment, method-assign, return-value]
    rig.reopen()
    keys, where, sums = rig.stored(3)
    assert rig.read(keys, where, sums).ok.all()
    assert "wake callback failed" in caplog.text


def test_bandwidth_and_times_are_measured(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert rig.store.read_bandwidth() == 0.0
    keys, where, sums = rig.stored(8)
    assert rig.store.read_bandwidth() == 0.0  # writes do not count
    rig.engine.delay("read", 0.01)
    job = rig.read(keys, where, sums)
    assert 0 < rig.store.read_bandwidth() <= 8 * rig.store.slot_bytes / 0.01
    assert job.service_seconds >= 0.01
    assert job.queue_seconds >= 0
    stats = rig.store.stats()
    assert stats["read_busy_seconds"] >= 0.03
    assert stats["read_bytes"] == stats["write_bytes"] == 8 * rig.store.slot_bytes
    assert stats["read_pages"] == stats["write_pages"] == 8


# Verifying


def test_verify_finds_what_a_read_would_find(rig: Rig) -> None:
    keys, where, sums = rig.stored(7)
    rig.damage(3, 9)
    rig.wipe()
    rig.store.verify(where, seeds_of(keys), sums, "v")
    [job] = rig.settle()
    assert (job.tag, job.kind) == ("v", "verify")
    assert job.ok.tolist() == [True] * 3 + [False] + [True] * 3
    assert job.corrupt.tolist() == [not ok for ok in job.ok]
    assert not any(any(rig.image(frame)) for frame in range(32)), "no frame is touched"
    stats = rig.store.stats()
    assert (stats["verify_pages"], stats["verify_bytes"]) == (6, 6 * rig.store.slot_bytes)
    assert (stats["verify_errors"], stats["read_pages"], stats["corrupt"]) == (0, 0, 1)
    assert rig.store.read_bandwidth() == 0.0
    rig.engine.error("read", errno.EIO)
    rig.store.verify(where, seeds_of(keys), sums, "v")
    assert not rig.settle()[0].ok.any()
    assert rig.store.stats()["verify_errors"] == 7


def test_verify_reads_in_the_order_on_the_drive_and_tells_in_that_of_the_call(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=8)
    keys, where, sums = rig.stored(7)
    rig.damage(3, 9)
    reads = rig.engine.delay("read", 0.0)
    order = np.array([6, 3, 0, 5, 1, 4, 2])
    rig.store.verify(where[order], seeds_of(keys)[order], sums[order], "v")
    [job] = rig.settle()
    assert job.slots.tolist() == where[order].tolist()
    assert np.flatnonzero(job.corrupt).tolist() == np.flatnonzero(~job.ok).tolist() == [1]
    assert (job.checksums == sums[order]).tolist() == job.ok.tolist()
    assert reads.hits == 1


def test_verifying_comes_last_and_one_at_a_time(make_rig: MakeRig) -> None:
    rig = make_rig(threads=6, pages_per_transfer=1)
    keys, where, sums = rig.stored(8)
    seeds = seeds_of(keys)
    held = rig.engine.hold("read")
    rig.store.verify(where[:4], seeds[:4], sums[:4], "scrub")
    assert held.wait(1)
    assert rig.store.stats()["running"] == 1
    rig.store.read(slots(0, 1, 2), where[4:7], seeds[4:7], sums[4:7], "read")
    assert held.wait(4)
    more = rig.store.alloc(6)
    assert more is not None
    writes = rig.engine.hold("write")
    rig.store.write(np.arange(8, 14), more, seeds_of(range(6)), "write")
    assert writes.wait(1), "the other of the two that may write"
    assert rig.store.stats()["queue_depth"] == 3 + 5
    with pytest.raises(AssertionError, match="being read"):
        rig.store.free(where[:1])
    held.release()
    writes.release()
    assert all(job.ok.all() for job in rig.settle())


def test_verify_can_be_cancelled(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=1)
    keys, where, sums = rig.stored(4)
    held = rig.engine.hold("read", times=1)
    rig.store.verify(where, seeds_of(keys), sums, "v")
    assert held.wait()
    rig.store.cancel("v")
    held.release()
    [job] = rig.settle()
    assert job.cancelled and job.ok.tolist() == [True, False, False, False]


# Several drives


def test_pages_of_several_drives_come_back(make_rig: MakeRig, layout: Layout) -> None:
    rig = make_rig(layout=layout, drives=3, n_slots=36, threads=6)
    keys, where, sums = rig.stored(32)
    assert set((where // 12).tolist()) == {0, 1, 2}
    order = np.random.default_rng(5).permutation(32)
    job = rig.read([keys[i] for i in order], where[order], sums[order])
    assert job.ok.all() and job.nbytes == 32 * rig.store.slot_bytes
    for directory in rig.directories:
        assert rig.engines[directory].calls["write"] > 1
    size = rig.store.slot_bytes
    for key, slot in zip(keys, where.tolist(), strict=True):
        drive, start = rig.place(slot)
        held = rig.files(drive).slab.read_bytes()[start : start + size]
        assert held == rig.page(key) + bytes(size - rig.page_bytes)


def test_cancel_reaches_every_drive(make_rig: MakeRig) -> None:
    rig = make_rig(drives=2, threads=1, pages_per_transfer=1)
    keys, where, sums = rig.stored(8)
    holds = [engine.hold("read", times=1) for engine in rig.engines.values()]
    rig.store.read(np.arange(8), where, seeds_of(keys), sums, "r")
    assert all(held.wait() for held in holds)
    rig.store.cancel("r")
    rig.behave()
    [job] = rig.settle()
    assert job.cancelled and job.ok.sum() == 2 and rig.store.stats()["cancelled"] == 6


def test_threads_are_shared_out(make_rig: MakeRig) -> None:
    before = threading.active_count()
    for drives, threads, expected in ((1, 8, 8), (2, 8, 8), (3, 8, 12), (2, 16, 16), (2, 3, 6)):
        rig = make_rig(drives=drives, threads=threads, n_slots=24)
        assert threading.active_count() == before + expected + drives  # one keeper each
        rig.close()


# Life and death


def test_close_cancels_waits_and_gives_the_directory_up(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=1)
    where = rig.store.alloc(6)
    assert where is not None
    held = rig.engine.hold("write", times=1)
    rig.store.write(np.arange(6), where, seeds_of(range(6)), "w")
    assert held.wait()
    closer = threading.Thread(target=rig.store.close, daemon=True)
    closer.start()
    while rig.store.stats()["cancelled"] < 5:
        threading.Event().wait(0.01)
    held.release()
    closer.join(WAIT)
    assert not closer.is_alive()
    [job] = rig.store.poll()
    assert job.cancelled
    assert job.ok.tolist() == [True] + [False] * 5
    Rig(rig.directory).store.close()


def test_close_does_not_wait_for_ever(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig(threads=1)
    where = rig.store.alloc(1)
    assert where is not None
    held = rig.engine.hold("write")
    rig.store.write(slots(0), where, seeds_of(["a"]), "w")
    assert held.wait()
    assert not rig.store.close(0.05)
    assert "stuck" in caplog.text
    with pytest.raises(StoreError, match="in use"):
        Rig(rig.directory)
    held.release()
    assert rig.store.close(WAIT)
    Rig(rig.directory).store.close()


def test_after_close_jobs_fail_and_do_not_raise(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys, where, sums = rig.stored(2)
    assert rig.store.close()
    rig.store.read(slots(0, 1), where, seeds_of(keys), sums, "late")
    [job] = rig.store.poll()
    assert not job.ok.any()
    assert "closed" in (job.error or "")
    rig.store.free(where)
    assert rig.store.close()


def test_no_thread_and_no_descriptor_is_left(make_rig: MakeRig) -> None:
    threads = threading.active_count()
    rig = make_rig(threads=5)
    assert threading.active_count() == threads + 5 + 1  # and the keeper
    assert rig.store.close()
    assert threading.active_count() == threads


def test_an_engine_that_cannot_open_gives_the_directory_up(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig()
    rig.store.close()

    def refuse(path: object, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(PosixEngine, "open", lambda self, path, size: refuse(path, size))
        with pytest.raises(StoreError, match=r"--radix-tier-nvme-path.*Input/output error"):
            rig.open(4)
    rig.open(4)


def test_cut_keeps_runs_together() -> None:
    assert cut(slots(), 4) == []
    assert cut(slots(5), 4) == [(0, 1)]
    assert cut(slots(0, 1, 2, 3, 4, 5), 4) == [(0, 4), (4, 6)]
    assert cut(slots(3, 2, 1), 4) == [(0, 1), (1, 2), (2, 3)]
    assert cut(slots(7, 8, 1, 2, 3, 9), 2) == [(0, 2), (2, 4), (4, 5), (5, 6)]
