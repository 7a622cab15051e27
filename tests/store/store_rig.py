"""A page store over a small pool, whose page bytes are a function of a key: wrong reuse is always seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from radixtier.io.faults import FaultEngine
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.probe import choose_engine
from radixtier.store.jobs import Ints, JobDone, Priority, Sums
from radixtier.store.slab import SLAB_NAME, capacity_for
from radixtier.store.store import PageStore

WAIT = 20.0
"""Seconds that any wait may take at most."""

Layout = tuple[int, int, int]
"""Parts per page, bytes per part, bytes by which the pool is misaligned."""

ALIGNED: Layout = (2, 4096, 0)
ODD: Layout = (6, 700, 0)
MISALIGNED: Layout = (1, 8192, 64)


def seeds_of(keys: Sequence[object]) -> Sums:
    digests = [hashlib.blake2b(repr(key).encode(), digest_size=8).digest() for key in keys]
    return np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64)


class Rig:
    """A store with a fault engine in front of the real one, its pool, and shortcuts for whole round trips."""

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
    ) -> None:
        parts, nbytes, shift = layout
        self.directory = directory
        base = aligned_memory(parts * nbytes * n_frames + shift)
        self.frames = FrameBuffer(
            base, n_frames, [(shift + i * n_frames * nbytes, nbytes, nbytes) for i in range(parts)]
        )
        self.page_bytes = self.frames.page_bytes
        directory.mkdir(mode=0o700, exist_ok=True)
        self.engine = FaultEngine(choose_engine("auto", directory).engine, seed=seed)
        self.store = PageStore(
            directory,
            capacity_for(n_slots, self.page_bytes),
            self.frames,
            engine=self.engine,
            threads=threads,
            io_bytes=pages_per_transfer * -(-self.page_bytes // 4096) * 4096,
            wake=None if wakes is None else lambda: wakes.append(1),
        )

    @property
    def slab(self) -> Path:
        return self.directory / SLAB_NAME

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

    def write(self, keys: Sequence[object], slots: Ints, *, tag: object = "w") -> JobDone:
        """Write pages from the first frames to ``slots``, and wait."""
        for frame, key in enumerate(keys):
            self.fill(frame, key)
        self.store.write(np.arange(len(keys)), slots, seeds_of(keys), tag)
        [job] = self.settle()
        return job

    def read(self, keys: Sequence[object], slots: Ints, sums: Sums, *, tag: object = "r") -> JobDone:
        """Read ``slots`` into the first frames, wiped before, and wait; pages that are ok must be right."""
        self.wipe()
        priority = Priority.DEMANDED
        self.store.read(np.arange(len(keys)), slots, seeds_of(keys), sums, tag, priority)
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

    def damage(self, slot: int, at: int, bit: int = 1) -> None:
        """Change one bit of a slot in the file, behind the store's back."""
        with self.slab.open("r+b") as file:
            file.seek(slot * self.store.slot_bytes + at)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ bit]))
