"""What one rank has of the store of another: it reads pages there, checked, and owns nothing.

Owns its open files and the threads that read. Slots, checksums and what is on record are the owner's, whom this store
never asks: whoever reads here knows that the slots are written and stay so until the read is over. Invariant: a page
counts as read only when its bytes have the checksum that the owner told. The scheduler thread calls everything but
`stats`, `take_latencies` and `read_bandwidth`, which any thread may call; it waits for I/O only in `drain` and `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from radixtier.footprint import slot_bytes
from radixtier.identity import StoreIdentity
from radixtier.io.engine import Engine
from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.store.board import Board
from radixtier.store.borrowed_drive import BorrowedDrive
from radixtier.store.header import Header
from radixtier.store.health import DriveHealth
from radixtier.store.jobs import Chunk, Ints, JobDone, Priority, Sums, cut, new_job
from radixtier.store.latency import Observed
from radixtier.store.lent import LentSlab
from radixtier.store.paths import StoreFiles, store_id
from radixtier.store.slab import PATH_FLAG, StoreError
from radixtier.store.store import IO_BYTES, LOOK_S, THREADS, threads_of_drive


class BorrowedStore:
    """Reads what rank 0 has stored in the same directories; what is not about reading does nothing here.

    Parameters
    ----------
    directories
        The owner's, in its order; the owner has opened its store.
    frames, page_tokens, identity, engine, threads, io_bytes, landing, wake
        As for :class:`radixtier.store.store.PageStore`; the identity is the owner's.

    Raises
    ------
    StoreError
        When a slab cannot be opened or is for something else.
    """

    quarantined = free_slots = used_slots = capacity_bytes = 0
    """Of its own it has none of these."""
    sealed_because: str | None = None
    has_rows = writable = False
    borrowed = True

    def __init__(
        self,
        directories: Sequence[Path],
        frames: FrameBuffer,
        *,
        page_tokens: int,
        identity: StoreIdentity | None = None,
        engine: Callable[[Path], Engine],
        threads: int = THREADS,
        io_bytes: int = IO_BYTES,
        landing: LandingZone | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.identity = identity
        self.slot_bytes = slot_bytes(frames.page_bytes)
        self._n_frames = frames.n_frames
        self._landing = landing
        self._pages_per_chunk = max(1, io_bytes // self.slot_bytes)
        self._board = Board(self.slot_bytes, wake)
        self._looked = time.monotonic()
        wanted = Header.fresh(identity, frames.page_bytes, page_tokens)
        with ExitStack() as undo:
            slabs: list[LentSlab] = []
            for directory in directories:
                slabs.append(LentSlab(StoreFiles(directory, 0, store_id(identity)), wanted, engine))
                undo.callback(slabs[-1].close)
            if len({slab.n_slots for slab in slabs}) > 1:
                raise StoreError(f"{PATH_FLAG}: the first rank's slabs are of different length: restart the server")
            self._each = slabs[0].n_slots
            self._drives = [
                BorrowedDrive(
                    slab, frames, self._board, base=i * self._each, threads=threads_of_drive(threads, len(slabs)),
                    pages_per_chunk=self._pages_per_chunk, landing=landing,
                )
                for i, slab in enumerate(slabs)
            ]  # fmt: skip
            undo.pop_all()
        self.n_slots = self._each * len(self._drives)
        for drive in self._drives:
            drive.start()

    # Reading

    def read(
        self,
        frames: Ints,
        slots: Ints,
        seeds: Sums,
        checksums: Sums,
        tag: Hashable,
        priority: Priority = Priority.DEMANDED,
    ) -> None:
        """Queue a read, as :meth:`radixtier.store.store.PageStore.read`."""
        landing = len(frames) > 0 and int(frames[0]) >= self._n_frames
        job = new_job("read", frames, slots, seeds, checksums, tag)
        assert (slots >= 0).all(), "a read of a slot that nobody knows"
        assert not landing or (self._landing is not None and (frames >= self._n_frames).all()), "frames of both kinds"
        lanes: Ints = job.slots // self._each
        ranges = cut(job.slots, self._pages_per_chunk, lanes)
        job.chunks_left = max(1, len(ranges))
        self._board.open(job)
        if not ranges:
            self._board.over([Chunk(priority, 0, job, 0, 0)], None)
        of_lane = lanes[[lo for lo, _ in ranges]].tolist()
        for lane in sorted(set(of_lane)):
            part = [bounds for bounds, where in zip(ranges, of_lane, strict=True) if where == lane]
            self._drives[lane].transfers.push(job, part, priority)

    def poll(self) -> list[JobDone]:
        """Return the jobs that ended since the last call, in the order in which they ended."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            for drive in self._drives:
                drive.look()
        return [done for _, done in self._board.take()]

    def cancel(self, tag: Hashable) -> None:
        """Drop what has not started of the jobs with this tag."""
        for drive in self._drives:
            drive.transfers.cancel(tag)

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until every job has ended; return whether they have."""
        return self._board.wait_idle(timeout)

    @property
    def renewals(self) -> list[int]:
        """What this rank says of new slabs when all say the least that they know: nothing."""
        return [np.iinfo(np.int64).max] * len(self._drives)

    def follow(self, renewals: Sequence[int]) -> None:
        """Learn how often the owner has made a new slab in each directory."""
        for drive, n in zip(self._drives, renewals, strict=True):
            drive.follow(n)

    # What the owner does

    def room(self) -> tuple[int, int]:
        """Return that there is none."""
        return 0, 0

    def alloc(self, n: int) -> Ints | None:
        """Return None: slots are the owner's."""
        return None

    def hurry(self) -> None:
        """Do nothing."""

    def free(self, slots: Ints) -> None:
        """Do nothing: the owner is told as well."""

    def record(self, *page: object) -> None:
        """Do nothing: the owner is told as well."""

    def touch(self, slots: Ints, used: float) -> None:
        """Do nothing: the owner is told as well."""

    def clear(self, timeout: float = 5.0) -> bool:
        """Return that nothing is on record here."""
        return True

    def seal(self, reason: str, timeout: float = 5.0) -> bool:
        """Return that nothing is on record here."""
        self.sealed_because = self.sealed_because or reason
        return True

    # End

    def close(self, timeout: float = 10.0) -> bool:
        """Cancel what waits, wait up to ``timeout`` seconds for what runs; False if a read is stuck."""
        end = time.monotonic() + timeout
        for drive in self._drives:
            drive.close()
        over = [drive.join(max(0.0, end - time.monotonic())) for drive in self._drives]
        return all(over)

    # Figures

    def read_bandwidth(self) -> float:
        """Return a running estimate in bytes per second while reads are active; 0.0 before the first."""
        return self._board.read_bandwidth()

    def stats(self) -> dict[str, float]:
        """Return the figures of :meth:`radixtier.store.store.PageStore.stats`, of this rank's reads."""
        return {
            **self._board.stats(),
            "queue_depth": sum(drive.transfers.waiting for drive in self._drives),
            **dict.fromkeys(("journal_waiting", "journal_dropped", "journal_lag_seconds"), 0),
        }

    def take_latencies(self) -> list[Observed]:
        """Return the transfers that ended well since the last call, as far as they are kept; any thread."""
        return self._board.latencies.take()

    def health(self) -> list[DriveHealth]:
        """Return the state of every drive, as this rank reads it."""
        return [drive.figures() for drive in self._drives]
