"""Drives in trouble: serving goes on, the operator is told once, and the drive comes back by itself."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from store_rig import ALIGNED, IDENTITY, PAGE_TOKENS, Rig, page_seeds, path_of, seeds_of

from radixtier.footprint import footprint
from radixtier.store import health, slab, volume
from radixtier.store.health import DriveHealth
from radixtier.store.jobs import Ints
from radixtier.store.journal import Batch, Journal, JournalError
from radixtier.store.paths import find_stores
from radixtier.store.slab import Slab

MakeRig = Callable[..., Rig]

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def pair(make_rig: MakeRig) -> Rig:
    """Two drives with 16 slots each."""
    return make_rig(drives=2, pages_per_transfer=2, identity=IDENTITY)


def well(rig: Rig) -> Callable[[], bool]:
    return lambda: all(drive.writable for drive in rig.store.health())


def ill(rig: Rig, drive: int = 0) -> Callable[[], bool]:
    return lambda: not rig.store.health()[drive].writable


def on(rig: Rig, slots: Ints, drive: int) -> np.ndarray:
    mask: np.ndarray = slots // (rig.store.n_slots // len(rig.directories)) == drive
    return mask


# The device fails


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ETIMEDOUT])
def test_a_drive_that_fails_takes_only_its_own_pages(pair: Rig, op: str, number: int) -> None:
    put = pair.put(path_of(8))
    first = on(pair, put.slots, 0)
    assert first.sum() == 4
    pair.engine.error("read" if op == "read" else "write", number)
    if op == "read":
        assert (pair.get(put).ok == ~first).all()
    else:
        slots = pair.store.alloc(8)
        assert slots is not None
        job = pair.write(range(8), slots)
        assert (job.ok == on(pair, slots, 1)).all() and os.strerror(number) in (job.error or "")
    one, other = pair.store.health()
    assert not one.writable and os.strerror(number) in (one.reason or "") and one.since > 1e9
    assert other == other._replace(writable=True, reason=None, since=0.0)
    assert pair.store.writable
    more = pair.store.alloc(6)
    assert more is not None and on(pair, more, 1).all()
    pair.behave()
    pair.until(well(pair))
    assert pair.get(put).ok.all()
    spread = pair.store.alloc(4)
    assert spread is not None and on(pair, spread, 0).sum() == 2


def test_the_operator_is_told_once_and_when_it_is_over(pair: Rig, caplog: pytest.LogCaptureFixture) -> None:
    put = pair.put(path_of(8))
    pair.engine.error("read", errno.EIO)
    with caplog.at_level(logging.INFO, "radixtier.store.health"):
        for _ in range(5):
            pair.get(put)
        calls = pair.engine.calls["read"]
        pair.until(lambda: pair.engine.calls["read"] > calls + 3)  # tests that fail say nothing
        pair.behave()
        pair.until(well(pair))
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert str(pair.directories[0]) in told[0][1] and "Input/output error" in told[0][1]
    assert "look for errors of the device" in told[0][1]
    assert f"{pair.directories[0]} works again" in told[1][1]


def test_a_file_system_that_became_read_only(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    slots = rig.store.alloc(2)
    assert slots is not None
    rig.engine.error("write", errno.EROFS)
    assert not rig.write("ab", slots).ok.any()
    assert not rig.store.writable and rig.store.alloc(1) is None
    assert rig.get(put).ok.all()
    rig.behave()
    rig.until(well(rig))
    assert rig.write("ab", slots).ok.all()


def test_disk_full_in_the_middle_of_an_extent(pair: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """CASES C32, on one of two drives."""
    slots = pair.store.alloc(12)
    assert slots is not None
    mine = slots[on(pair, slots, 0)]
    pair.engine.full(at=pair.span(int(mine[3]))[0])
    job = pair.write(range(12), slots)
    assert (job.ok | np.isin(slots, mine[3:])).all() and not job.ok[np.isin(slots, mine[3:])].any()
    assert f"{pair.directories[0]} takes no new pages" in caplog.text and "No space left" in caplog.text
    assert pair.read(range(12), slots, job.checksums).ok.tolist() == job.ok.tolist()
    pair.store.free(slots[~job.ok])
    assert pair.store.quarantined == 3
    pair.behave()
    pair.until(lambda: pair.store.quarantined == 0 and well(pair)())
    assert pair.store.used_slots == int(job.ok.sum())


def test_a_test_of_a_drive_that_fails_keeps_it_out(make_rig: MakeRig) -> None:
    rig = make_rig()
    slots = rig.store.alloc(1)
    assert slots is not None
    rig.engine.error("write", within=rig.span(0), times=1)
    scratch = rig.engine.flip("read", within=(4096, 8192))
    rig.write("a", slots)
    rig.until(lambda: "something else than was written" in (rig.store.health()[0].reason or ""))
    assert scratch.hits
    rig.behave()
    rig.until(well(rig))


# The device hangs


def test_a_drive_that_hangs_holds_up_nobody(pair: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    put = pair.put(path_of(16))
    first = on(pair, put.slots, 0)
    seeds = page_seeds(put.stretch)
    held = pair.engine.hold("read")
    frames = np.arange(16)
    pair.store.read(frames[:8], put.slots[:8], seeds[:8], put.sums[:8], "hung")
    assert held.wait(2)
    monkeypatch.setattr(health, "STALL_S", 0.02)
    pair.until(lambda: "has been going on" in (pair.store.health()[0].reason or ""))
    pair.store.read(frames[8:], put.slots[8:], seeds[8:], put.sums[8:], "at once")
    job = pair.job("at once")
    assert (job.ok == ~first[8:]).all() and "the drive hangs" in (job.error or "")
    new = pair.store.alloc(4)
    assert new is not None and on(pair, new, 1).all()
    frame = np.array([8])
    pair.fill(8, "x")
    pair.store.write(frame, new[:1], seeds_of(["x"]), "other")
    assert pair.job("other").ok.all()
    held.release()
    jobs = {job.tag: job for job in pair.settle()}
    assert jobs["hung"].ok.sum() >= 4
    pair.until(well(pair))
    assert pair.get(put).ok.all()


def test_what_waits_for_a_drive_that_hangs_fails(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(threads=1, pages_per_transfer=1)
    keys, where, sums = rig.stored(4)
    held = rig.engine.hold("read", times=1)
    rig.store.read(np.arange(1), where[:1], seeds_of(keys[:1]), sums[:1], "hung")
    assert held.wait()
    rig.store.read(np.arange(1, 4), where[1:], seeds_of(keys[1:]), sums[1:], "waiting")
    monkeypatch.setattr(health, "STALL_S", 0.02)
    job = rig.job("waiting")
    assert not job.ok.any() and job.error == "the drive hangs"
    held.release()
    rig.until(well(rig))
    rig.store.free(where)
    assert rig.store.quarantined == 0, "nobody asked the drive for these pages"


def test_a_journal_that_hangs_is_a_drive_that_hangs(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(identity=IDENTITY)
    arrived, go_on, real = threading.Event(), threading.Event(), Journal.apply

    def apply(journal: Journal, batch: Batch) -> None:
        arrived.set()
        assert go_on.wait(20)
        real(journal, batch)

    monkeypatch.setattr(Journal, "apply", apply)
    put = rig.put(path_of(3))
    assert arrived.wait(20)
    assert rig.get(put).ok.all(), "transfers do not wait for the journal"
    monkeypatch.setattr(health, "STALL_S", 0.02)
    rig.until(ill(rig))
    assert not rig.store.clear(0.01)
    go_on.set()
    rig.until(well(rig))


def test_a_stuck_drive_does_not_keep_others_from_closing(pair: Rig, caplog: pytest.LogCaptureFixture) -> None:
    put = pair.put(path_of(8))
    held = pair.engine.hold("read")
    pair.store.read(np.arange(8), put.slots, page_seeds(put.stretch), put.sums, "stuck")
    assert held.wait()
    assert not pair.store.close(1.0)
    assert f"a transfer on {pair.files(0).slab} is stuck" in caplog.text
    assert f"a transfer on {pair.files(1).slab} is stuck" not in caplog.text
    slab.unlock(slab.lock(pair.directories[1], 0))  # this one is given up
    held.release()
    assert pair.store.close(20)


# The files vanish


def test_a_directory_that_goes_and_comes_back(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    away = rig.directory.with_name("away")
    rig.directory.rename(away)
    rig.until(ill(rig))
    assert "has vanished" in (rig.store.health()[0].reason or "")
    assert rig.get(put).ok.all(), "the open files are still there"
    rig.store.free(put.slots[3:])
    away.rename(rig.directory)
    rig.until(well(rig))
    assert rig.get(put.part(0, 3)).ok.all()
    later = rig.put(path_of(2, name=1))
    rig.reopen()
    found = rig.restored()
    assert {s for p in found for s in p.slots.tolist()} == {*put.slots[:3].tolist(), *later.slots.tolist()}
    assert all(rig.get(p).ok.all() for p in found)


@pytest.mark.parametrize("how", ["directory", "files"])
def test_a_directory_that_is_emptied_gets_a_new_slab(make_rig: MakeRig, how: str) -> None:
    rig = make_rig(identity=IDENTITY)
    put, kept = rig.put(path_of(4)), rig.put(path_of(3, name=1))
    assert rig.store.close(20) is True
    rig.open(32)
    [one, other] = rig.restored()
    old = rig.engine
    free = rig.store.alloc(2)
    assert free is not None
    if how == "directory":
        shutil.rmtree(rig.directory)
        rig.until(ill(rig))
        rig.directory.mkdir(mode=0o700)
    else:
        for path in rig.directory.iterdir():
            path.unlink()
    rig.until(lambda: rig.engine is not old and well(rig)())
    assert not rig.get(one).ok.any() and not rig.get(other).ok.any()
    assert not rig.write("ab", free).ok.any(), "these slots are of the slab that is gone"
    rig.store.free(np.concatenate([put.slots, free]))
    assert rig.store.quarantined == 0 and rig.store.used_slots == 3
    again = rig.put(path_of(6, name=2))
    assert rig.get(again).ok.all() and not rig.get(kept).ok.any()
    assert [path.stat().st_mode & 0o777 for path in rig.directory.iterdir()] == [0o600] * 5
    rig.reopen()
    [found] = rig.restored()
    assert found.slots.tolist() == again.slots.tolist() and rig.get(found).ok.all()


def test_pages_of_a_slab_that_is_gone_do_not_go_on_record(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4), record=False)
    old = rig.engine
    rig.slab.unlink()
    rig.until(lambda: rig.engine is not old and well(rig)())
    rig.store.record(put.stretch, put.slots, put.sums, 1000.0)
    rig.reopen()
    assert rig.restored() == [] and rig.store.free_slots == 32


def test_no_slab_is_made_on_another_file_system(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drive that was unmounted leaves an empty directory on the system's own disk."""
    rig = make_rig(identity=IDENTITY)
    monkeypatch.setattr(Slab, "moved", lambda self: True)
    rig.slab.unlink()
    rig.until(lambda: "another file system" in (rig.store.health()[0].reason or ""))
    assert not rig.slab.exists()
    monkeypatch.undo()


