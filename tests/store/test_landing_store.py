"""A store with a landing zone: writes get a second checksum, what lands is checked by it, restarts keep it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_rig import opened, row
from store_rig import IDENTITY, WAIT, Rig, path_of, seeds_of

from radixtier.io.landing import HostLanding
from radixtier.store.journal import Batch
from radixtier.store.weighted import weighted_sum

KEYS = list(range(6))


class LandingRig(Rig):
    """A rig whose store has a landing zone of 8 frames."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.zone = HostLanding(8, 2 * 4096, weighted_sum)
        super().__init__(directory, landing=self.zone, **options)

    def page(self, frame: int) -> bytes:
        return b"".join(bytes(part) for part in self.frames.views(frame))

    def fill(self, frame: int, key: int) -> None:
        data = np.random.default_rng(key).bytes(self.page_bytes)
        for part in self.frames.views(frame):
            part[:], data = data[: part.nbytes], data[part.nbytes :]

    def wait(self, tag: str) -> Any:
        assert self.store.drain(WAIT)
        (done,) = [job for job in self.store.poll() if job.tag == tag]
        return done

    def write(self) -> Any:
        for frame, key in enumerate(KEYS):
            self.fill(frame, key)
        slots = self.store.alloc(len(KEYS))
        assert slots is not None
        self.store.write(np.arange(len(KEYS)), slots, seeds_of(KEYS), "write")
        return self.wait("write")

    def land(self, done: Any, frames: Any = None, weighted: Any = None) -> Any:
        places = self.frames.n_frames + (np.arange(len(KEYS)) if frames is None else np.array(frames))
        sums = done.weighted if weighted is None else weighted
        self.store.read(places, done.slots, seeds_of(KEYS), sums, "read")
        return self.wait("read")

    def landed(self, frame: int) -> bytes:
        at = frame * self.zone.row_bytes
        return bytes(self.zone.memory[at : at + self.page_bytes])


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = LandingRig(tmp_path, threads=1)
    yield rig
    rig.close()


@pytest.mark.parametrize("frames", [[0, 1, 2, 3, 4, 5], [7, 3, 4, 0, 6, 1]])
def test_pages_land_wherever_there_is_room(rig: LandingRig, frames: list[int]) -> None:
    done = rig.write()
    assert done.ok.all() and done.weighted.tolist() == [
        weighted_sum([memoryview(rig.page(frame))], seed) for frame, seed in enumerate(seeds_of(KEYS).tolist())
    ]
    before = [rig.page(frame) for frame in range(rig.frames.n_frames)]
    assert rig.land(done, frames).ok.all()
    assert [rig.landed(frame) for frame in frames] == before[: len(KEYS)]
    assert [rig.page(frame) for frame in range(rig.frames.n_frames)] == before, "a frame of DRAM was used"


@pytest.mark.parametrize(
    ("fault", "corrupt"), [("error", False), ("short", False), ("flip", True), ("tear", True)], ids=lambda x: str(x)
)
def test_what_goes_wrong_is_seen(rig: LandingRig, fault: str, corrupt: bool) -> None:
    done = rig.write()
    how = {"error": {"number": errno.EIO}, "flip": {"at": 5000}}.get(fault, {})
    getattr(rig.engine, fault)("read", **how, skip=1, times=1)
    rig.zone.memory[:] = b"\xee" * rig.zone.memory.nbytes
    read = rig.land(done)
    assert read.ok[:3].all() and not read.ok[3:].all()
    assert read.corrupt.any() == corrupt and not (read.ok & read.corrupt).any()
    assert rig.store.writable, "the drive is blamed for the way to the GPU"
    rig.store.free(done.slots)
    assert rig.store.quarantined == int(read.corrupt.sum())
    assert (read.error is None) == corrupt
    for frame in np.flatnonzero(read.ok).tolist():
        assert rig.landed(frame) == rig.page(frame)


@pytest.mark.parametrize("what", ["sum", "seed", "slot"])
def test_another_pages_bytes_are_corrupt(rig: LandingRig, what: str) -> None:
    done = rig.write()
    if what == "sum":
        assert rig.land(done, weighted=done.weighted + np.uint64(1)).corrupt.all()
    elif what == "slot":
        assert rig.land(done._replace(slots=done.slots[::-1])).corrupt.all()
    else:
        rig.store.read(
            rig.frames.n_frames + np.arange(6), done.slots, seeds_of(KEYS) ^ np.uint64(1), done.weighted, "read"
        )
        assert rig.wait("read").corrupt.all()


def test_frames_outside_the_zone_and_of_both_kinds_are_refused(rig: LandingRig) -> None:
    done = rig.write()
    for frames in ([7, 8], [-1, 0]):
        with pytest.raises(AssertionError, match=r"outside the pool|both kinds"):
            rig.land(done._replace(slots=done.slots[:2]), frames)


def test_a_store_without_a_zone_computes_no_second_sum(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    slots = rig.store.alloc(1)
    rig.store.write(np.array([0]), slots, seeds_of([0]), "write")
    assert rig.store.drain(WAIT) and rig.store.poll()[0].weighted is None
    rig.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_restart_knows_the_sums_that_were_recorded(tmp_path: Path, known: bool) -> None:
    rig = LandingRig(tmp_path, identity=IDENTITY)
    stretch = path_of(4)
    slots = rig.store.alloc(4)
    sums = np.arange(4, dtype=np.uint64)
    weighted = sums + np.uint64(100)
    rig.store.record(stretch, slots, sums, 1000.0, weighted if known else None)
    rig.store.free(slots[3:])  # the row is cut, before or after it was written
    restorer = rig.reopen().restorer()
    assert restorer.wait(WAIT)
    (stored,) = restorer.take(10)
    assert stored.checksums.tolist() == [0, 1, 2]
    assert (stored.weighted is None) == (not known)
    assert not known or stored.weighted.tolist() == [100, 101, 102]
    rig.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_journal_keeps_rows_of_both_kinds(tmp_path: Path, known: bool) -> None:
    journal = opened(tmp_path / "j", 64)
    whole = row(8, 6)
    weighted = np.arange(6, dtype=np.uint64) if known else None
    journal.apply(Batch(adds=[whole._replace(weighted=weighted), row(20, 2, 7)]))
    journal.apply(Batch(frees=[(10, 2)]))  # cuts it in two
    front, back, other = journal.rows([8, 12, 20])
    assert other.weighted is None
    assert [None if r.weighted is None else r.weighted.tolist() for r in (front, back)] == (
        [[0, 1], [4, 5]] if known else [None, None]
    )
    assert front.checksums.tolist() == whole.checksums[:2].tolist()
    journal.close()


def test_a_changed_sum_on_record_breaks_the_seal(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j", 64)
    journal.apply(Batch(adds=[row(0, 2)._replace(weighted=np.arange(2, dtype=np.uint64))]))
    (blob,) = journal._db.execute("SELECT checksums FROM runs").fetchone()
    journal._db.execute("UPDATE runs SET checksums = ?", (blob[:-1] + bytes([blob[-1] ^ 1]),))
    assert journal.rows([0]) == []
    journal.close()
