"""A page store over a small pool, whose page bytes are a function of a key: wrong reuse is always seen."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from radixtier.footprint import HEADER_BYTES, footprint
from radixtier.identity import Space, StoreIdentity, Stretch, checksum_seed, namespace_seed
from radixtier.io.engine import Engine
from radixtier.io.faults import FaultEngine
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.posix import PosixEngine, try_direct
from radixtier.store.jobs import Ints, JobDone, Priority, Sums
from radixtier.store.paths import StoreFiles, store_id
from radixtier.store.store import PageStore

WAIT = 20.0
"""Seconds that any wait may take at most."""

Layout = tuple[int, int, int]
"""Parts per page, bytes per part, bytes by which the pool is misaligned."""

ALIGNED: Layout = (2, 4096, 0)
ODD: Layout = (6, 700, 0)
MISALIGNED: Layout = (1, 8192, 64)

PAGE_TOKENS = 4

IDENTITY = StoreIdentity("ab" * 32, "float32", "page_first", PAGE_TOKENS, 2, 2, 16, 16, sglang="0.5.23")


def seeds_of(keys: Sequence[object]) -> Sums:
    digests = [hashlib.blake2b(repr(key).encode(), digest_size=8).digest() for key in keys]
    return np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64)


def path_of(n: int, *, name: int = 0, space: Space | None = None, front: bytes | None = None) -> Stretch:
    """A path of ``n`` pages from the root, or behind the page with key ``front``."""
    space = space or Space()
    tokens = np.arange(n * PAGE_TOKENS) + 1000 * name
    return Stretch.chained(space, front or namespace_seed(*space), tokens, PAGE_TOKENS)


class Put(NamedTuple):
    """Pages that were written."""

    stretch: Stretch
    slots: Ints
    sums: Sums

    def part(self, lo: int, hi: int) -> Put:
        return Put(self.stretch.part(lo, hi), self.slots[lo:hi], self.sums[lo:hi])


class Rig:
    """A store with fault engines in front of the real ones, its pool, and shortcuts for whole round trips.

    With ``drives`` other than 1 the drives are directories below ``directory``; ``options`` go to the store.
    """

    def __init__(
        self,
        directory: Path,
        *,
        layout: Layout = ALIGNED,
        n_frames: int = 32,
        n_slots: int = 32,
        pages_per_transfer: int = 3,
        threads: int = 3,
        seed: int = 0,
        wakes: list[int] | None = None,
        drives: int = 1,
        **options: Any,
    ) -> None:
        parts, nbytes, shift = layout
        self.directory = directory
        self.directories = [directory] if drives == 1 else [directory / f"drive{i}" for i in range(drives)]
        base = aligned_memory(parts * nbytes * n_frames + shift)
        self.frames = FrameBuffer(
            base, n_frames, [(shift + i * n_frames * nbytes, nbytes, nbytes) for i in range(parts)]
        )
        self.page_bytes = self.frames.page_bytes
        self.seed = seed
        self.engines: dict[Path, FaultEngine] = {}
        self.woken = threading.Event()
        self.ended: dict[object, JobDone] = {}
        self.wakes = wakes
        self.options = {
            "page_tokens": PAGE_TOKENS,
            "threads": threads,
            "io_bytes": pages_per_transfer * -(-self.page_bytes // 4096) * 4096,
            **options,
        }
        self.open(n_slots)

    def open(self, n_slots: int, **options: Any) -> PageStore:
        """Open the store, closed before, once more."""
        self.options |= options
        for directory in self.directories:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        capacity = footprint(n_slots, self.page_bytes, PAGE_TOKENS, len(self.directories))
        self.store = PageStore(
            self.directories, capacity, self.frames, engine=self.make_engine, wake=self.wake, **self.options
        )
        return self.store

    def reopen(self, n_slots: int | None = None, **options: Any) -> PageStore:
        """Close the store and open it again."""
        n = self.store.n_slots
        assert self.store.close(WAIT)
        return self.open(n if n_slots is None else n_slots, **options)

    def make_engine(self, directory: Path) -> Engine:
        self.engines[directory] = FaultEngine(PosixEngine(direct=try_direct(directory) is None), seed=self.seed)
        return self.engines[directory]

    def wake(self) -> None:
        self.woken.set()
        if self.wakes is not None:
            self.wakes.append(1)

    @property
    def engine(self) -> FaultEngine:
        """The engine of the first drive."""
        return self.engines[self.directories[0]]

    def behave(self) -> None:
        for engine in self.engines.values():
            engine.clear()

    def close(self) -> None:
        self.behave()
        assert self.store.close(WAIT)

    # Where things are

    def files(self, drive: int = 0) -> StoreFiles:
        identity = self.options.get("identity")
        return StoreFiles(self.directories[drive], self.options.get("rank", 0), store_id(identity))

    @property
    def slab(self) -> Path:
        return self.files().slab

    def place(self, slot: int) -> tuple[int, int]:
        """Drive of a slot, and where it starts in the slab."""
        drive, local = divmod(slot, self.store.n_slots // len(self.directories))
        return drive, HEADER_BYTES + local * self.store.slot_bytes

    def span(self, first: int, n: int = 1) -> tuple[int, int]:
        """Range of slots in their slab, in bytes."""
        start = self.place(first)[1]
        return start, start + n * self.store.slot_bytes

    # Pages

    def page(self, key: object) -> bytes:
        """The one right content of the page of this key."""
        return hashlib.shake_128(repr(key).encode()).digest(self.page_bytes)

    def fill(self, frame: int, key: object) -> None:
        at, content = 0, self.page(key)
        for view in self.frames.views(frame):
            view[:] = content[at : at + len(view)]
            at += len(view)

    def image(self, frame: int) -> bytes:
        return b"".join(self.frames.views(frame))

    def wipe(self) -> None:
        for frame in range(self.frames.n_frames):
            for view in self.frames.views(frame):
                view[:] = bytes(len(view))

    def settle(self) -> list[JobDone]:
        assert self.store.drain(WAIT)
        return self.store.poll()

    def until(self, true: Callable[[], bool]) -> list[JobDone]:
        """Poll until something is so; return the jobs that ended meanwhile."""
        done: list[JobDone] = []
        end = time.monotonic() + WAIT
        while True:
            done += self.store.poll()
            self.ended = {job.tag: job for job in done}
            if true():
                return done
            assert time.monotonic() < end, "it never came to that"
            self.woken.wait(0.01)
            self.woken.clear()

    def recorded(self) -> bool:
        """Whether all that was put on record is durable."""
        drives = self.store._drives
        # In this order: what no longer waits is committed by the end of the step that took it.
        return not any(drive.ledger.waiting for drive in drives) and not any(d.keeper.busy_since for d in drives)

    def job(self, tag: object) -> JobDone:
        """Wait for a job while others may be stuck."""
        self.until(lambda: tag in self.ended)
        return self.ended[tag]

    def write(self, keys: Sequence[object], slots: Ints, *, tag: object = "w") -> JobDone:
        """Write pages from the first frames to ``slots``, and wait."""
        for frame, key in enumerate(keys):
            self.fill(frame, key)
        self.store.write(np.arange(len(keys)), slots, seeds_of(keys), tag)
        [job] = self.settle()
        return job

    def read(self, keys: Sequence[object], slots: Ints, sums: Sums, *, tag: object = "r") -> JobDone:
        """Read ``slots`` into the first frames, wiped before, and wait; pages that are ok must be right."""
        return self._read(keys, seeds_of(keys), slots, sums, tag)

    def _read(self, keys: Sequence[object], seeds: Sums, slots: Ints, sums: Sums, tag: object) -> JobDone:
        self.wipe()
        self.store.read(np.arange(len(keys)), slots, seeds, sums, tag, Priority.DEMANDED)
        [job] = self.settle()
        for frame, (key, ok) in enumerate(zip(keys, job.ok, strict=True)):
            assert not ok or self.image(frame) == self.page(key)
        return job

    def stored(self, n: int) -> tuple[list[object], Ints, Sums]:
        """Write ``n`` fresh pages and return their keys, slots and checksums."""
        keys: list[object] = [("page", i) for i in range(n)]
        slots = self.store.alloc(n)
        assert slots is not None
        job = self.write(keys, slots)
        assert job.ok.all()
        return keys, slots, job.checksums

    # Pages on record

    def put(self, stretch: Stretch, *, used: float = 1000.0, record: bool = True, slots: Ints | None = None) -> Put:
        """Write the pages of a path, at most as many as there are frames, and put them on record."""
        slots = self.store.alloc(len(stretch)) if slots is None else slots
        assert slots is not None
        for frame, key in enumerate(stretch.keys):
            self.fill(frame, key.tobytes())
        self.store.write(np.arange(len(stretch)), slots, page_seeds(stretch), "put")
        [job] = self.settle()
        assert job.ok.all()
        if record:
            self.store.record(stretch, slots, job.checksums, used)
        return Put(stretch, slots, job.checksums)

    def get(self, put: Put) -> JobDone:
        """Read pages of a path; those that are ok must be right."""
        keys = [key.tobytes() for key in put.stretch.keys]
        return self._read(keys, page_seeds(put.stretch), put.slots, put.sums, "get")

    def restored(self) -> list[Put]:
        """What a restart finds, each row as it comes; none is left out, and every slot comes once."""
        restorer = self.store.restorer()
        if restorer is None:
            return []
        puts: list[Put] = []
        while not restorer.done:
            assert restorer.wait(WAIT)
            puts += [Put(row.stretch, row.slots, row.checksums) for row in restorer.take(1000)]
        puts += [Put(row.stretch, row.slots, row.checksums) for row in restorer.take(1000)]
        for slots in restorer.take_dropped():
            self.store.free(slots)
        restorer.cancel()
        return puts

    def damage(self, slot: int, at: int, bit: int = 1) -> None:
        """Change one bit of a slot in the file, behind the store's back."""
        drive, start = self.place(slot)
        with self.files(drive).slab.open("r+b") as file:
            file.seek(start + at)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ bit]))


def page_seeds(stretch: Stretch) -> Sums:
    return np.array([checksum_seed(key) for key in stretch.keys], dtype=np.uint64)