def test_a_new_directory_that_another_server_has_taken_is_left_alone(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    rig.directory.rename(rig.directory.with_name("away"))
    rig.until(ill(rig))
    building = rig.directory.with_name("building")
    other = Rig(building, identity=IDENTITY)
    building.rename(rig.directory)
    rig.until(lambda: "in use by process" in (rig.store.health()[0].reason or ""))
    assert [files.slab.stat().st_ino for files in find_stores(rig.directory)] == [
        os.fstat(other.store._drives[0].volume.slab._fd).st_ino
    ]
    other.close()


def test_a_journal_that_vanished_is_made_anew(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    rig.until(rig.recorded)
    db = rig.files().db
    inode = db.stat().st_ino
    held = db.open("rb")  # so that no new file gets its number
    db.unlink()
    rig.until(lambda: db.exists() and db.stat().st_ino != inode and well(rig)())
    held.close()
    assert rig.get(put).ok.all()
    later = rig.put(path_of(2, name=1))
    rig.reopen()
    [found] = rig.restored()
    assert found.slots.tolist() == later.slots.tolist()


# The journal fails


class Refusal:
    """Makes journals refuse batches; ``full`` as `JournalError` has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: JournalError | None = None
        self.only_adds = False
        self.batches: list[tuple[int, int]] = []
        real = Journal.apply

        def apply(journal: Journal, batch: Batch) -> None:
            self.batches.append((len(batch.adds), len(batch.frees)))
            if self.error is not None and (batch.adds or not self.only_adds):
                raise self.error
            real(journal, batch)

        monkeypatch.setattr(Journal, "apply", apply)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    return Refusal(monkeypatch)


def test_a_journal_that_fails_withholds_slots_until_it_works(make_rig: MakeRig, refusal: Refusal) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    rig.until(lambda: refusal.batches == [(1, 0)])
    refusal.error = JournalError("disk I/O error")
    rig.store.free(put.slots)
    assert rig.store.used_slots == 4
    rig.until(ill(rig))
    assert "disk I/O error" in (rig.store.health()[0].reason or "") and rig.store.alloc(1) is None
    rig.until(lambda: len(refusal.batches) > 4)  # brought back, and failed again
    assert rig.store.used_slots == 4
    refusal.error = None
    rig.until(lambda: rig.store.free_slots == 32 and well(rig)())
    rig.reopen()
    assert rig.restored() == []


def test_rows_that_a_failing_journal_could_not_take_are_dropped_and_counted(
    make_rig: MakeRig, refusal: Refusal
) -> None:
    rig = make_rig(identity=IDENTITY)
    refusal.error = JournalError("disk I/O error")
    put = rig.put(path_of(4))
    rig.until(lambda: rig.store.stats()["journal_dropped"] == 4)
    refusal.error = None
    rig.until(well(rig))
    assert rig.get(put).ok.all()
    rig.store.free(put.slots)
    rig.until(lambda: rig.store.free_slots == 32)
    assert refusal.batches[-1] == (0, 1), "nobody knows whether the rows are there"


def test_a_full_journal_costs_the_restart_not_the_store(
    make_rig: MakeRig, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    rig.until(lambda: len(refusal.batches) == 1)
    refusal.error, refusal.only_adds = JournalError("database or disk is full", full=True), True
    late = [rig.put(path_of(2, name=i)) for i in range(1, 4)]
    rig.store.free(put.slots[2:])
    rig.until(lambda: rig.store.used_slots == 8 and rig.store.stats()["journal_dropped"] == 6)
    assert rig.store.writable and all(rig.get(p).ok.all() for p in late)
    assert caplog.text.count("will not be found after a restart") == 1
    refusal.error = None
    rig.reopen()
    [found] = rig.restored()
    assert found.slots.tolist() == put.slots[:2].tolist()


def test_a_journal_with_no_room_for_deletions_is_trouble(make_rig: MakeRig, refusal: Refusal) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    rig.until(lambda: len(refusal.batches) == 1)
    refusal.error = JournalError("database or disk is full", full=True)
    rig.store.free(put.slots)
    rig.until(ill(rig))
    assert rig.store.used_slots == 4
    refusal.error = None
    rig.until(lambda: rig.store.free_slots == 32 and well(rig)())


def test_bytes_that_cannot_be_synced_do_not_go_on_record(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    first = rig.put(path_of(2))
    rig.until(rig.recorded)
    rig.store.free(first.slots)
    rig.engine.error("sync")
    put = rig.put(path_of(4, name=1))
    rig.until(lambda: rig.store.stats()["journal_dropped"] == 4)
    assert "cannot be synced" in (rig.store.health()[0].reason or "cannot be synced")
    rig.until(lambda: rig.store.used_slots == 4)  # deletions need no sync
    rig.behave()
    rig.until(well(rig))
    assert rig.get(put).ok.all()
    rig.reopen()
    assert rig.restored() == []


# The file system is full


def test_free_space_of_others_stays_free(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 40]
    monkeypatch.setattr(slab, "free_disk_bytes", lambda directory: free[0])
    monkeypatch.setattr(volume, "free_disk_bytes", lambda directory: free[0])
    rig = make_rig(identity=IDENTITY, min_free_bytes=1 << 30)
    put = rig.put(path_of(4))
    free[0] = (1 << 30) - 1
    rig.until(ill(rig))
    reason = rig.store.health()[0].reason or ""
    assert f"{(1 << 30) - 1} bytes free" in reason and f"{1 << 30} that are to stay free" in reason
    assert rig.store.alloc(1) is None and rig.get(put).ok.all()
    rig.store.free(put.slots[2:])
    rig.until(lambda: rig.store.used_slots == 2)  # giving back needs no room
    free[0] = 1 << 30
    rig.until(well(rig))


def test_a_file_system_that_cannot_be_asked_is_trouble(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(min_free_bytes=1)

    def fail(directory: Path) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(volume, "free_disk_bytes", fail)
        rig.until(ill(rig))
        assert "cannot be read" in (rig.store.health()[0].reason or "")
    rig.until(well(rig))


def test_figures_of_a_drive(make_rig: MakeRig) -> None:
    rig = make_rig(layout=ALIGNED)
    slots = rig.store.alloc(20)
    assert slots is not None
    rig.store.free(slots[[0, 1, 2, 8, 9]])
    (drive,) = rig.store.health()
    assert drive == DriveHealth(rig.directory, True, None, 0.0, 17, 15, 0, 12, 3, drive.engine)
    assert drive.engine.startswith("posix")
    assert footprint(32, rig.page_bytes, PAGE_TOKENS) > 32 * rig.store.slot_bytes
