"""What a rank borrows of another one's store: it reads pages there, checked, follows new slabs, and owns nothing."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_rig import ALIGNED, IDENTITY, MISALIGNED, ODD, WAIT, Layout, Rig, path_of, seeds_of
from test_landing_store import KEYS, LandingRig

from radixtier.store import borrowed_drive, health
from radixtier.store.borrowed import BorrowedStore
from radixtier.store.slab import StoreError


class Reader(Rig):
    """The same frames and shortcuts over what is borrowed of another rig's store."""

    def __init__(self, owner: Rig, **options: Any) -> None:
        self.owner = owner
        self.wanted = options
        self.__dict__ |= {name: value for name, value in vars(owner).items() if name not in ("engines", "store")}
        self.engines = {}
        self.borrow()

    def borrow(self) -> None:
        known = {"page_tokens", "identity", "threads", "io_bytes", "landing"}
        options = {name: value for name, value in self.owner.options.items() if name in known} | self.wanted
        self.store: Any = BorrowedStore(
            self.owner.directories, self.frames, engine=self.make_engine, wake=self.wake, **options
        )

    def well(self) -> bool:
        return all(drive.writable for drive in self.store.health())


Borrow = Callable[..., Reader]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_PROBE_S", 0.01)
    monkeypatch.setattr(health, "LAST_PROBE_S", 0.02)
    monkeypatch.setattr(borrowed_drive, "RETRY_S", 0.01)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def owner_of(tmp_path: Path, stack: ExitStack) -> Callable[..., Rig]:
    def make(**options: Any) -> Rig:
        rig = Rig(tmp_path / "nvme", **{"identity": IDENTITY, **options})
        stack.callback(rig.close)
        return rig

    return make


@pytest.fixture
def borrow(stack: ExitStack) -> Borrow:
    def make(owner: Rig, **options: Any) -> Reader:
        reader = Reader(owner, **options)
        stack.callback(reader.close)
        return reader

    return make


def files_of(owner: Rig) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for directory in owner.directories for path in sorted(directory.iterdir())}


# Reading


@pytest.mark.parametrize("drives", [1, 2])
@pytest.mark.parametrize("layout", [ALIGNED, ODD, MISALIGNED])
def test_what_the_owner_wrote_is_read(
    owner_of: Callable[..., Rig], borrow: Borrow, layout: Layout, drives: int
) -> None:
    owner = owner_of(layout=layout, drives=drives)
    reader = borrow(owner)
    keys, slots, sums = owner.stored(20)
    assert reader.store.n_slots == owner.store.n_slots
    assert reader.read(keys, slots, sums).ok.all()
    backwards = slice(None, None, -3)
    assert reader.read(keys[backwards], slots[backwards], sums[backwards]).ok.all()
    assert reader.store.stats()["read_pages"] == 27
    assert owner.store.stats()["read_pages"] == 0


