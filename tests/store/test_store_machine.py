"""Random lives of a store under random faults: accounting exact at every step, and never a wrong byte."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_rig import ALIGNED, MISALIGNED, ODD, WAIT, Layout, Rig, seeds_of

from radixtier.store.jobs import JobDone, Priority
from radixtier.store.slab import capacity_for

N_SLOTS = 12
N_FRAMES = 16

PICKS = st.lists(st.integers(0, 99), max_size=N_SLOTS)
"""What to choose, drawn without a look at the store, since its threads keep their own time."""


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
    )
    def open(self, layout: Layout, threads: int, pages: int, seed: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="radixtier-test-"))
        self.rig = Rig(
            self.home / "store",
            layout=layout,
            n_frames=N_FRAMES,
            n_slots=N_SLOTS,
            pages_per_transfer=pages,
            threads=threads,
            seed=seed,
        )
        self.owned: set[int] = set()
        self.stored: dict[int, Stored] = {}
        self.flights: dict[int, Flight] = {}
        self.faulty = False
        self.keys = 0
        self.tags = 0

    # What the model may use

    def busy(self, kind: str) -> set[int]:
        return {s for f in self.flights.values() if f.kind == kind for s in f.slots}

    def quiet(self) -> set[int]:
        return self.owned - self.busy("read") - self.busy("write")

    def idle_frames(self) -> list[int]:
        used = {frame for f in self.flights.values() for frame in f.frames}
        return [frame for frame in range(N_FRAMES) if frame not in used]

    def begin(self, kind: str, slots: list[int], keys: list[int], pages: list[Stored]) -> int:
        self.tags += 1
        frames = self.idle_frames()[: len(slots)]
        self.flights[self.tags] = Flight(kind, frames, slots, keys, pages, not self.faulty)
        return self.tags

    # Steps

    @rule(n=st.integers(0, N_SLOTS + 1))
    def alloc(self, n: int) -> None:
        free = N_SLOTS - len(self.owned)
        slots = self.rig.store.alloc(n)
        assert (slots is None) == (n > free)
        if slots is not None:
            assert len(set(slots.tolist())) == n
            assert not set(slots.tolist()) & self.owned
            self.owned |= set(slots.tolist())

    @rule(picks=PICKS)
    def write(self, picks: list[int]) -> None:
        slots = pick(self.quiet(), picks, len(self.idle_frames()))
        keys = list(range(self.keys, self.keys + len(slots)))
        self.keys += len(slots)
        tag = self.begin("write", slots, keys, [])
        for slot in slots:
            self.stored.pop(slot, None)
        frames = self.flights[tag].frames
        for frame, key in zip(frames, keys, strict=True):
            self.rig.fill(frame, key)
        self.rig.store.write(np.array(frames, dtype=np.int64), array(slots), seeds_of(keys), tag)

    @rule(picks=PICKS, priority=st.sampled_from([Priority.DEMANDED, Priority.SPECULATIVE]))
    def read(self, picks: list[int], priority: Priority) -> None:
        slots = pick(self.stored, picks, len(self.idle_frames()))
        pages = [self.stored[slot] for slot in slots]
        keys = [page.key for page in pages]
        tag = self.begin("read", slots, keys, pages)
        sums = np.array([page.checksum for page in pages], dtype=np.uint64)
        frames = np.array(self.flights[tag].frames, dtype=np.int64)
        self.rig.store.read(frames, array(slots), seeds_of(keys), sums, tag, priority)

    @rule(picks=PICKS)
    def cancel(self, picks: list[int]) -> None:
        for tag in pick(self.flights, picks, 1):
            self.rig.store.cancel(tag)

    @rule(picks=PICKS)
    def free(self, picks: list[int]) -> None:
        slots = pick(self.quiet(), picks, N_SLOTS)
        self.rig.store.free(array(slots))
        self.owned -= set(slots)
        for slot in slots:
            self.stored.pop(slot, None)

    @rule(picks=PICKS, at=st.floats(0, 0.999))
    def damage(self, picks: list[int], at: float) -> None:
        for slot in pick(set(self.stored) - self.busy("read"), picks, 2):
            self.rig.damage(slot, int(at * self.rig.page_bytes))
            self.stored[slot].sound = False  # twice in one place would heal it: then a read may succeed

    @rule(
        kind=st.sampled_from(["error", "short", "delay", "flip", "tear"]),
        op=st.sampled_from(["read", "write"]),
        chance=st.sampled_from([0.3, 1.0]),
    )
    def misbehave(self, kind: str, op: str, chance: float) -> None:
        extra = {"short": {"nbytes": 4096}, "delay": {"seconds": 0.002}}.get(kind, {})
        getattr(self.rig.engine, kind)(op, chance=chance, **extra)
        self.faulty = True
        for flight in self.flights.values():
            flight.calm = False

    @rule()
    def behave(self) -> None:
        self.rig.engine.clear()
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
                assert self.rig.image(flight.frames[i]) == self.rig.page(flight.keys[i])
            else:
                assert job.cancelled or not flight.calm or not flight.pages[i].sound

    @invariant()
    def accounts_are_exact(self) -> None:
        if not hasattr(self, "rig"):
            return
        store = self.rig.store
        assert store.free_slots + store.used_slots == store.n_slots == N_SLOTS
        assert store.used_slots == len(self.owned)
        assert all(value >= 0 for value in store.stats().values())
        capacity = capacity_for(N_SLOTS, self.rig.page_bytes)
        files = list(self.rig.directory.iterdir())
        assert len(files) == 2
        assert sum(file.stat().st_size for file in files) <= capacity

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.rig.engine.clear()
            self.settle()
            self.rig.store.free(array(sorted(self.owned)))
            assert self.rig.store.free_slots == N_SLOTS
            everything = self.rig.store.alloc(N_SLOTS)
            assert everything is not None
            assert everything.tolist() == list(range(N_SLOTS))
        finally:
            assert self.rig.store.close(WAIT)
            shutil.rmtree(self.home)


def array(slots: list[int]) -> np.ndarray:
    return np.array(slots, dtype=np.int64)


def pick(choices: Iterable[int], picks: list[int], most: int) -> list[int]:
    """Some of the choices, in the order of the picks."""
    ordered = sorted(choices)
    return list(dict.fromkeys(ordered[p % len(ordered)] for p in picks if ordered))[:most]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
