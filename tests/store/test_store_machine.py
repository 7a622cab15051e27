"""Random lives of a store under random faults, restarts among them: accounts exact, and never a wrong byte."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_rig import ALIGNED, IDENTITY, MISALIGNED, ODD, PAGE_TOKENS, WAIT, Layout, Rig, path_of, seeds_of

from radixtier.footprint import footprint
from radixtier.store.jobs import JobDone, Priority

N_SLOTS = 12
N_FRAMES = 16

PICKS = st.lists(st.integers(0, 99), max_size=N_SLOTS)
"""What to choose, drawn without a look at the store, since its threads keep their own time."""

pytestmark = pytest.mark.usefixtures("quick")


@dataclass
class Stored:
    key: int
    checksum: int
    sound: bool
    """Nothing can have spoilt it: a read without faults must succeed."""


@dataclass
class Flight:
    kind: str
    frames: list[int]
    slots: list[int]
    keys: list[int]
    pages: list[Stored]
    calm: bool
    """No fault was active since it began."""


class StoreMachine(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from([ALIGNED, ODD, MISALIGNED]),
        threads=st.integers(1, 4),
        pages=st.integers(1, 5),
        seed=st.integers(0, 99),
        drives=st.integers(1, 3),
    )
    def open(self, layout: Layout, threads: int, pages: int, seed: int, drives: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="radixtier-test-"))
        self.rig = Rig(
            self.home / "store",
            layout=layout,
            n_frames=N_FRAMES,
            n_slots=N_SLOTS,
            pages_per_transfer=pages,
            threads=threads,
            seed=seed,
            drives=drives,
            identity=IDENTITY,
        )
        self.owned: set[int] = set()
        self.stored: dict[int, Stored] = {}
        self.flights: dict[int, Flight] = {}
        self.on_record: set[int] = set()
        self.paths: list[list[tuple[int, int]]] = []
        """Slots and keys of what a restart must find, path by path."""
        self.page_keys: dict[bytes, int] = {}
        self.faulty = False
        self.keys = 0
        self.tags = 0

    # What the model may use

    def busy(self, *kinds: str) -> set[int]:
        return {s for f in self.flights.values() if f.kind in kinds for s in f.slots}

    def quiet(self) -> set[int]:
        return self.owned - self.busy("read", "write", "verify")

    def idle_frames(self) -> list[int]:
        used = {frame for f in self.flights.values() for frame in f.frames}
        return [frame for frame in range(N_FRAMES) if frame not in used]

    def begin(self, kind: str, slots: list[int], keys: list[int], pages: list[Stored]) -> int:
        self.tags += 1
        frames = [] if kind == "verify" else self.idle_frames()[: len(slots)]
        self.flights[self.tags] = Flight(kind, frames, slots, keys, pages, not self.faulty)
        return self.tags

    def all_writable(self) -> bool:
        return all(drive.writable for drive in self.rig.store.health())

    # Steps

    @rule(n=st.integers(0, N_SLOTS + 1))
    def alloc(self, n: int) -> None:
        free, writable = self.rig.store.free_slots, self.all_writable()
        slots = self.rig.store.alloc(n)
        writable &= self.all_writable()
        assert (slots is None) == (n > free) or not writable
        if slots is not None:
            assert len(set(slots.tolist())) == n
            assert not set(slots.tolist()) & self.owned
            self.owned |= set(slots.tolist())

    @rule(n=st.integers(1, N_SLOTS // 2), record=st.booleans())
    def grow(self, n: int, record: bool) -> None:
        """The usual way of a path, up to the end."""
        before = set(self.owned)
        self.alloc(n)
        new = sorted(self.owned - before)
        if new and len(self.idle_frames()) >= n:
            self.write_to(new)
            self.settle()
            if record:
                self.record_in([slot for slot in new if slot in self.stored])

    @rule(picks=PICKS)
    def write(self, picks: list[int]) -> None:
        self.write_to(pick(self.quiet() - self.on_record, picks, len(self.idle_frames())))

    def write_to(self, slots: list[int]) -> None:
        keys = list(range(self.keys, self.keys + len(slots)))
        self.keys += len(slots)
        tag = self.begin("write", slots, keys, [])
        for slot in slots:
            self.stored.pop(slot, None)
        frames = self.flights[tag].frames
        for frame, key in zip(frames, keys, strict=True):
            self.rig.fill(frame, key)
        self.rig.store.write(np.array(frames, dtype=np.int64), array(slots), seeds_of(keys), tag)

    @rule(picks=PICKS, how=st.sampled_from([Priority.DEMANDED, Priority.SPECULATIVE, Priority.SCRUB]))
    def read(self, picks: list[int], how: Priority) -> None:
        verify = how is Priority.SCRUB
        slots = pick(self.stored, picks, N_SLOTS if verify else len(self.idle_frames()))
        pages = [self.stored[slot] for slot in slots]
        keys = [page.key for page in pages]
        tag = self.begin("verify" if verify else "read", slots, keys, pages)
        sums = np.array([page.checksum for page in pages], dtype=np.uint64)
        frames = np.array(self.flights[tag].frames, dtype=np.int64)
        if verify:
            self.rig.store.verify(array(slots), seeds_of(keys), sums, tag)
        else:
            self.rig.store.read(frames, array(slots), seeds_of(keys), sums, tag, how)

    @rule(picks=PICKS)
    def cancel(self, picks: list[int]) -> None:
        for tag in pick(self.flights, picks, 1):
            self.rig.store.cancel(tag)

    @rule(picks=PICKS)
    def free(self, picks: list[int]) -> None:
        slots = pick(self.quiet(), picks, N_SLOTS)
        self.rig.store.free(array(slots))
        self.owned -= set(slots)
        self.on_record -= set(slots)
        for slot in slots:
            self.stored.pop(slot, None)
        for i, path in enumerate(self.paths):  # what follows a page that is gone cannot be found either
            end = next((at for at, (slot, _) in enumerate(path) if slot in slots), len(path))
            self.paths[i] = path[:end]

    @rule(picks=PICKS)
    def record(self, picks: list[int]) -> None:
        slots = pick(set(self.stored) - self.on_record - self.busy("write"), picks, N_SLOTS)
        self.record_in(slots)

    def record_in(self, slots: list[int]) -> None:
        if not slots:
            return
        self.keys += 1
        stretch = path_of(len(slots), name=self.keys)
        pages = [self.stored[slot] for slot in slots]
        for key, page in zip(stretch.keys, pages, strict=True):
            self.page_keys[key.tobytes()] = page.key
        self.rig.store.record(stretch, array(slots), np.array([p.checksum for p in pages], np.uint64), 1000.0)
        self.on_record |= set(slots)
        self.paths.append([(slot, page.key) for slot, page in zip(slots, pages, strict=True)])

    @rule(picks=PICKS)
    def touch(self, picks: list[int]) -> None:
        self.rig.store.touch(array(pick(self.owned, picks, N_SLOTS)), 2000.0)

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 0:
            assert self.rig.store.clear(WAIT)
            self.paths, self.on_record = [], set()

    @rule()
    def restart(self) -> None:
        self.behave()
        self.settle()
        self.rig.reopen()
        found: dict[int, tuple[int, int]] = {}
        for put in self.rig.restored():
            for slot, key, checksum in zip(put.slots.tolist(), put.stretch.keys, put.sums.tolist(), strict=True):
                found[slot] = self.page_keys[key.tobytes()], checksum
        expected = {slot: (key, self.stored[slot].checksum) for path in self.paths for slot, key in path}
        assert found == expected
        self.owned, self.on_record = set(found), set(found)
        self.stored = {slot: self.stored[slot] for slot in found}

    @rule(picks=PICKS, at=st.floats(0, 0.999))
    def damage(self, picks: list[int], at: float) -> None:
        for slot in pick(set(self.stored) - self.busy("read", "verify"), picks, 2):
            self.rig.damage(slot, int(at * self.rig.page_bytes))
            self.stored[slot].sound = False  # twice in one place would heal it: then a read may succeed

    @rule(
        kind=st.sampled_from(["error", "short", "delay", "flip", "tear"]),
        op=st.sampled_from(["read", "write"]),
        chance=st.sampled_from([0.3, 1.0]),
        drive=st.integers(0, 2),
    )
    def misbehave(self, kind: str, op: str, chance: float, drive: int) -> None:
        extra = {"short": {"nbytes": 4096}, "delay": {"seconds": 0.002}}.get(kind, {})
        directory = self.rig.directories[drive % len(self.rig.directories)]
        getattr(self.rig.engines[directory], kind)(op, chance=chance, **extra)
        self.faulty = True
        for flight in self.flights.values():
            flight.calm = False

    @rule()
    def behave(self) -> None:
        self.rig.behave()
        self.faulty = False

    @rule()
    def poll(self) -> None:
        for job in self.rig.store.poll():
            self.check(job)

    @rule()
    def settle(self) -> None:
        for job in self.rig.settle():
            self.check(job)
        assert not self.flights
        stats = self.rig.store.stats()
        assert stats["queue_depth"] == stats["running"] == 0

    # What must hold

    def check(self, job: JobDone) -> None:
        flight = self.flights.pop(job.tag)  # type: ignore[arg-type]
        assert job.kind == flight.kind
        assert job.slots.tolist() == flight.slots
        assert not (job.ok & job.corrupt).any()
        if flight.calm and not job.cancelled:
            assert job.error is None
        for i, slot in enumerate(flight.slots):
            if job.kind == "write":
                assert not job.corrupt[i]
                assert job.ok[i] or job.cancelled or not flight.calm
                if job.ok[i]:
                    self.stored[slot] = Stored(flight.keys[i], int(job.checksums[i]), flight.calm)
            elif job.ok[i]:
                assert job.checksums[i] == flight.pages[i].checksum
                assert job.kind == "verify" or self.rig.image(flight.frames[i]) == self.rig.page(flight.keys[i])
            else:
                assert job.cancelled or not flight.calm or not flight.pages[i].sound

    @invariant()
    def accounts_are_exact(self) -> None:
        if not hasattr(self, "rig"):
            return
        store = self.rig.store
        assert store.free_slots + store.used_slots + store.quarantined == store.n_slots == N_SLOTS
        assert store.used_slots >= len(self.owned)
        for drive in store.health():
            assert drive.free_slots + drive.used_slots + drive.quarantined == N_SLOTS // len(self.rig.directories)
            assert 0 <= drive.largest_extent <= drive.free_slots and drive.quarantined >= 0
        assert all(value >= 0 for value in store.stats().values())
        assert self.bytes_on_disk() <= footprint(N_SLOTS, self.rig.page_bytes, PAGE_TOKENS, len(self.rig.directories))

    def bytes_on_disk(self) -> int:
        total = 0
        for directory in self.rig.directories:
            for file in directory.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    total += file.stat().st_size
        return total

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.behave()
            self.settle()
            self.rig.store.free(array(sorted(self.owned)))
            self.rig.until(lambda: self.rig.store.free_slots == N_SLOTS and self.all_writable())
            everything = self.rig.store.alloc(N_SLOTS)
            assert everything is not None
            assert sorted(everything.tolist()) == list(range(N_SLOTS))
            assert self.rig.store.stats()["journal_dropped"] == 0
        finally:
            self.rig.close()
            shutil.rmtree(self.home)


def array(slots: list[int]) -> np.ndarray:
    return np.array(slots, dtype=np.int64)


def pick(choices: Iterable[int], picks: list[int], most: int) -> list[int]:
    """Some of the choices, in the order of the picks."""
    ordered = sorted(choices)
    return list(dict.fromkeys(ordered[p % len(ordered)] for p in picks if ordered))[:most]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_life(seed: int) -> None:
    """The same steps by the hundreds, where most of them do something."""
    rng = random.Random(seed)
    life = StoreMachine()
    life.open((ALIGNED, ODD, MISALIGNED)[seed % 3], 4, rng.randint(1, 4), seed, 1 + seed % 3)
    done: Counter[str] = Counter()
    try:
        for _ in range(300):
            step = rng.choice(
                ["grow"] * 8 + ["free"] * 5 + ["read"] * 5 + ["poll"] * 3 + ["settle", "behave", "touch", "record"] * 2
                + ["alloc", "write", "cancel", "damage", "misbehave", "restart"] + ["clear"] * (rng.random() < 0.2)
            )  # fmt: skip
            picks = [rng.randrange(100) for _ in range(rng.randint(1, 4))]
            before = len(life.on_record)
            take_step(life, step, picks, rng)
            done[step] += 1
            done["restored"] += len(life.on_record) if step == "restart" else 0
            done["recorded"] += max(0, len(life.on_record) - before)
            life.accounts_are_exact()
    finally:
        life.teardown()
    assert min(done["restored"], done["recorded"] // 3, done["restart"] * 3) > 5, f"else this proves little: {done}"


def take_step(life: StoreMachine, step: str, picks: list[int], rng: random.Random) -> None:
    if step == "grow":
        life.grow(rng.randint(1, 5), rng.random() < 0.7)
    elif step == "alloc":
        life.alloc(rng.randint(0, 3))
    elif step == "read":
        life.read(picks, rng.choice([Priority.DEMANDED, Priority.SPECULATIVE, Priority.SCRUB]))
    elif step == "damage":
        life.damage(picks, rng.random())
    elif step == "misbehave":
        kind = rng.choice(["error", "short", "delay", "flip", "tear"])
        life.misbehave(kind, rng.choice(["read", "write"]), 0.3, rng.randrange(3))
    elif step == "clear":
        life.clear(0)
    elif step in ("poll", "settle", "behave", "restart"):
        getattr(life, step)()
    else:
        getattr(life, step)(picks)