def test_no_pages_are_read_at_once(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    none = np.empty(0, np.int64)
    assert borrow(owner_of()).read([], none, none.astype(np.uint64)).ok.all()


def test_what_is_not_the_page_is_not_read(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    reader = borrow(owner)
    keys, slots, sums = owner.stored(4)
    owner.damage(int(slots[1]), 100)
    job = reader.read(keys, slots, sums)
    assert job.ok.tolist() == [True, False, True, True]
    assert job.corrupt.tolist() == [False, True, False, False]
    assert reader.read(keys[::-1], slots, sums).corrupt.all(), "others' intact bytes"


def test_pages_land_and_are_checked(tmp_path: Path, stack: ExitStack) -> None:
    owner = LandingRig(tmp_path / "nvme", identity=IDENTITY)
    stack.callback(owner.close)
    done = owner.write()
    assert owner.store is not None
    theirs, store = LandingRig.__new__(LandingRig), owner.store
    theirs.__dict__ |= vars(owner)
    theirs.store = BorrowedStore(  # type: ignore[assignment]
        owner.directories, owner.frames, engine=owner.make_engine, landing=owner.zone, page_tokens=4, identity=IDENTITY
    )
    stack.callback(theirs.store.close)
    expected = [owner.page(frame) for frame in range(len(KEYS))]
    assert theirs.land(done).ok.all()
    assert [owner.landed(frame) for frame in range(len(KEYS))] == expected
    assert theirs.land(done, weighted=done.weighted + np.uint64(1)).corrupt.all()
    assert store.stats()["read_pages"] == 0


def test_cancelled_reads_end(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    reader = borrow(owner, threads=1)
    keys, slots, sums = owner.stored(6)
    held = reader.engine.hold("read")
    reader.store.read(np.arange(6), slots, seeds_of(keys), sums, "r")
    assert held.wait(1)
    reader.store.cancel("r")
    held.release()
    [job] = reader.settle()
    assert job.cancelled and job.ok.tolist() == [True] * 3 + [False] * 3


# It owns nothing


def test_nothing_is_changed(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    put = owner.put(path_of(4))
    owner.until(owner.recorded)
    reader = borrow(owner)
    before = files_of(owner)
    reader.engine.error("write", errno.EIO)
    store = reader.store
    assert store.alloc(1) is None and store.room() == (0, 0) and not store.writable
    assert (store.free_slots, store.used_slots, store.quarantined, store.capacity_bytes) == (0, 0, 0, 0)
    store.free(put.slots)
    store.touch(put.slots, 5.0)
    store.record(put.stretch, put.slots, put.sums, 5.0)
    store.hurry()
    assert store.clear() and not store.has_rows
    assert reader.get(put).ok.all()
    assert store.seal("weights were updated") and store.sealed_because == "weights were updated"
    assert store.close(WAIT)
    assert files_of(owner) == before
    assert owner.get(put).ok.all() and owner.store.used_slots == 4
    assert store.stats()["write_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"identity": dataclasses.replace(IDENTITY, weights="cd" * 32)}, "No such file"),
        ({"identity": None}, "No such file"),
        ({"page_tokens": 8}, "page_tokens 4 instead of 8"),
    ],
)
def test_another_store_is_not_read(
    owner_of: Callable[..., Rig], borrow: Borrow, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(StoreError, match=f"--radix-tier-nvme-path .*the first rank's store: .*{why}"):
        borrow(owner_of(), **options)


def test_a_store_that_nothing_outlives_is_read_too(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of(identity=None)
    reader = borrow(owner)
    assert reader.read(*owner.stored(3)).ok.all()


def test_no_store_is_opened_where_one_slab_is_missing(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of(drives=2)
    fds = len(os.listdir("/proc/self/fd"))
    owner.files(1).slab.rename(owner.directory / "away")
    with pytest.raises(StoreError, match="drive1: cannot open the first rank's store"):
        borrow(owner)
    assert len(os.listdir("/proc/self/fd")) == fds
    (owner.directory / "away").rename(owner.files(1).slab)


def test_a_link_is_not_followed(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    away = owner.directory / "away"
    owner.slab.rename(away)
    owner.slab.symlink_to(away)
    with pytest.raises(StoreError, match="cannot open the first rank's store"):
        borrow(owner)
    owner.slab.unlink()
    away.rename(owner.slab)


# The owner's slab is a new one


def renewed(owner: Rig, drive: int = 0) -> None:
    """Take the files of a drive away, and wait until there are new ones."""
    before = owner.store.renewals[drive]
    shutil.rmtree(owner.directories[drive])
    owner.directories[drive].mkdir(mode=0o700)
    owner.until(lambda: owner.store.renewals[drive] > before and owner.store.writable)


@pytest.mark.parametrize("drives", [1, 2])
def test_a_new_slab_is_opened(owner_of: Callable[..., Rig], borrow: Borrow, drives: int) -> None:
    owner = owner_of(drives=drives)
    reader = borrow(owner)
    old = owner.put(path_of(8))
    was = reader.engines[owner.directories[0]]
    renewed(owner)
    assert owner.store.renewals == [1] + [0] * (drives - 1)
    reader.store.follow(owner.store.renewals)
    reader.until(lambda: reader.engines[owner.directories[0]] is not was and reader.store._drives[0].transfers.serving)
    first = np.array([owner.place(slot)[0] == 0 for slot in old.slots.tolist()])
    assert reader.get(old).ok.tolist() == (~first).tolist()
    new = owner.put(path_of(6, name=1))
    assert reader.get(new).ok.all()
    reader.store.follow(owner.store.renewals)
    assert reader.get(new).ok.all(), "said once more"


def test_a_new_slab_waits_for_the_reads_of_the_old_one(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    reader = borrow(owner)
    old = owner.put(path_of(6))
    was = reader.engine
    held = was.hold("read")
    keys = [key.tobytes() for key in old.stretch.keys]
    reader.store.read(np.arange(3), old.slots[:3], seeds_of(keys)[:3], old.sums[:3], "old")
    assert held.wait(1)
    renewed(owner)
    reader.store.follow([1])
    new = owner.put(path_of(3, name=1))
    reader.store.read(np.arange(3, 6), new.slots, seeds_of(keys)[:3], new.sums, "too soon")
    reader.until(lambda: "too soon" in reader.ended)
    assert not reader.ended["too soon"].ok.any()
    assert reader.engine is was
    held.release()
    reader.until(lambda: reader.engine is not was and reader.store._drives[0].transfers.serving)
    assert reader.get(new).ok.all()


def test_a_new_slab_that_cannot_be_opened_is_tried_again(
    owner_of: Callable[..., Rig], borrow: Borrow, caplog: pytest.LogCaptureFixture
) -> None:
    owner = owner_of()
    reader = borrow(owner)
    renewed(owner)
    new = owner.put(path_of(3))
    away = owner.directory.parent / "away"
    owner.slab.rename(away)
    with caplog.at_level(logging.INFO):
        reader.store.follow([1])
        reader.until(lambda: not reader.well())
        [told] = reader.store.health()
        assert told.kind == "vanished" and "cannot open the first rank's store" in (told.reason or "")
        assert not reader.get(new).ok.any()
        away.rename(owner.slab)
        reader.until(reader.well)
    assert reader.get(new).ok.all()
    lines = [text for text in caplog.messages if "another rank's pages in" in text]
    assert "cannot be read" in lines[0] and "can be read again after" in lines[-1]


# Trouble


def test_a_read_that_fails_is_told_and_the_next_one_works(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    reader = borrow(owner)
    put = owner.put(path_of(6))
    reader.engine.error("read", errno.EIO, times=1)
    assert reader.get(put).ok.sum() == 3
    [told] = reader.store.health()
    assert told.kind == "io" and "Input/output error" in (told.reason or "")
    assert owner.store.health()[0].reason is None and owner.store.writable
    reader.until(reader.well)
    assert reader.get(put).ok.all()


def test_a_drive_that_hangs_holds_up_nobody(
    owner_of: Callable[..., Rig], borrow: Borrow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STALL_S", 0.05)
    monkeypatch.setattr("radixtier.store.borrowed.LOOK_S", 0.01)
    owner = owner_of()
    reader = borrow(owner, threads=1)
    put = owner.put(path_of(6))
    seeds = np.array([int.from_bytes(key.tobytes()[:8], "little") for key in put.stretch.keys], np.uint64)
    held = reader.engine.hold("read")
    reader.store.read(np.arange(3), put.slots[:3], seeds[:3], put.sums[:3], "stuck")
    assert held.wait(1)
    reader.store.read(np.arange(3, 6), put.slots[3:], seeds[3:], put.sums[3:], "behind")
    reader.until(lambda: "behind" in reader.ended)
    assert not reader.ended["behind"].ok.any() and "stuck" not in reader.ended
    assert reader.store.health()[0].kind == "stalled"
    reader.store.read(np.arange(3, 6), put.slots[3:], seeds[3:], put.sums[3:], "later")
    reader.until(lambda: "later" in reader.ended)
    assert not reader.ended["later"].ok.any()
    held.release()
    reader.until(lambda: "stuck" in reader.ended)
    assert reader.ended["stuck"].ok.all()
    reader.until(reader.well)
    assert reader.get(put).ok.all()


def test_closing_says_that_a_read_is_stuck(owner_of: Callable[..., Rig], borrow: Borrow) -> None:
    owner = owner_of()
    reader = borrow(owner)
    keys, slots, sums = owner.stored(3)
    held = reader.engine.hold("read")
    reader.store.read(np.arange(3), slots, seeds_of(keys), sums, "r")
    assert held.wait(1)
    assert not reader.store.close(0.05)
    held.release()
    assert reader.store.close(WAIT)
    assert [job.ok.all() for job in reader.store.poll()] == [True]
    reader.store.read(np.arange(3), slots, seeds_of(keys), sums, "over")
    [job] = reader.settle()
    assert not job.ok.any() and job.error == "the store is closed"
