"""The store as a server drives it, for `radixtier bench io`.

Owns a store in a directory of its own. Invariant: a rate counts only when every page of it was stored and is on record,
durably, or came back verified. One thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from radixtier.footprint import HEADER_BYTES, footprint, slot_bytes
from radixtier.identity import Space, StoreIdentity, Stretch, namespace_seed
from radixtier.io.engine import Engine
from radixtier.io.frames import FrameBuffer
from radixtier.io.probe import engine_factory
from radixtier.store.jobs import Ints, JobDone
from radixtier.store.paths import find_stores
from radixtier.store.store import IO_BYTES, THREADS, PageStore
from radixtier.tools.rawio import Plan

RUN_BYTES = 32 << 20
"""Bytes of a run of pages: what a server backs up or promotes at a time, some hundred tokens of a large model."""

PAGE_TOKENS = 16
"""Tokens per page, whatever its bytes; the journal keeps them."""

PATIENCE = 60.0
"""Seconds without any finished run after which the drive counts as stuck."""


class StoreSide:
    """A store of ``n_pages`` pages; `write` and `read` move all of them.

    Attributes
    ----------
    slab : Path
        The file that holds the pages.

    Raises
    ------
    StoreError
        When the store cannot be opened in ``directory``.
    """

    def __init__(self, directory: Path, frames: FrameBuffer, n_pages: int) -> None:
        self.engine = ""
        self._make_engine = engine_factory("auto")
        self._directory = directory
        self._frames = frames
        self._ended = threading.Event()
        run = max(1, min(RUN_BYTES // frames.page_bytes, frames.n_frames))
        self._runs = [range(lo, min(lo + run, n_pages)) for lo in range(0, n_pages, run)]
        self._places = list(range(0, frames.n_frames - run + 1, run))
        self._stretches = {run: _stretch(run) for run in self._runs}
        keys = np.concatenate([stretch.keys for stretch in self._stretches.values()])
        self._seeds = keys[:, :8].copy().view("<u8").reshape(-1)
        self._sums = np.zeros(n_pages, dtype=np.uint64)
        self._slots: Ints = np.zeros(n_pages, dtype=np.int64)
        self._stored = False
        self._store = self._open()
        [files] = find_stores(directory)
        self.slab = files.slab

    def _open(self) -> PageStore:
        capacity = footprint(len(self._slots), self._frames.page_bytes, PAGE_TOKENS)
        identity = StoreIdentity("", "uint8", "bench", PAGE_TOKENS, 1, 1, self._frames.page_bytes, 0)
        return PageStore(
            [self._directory],
            capacity,
            self._frames,
            page_tokens=PAGE_TOKENS,
            identity=identity,
            engine=self._engine,
            wake=self._ended.set,
        )

    def _engine(self, directory: Path) -> Engine:
        engine = self._make_engine(directory)
        self.engine = engine.name
        return engine

    def raw_plan(self, direct: bool) -> Plan:
        """Return transfers of the size that the store makes, over all its pages."""
        size = slot_bytes(self._frames.page_bytes)
        block = max(1, IO_BYTES // size) * size
        return Plan(HEADER_BYTES, len(self._slots) * size // block * block, block, THREADS, direct)

    def write(self) -> float:
        """Store every page anew; return bytes of pages per second.

        The time ends when the store has been closed: then all pages are durable and on record, without the half second
        for which a server collects rows.
        """
        if self._stored:
            self._give_back()
        self._stored = True
        begin = time.perf_counter()
        self._move(self._start_write, self._record)
        if not self._store.close():
            raise OSError("the drive did not finish its writes")
        seconds = time.perf_counter() - begin
        self._store = self._open()
        return self._nbytes() / seconds

    def read(self) -> float:
        """Bring every page back, verified; return bytes of pages per second."""
        begin = time.perf_counter()
        self._move(self._start_read, lambda run, done: None)
        return self._nbytes() / (time.perf_counter() - begin)

    def close(self) -> None:
        """Close the store; its files stay until their directory is removed."""
        self._store.close()

    def _give_back(self) -> None:
        """Free all slots, and wait until no row names them any more."""
        self._store.free(self._slots)
        while (slots := self._store.alloc(len(self._slots))) is None:  # asking for them hurries the journal
            self._wait()
            self._store.poll()
        self._store.free(slots)

    def _start_write(self, run: range, frames: Ints) -> None:
        at = slice(run.start, run.stop)
        slots = self._store.alloc(len(run))
        if slots is None:
            raise OSError("the drive failed: the store takes no more pages")
        self._slots[at] = slots
        self._store.write(frames, slots, self._seeds[at], run)

    def _record(self, run: range, done: JobDone) -> None:
        self._sums[run.start : run.stop] = done.checksums
        self._store.record(self._stretches[run], done.slots, done.checksums, time.time())

    def _start_read(self, run: range, frames: Ints) -> None:
        at = slice(run.start, run.stop)
        self._store.read(frames, self._slots[at], self._seeds[at], self._sums[at], run)

    def _move(self, start: Callable[[range, Ints], None], end: Callable[[range, JobDone], None]) -> None:
        """Run every run, as many at a time as the frames allow."""
        waiting, places = self._runs[::-1], list(self._places)
        taken: dict[range, int] = {}
        while waiting or taken:
            while waiting and places:
                run, place = waiting.pop(), places.pop()
                taken[run] = place
                start(run, np.arange(place, place + len(run), dtype=np.int64))
            self._wait()
            for done in self._store.poll():
                if not done.ok.all():
                    raise OSError(done.error or f"{int(done.corrupt.sum())} pages came back with other bytes")
                [run] = [run for run in taken if run == done.tag]
                end(run, done)
                places.append(taken.pop(run))

    def _wait(self) -> None:
        if not self._ended.wait(PATIENCE):
            raise OSError(f"the drive moved nothing for {PATIENCE:.0f} seconds")
        self._ended.clear()

    def _nbytes(self) -> int:
        return len(self._slots) * self._frames.page_bytes


def _stretch(run: range) -> Stretch:
    """Return the pages of a run as a path of its own."""
    tokens = np.arange(run.start, run.start + len(run) * PAGE_TOKENS, dtype=np.int32)
    return Stretch.chained(Space(), namespace_seed(), tokens, PAGE_TOKENS)
