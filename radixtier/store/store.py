"""The page store: slots on NVMe and the threads that move pages to and from them.

Owns the slots, the jobs and the drives. Invariants: ``free_slots + used_slots + quarantined == n_slots``; a slot with a
transfer in flight is neither freed nor written by another; a slot is not handed out before the row that named it is
durably gone, and no row is durable before the bytes it names; nothing on the data path raises for what a device does.
The scheduler thread calls everything but `stats`, `take_latencies` and `read_bandwidth`, which any thread may call, and
waits for I/O only in `drain`, `clear`, `seal` and `close`. Each drive has I/O threads, which touch only frames, file
and the arrays of the job at hand, and a keeper; what they find out goes through `poll`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np

from radixtier.footprint import footprint, slot_bytes
from radixtier.identity import StoreIdentity, Stretch
from radixtier.io.engine import Engine
from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.store.board import Board
from radixtier.store.drive import Drive
from radixtier.store.finder import Finder
from radixtier.store.health import DriveHealth
from radixtier.store.jobs import Chunk, Ints, Job, JobDone, Priority, Sums, cut, new_job
from radixtier.store.keeper import Finding
from radixtier.store.latency import Observed
from radixtier.store.opening import open_volumes
from radixtier.store.restorer import Restorer
from radixtier.store.slots import SlotTable

logger = logging.getLogger(__name__)

THREADS = 8
"""Transfers in flight. A few keep a drive busy; the others stand in for threads that wait for the GIL."""

THREADS_PER_DRIVE = 4
"""The same of one drive among several, at least."""

IO_BYTES = 4 << 20
"""Bytes per transfer: large, so that threads meet rarely; small, so that a read waits little for writes."""

LOOK_S = 1.0
"""Seconds between two looks for a device that hangs."""


def threads_of_drive(threads: int, drives: int) -> int:
    """Return how many of a store's I/O threads each drive gets, see `PageStore`."""
    return threads if drives == 1 else max(min(threads, THREADS_PER_DRIVE), threads // drives)


class PageStore:
    """Stores page images in slots and brings them back, checked, also in a later run.

    A slot belongs to the caller from `alloc` to `free`. `write`, `read` and `verify` return at once; results come from
    `poll`. Between the call and its `JobDone` the caller keeps the frames leased and does not free the slots. Slots
    whose pages are on record from an earlier run belong to the caller from the start, see `restorer`.

    Parameters
    ----------
    directories
        One per drive; created with mode 0700 if absent, locked for ``rank`` while the store is open.
    capacity_bytes
        Hard cap on the bytes in all directories together, journals included.
    frames
        The DRAM pool that pages are written from and read into.
    page_tokens
        Tokens per page.
    identity
        What pages are valid for. A store of another identity is never read. None: nothing is kept for a restart.
    engine
        Returns an engine for a directory, not open yet; the store opens and closes it.
    rank, ranks
        Which store of the directories this is, and of how many: each rank of a server has files of its own.
    min_free_bytes
        Free bytes of each file system that are left to others; with less, its drive takes no new pages.
    keep_others
        Keep stores of other identities, at the expense of the capacity, instead of deleting them.
    cleared
        Called when those are gone, before room is taken: the ranks of a server wait for each other here, since what
        one deletes is what another needs.
    threads
        I/O threads, hence transfers in flight; writes use a few of them. Shared out over the drives, of which
        each has at least `THREADS_PER_DRIVE` (or ``threads`` if that is less).
    io_bytes
        Largest transfer, and bytes that go to one drive before the next one's turn; at least one page.
    landing
        Where pages are read to that go straight on to HBM, as frames behind those of the pool: what is written gets a
        weighted sum as well then, and reads to these frames are checked against that. None: there is no such place.
    wake
        Called on another thread whenever `poll` has something new; must be quick.

    Raises
    ------
    StoreError
        When a directory cannot be used; the message names the flag and the fix.
    """

    borrowed = False
    """Whether the pages are in another rank's store."""

    def __init__(
        self,
        directories: Sequence[Path],
        capacity_bytes: int,
        frames: FrameBuffer,
        *,
        page_tokens: int,
        identity: StoreIdentity | None = None,
        engine: Callable[[Path], Engine],
        rank: int = 0,
        ranks: int = 1,
        min_free_bytes: int = 0,
        keep_others: bool = False,
        cleared: Callable[[], None] = lambda: None,
        threads: int = THREADS,
        io_bytes: int = IO_BYTES,
        landing: LandingZone | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.identity = identity
        self._n_frames = frames.n_frames
        self._landing = landing
        self.slot_bytes = slot_bytes(frames.page_bytes)
        self._pages_per_chunk = max(1, io_bytes // self.slot_bytes)
        self._volatile = identity is None
        self._sealed = self._closed = False
        self.sealed_because: str | None = None
        """Why nothing is kept for a restart any more, None while it is."""
        self._board = Board(self.slot_bytes, wake)
        self._found: deque[tuple[Drive, Finding, Ints]] = deque()
        self._looked = time.monotonic()
        volumes = open_volumes(
            directories, capacity_bytes, frames.page_bytes, page_tokens,
            identity=identity, engine=engine, rank=rank, ranks=ranks, min_free=min_free_bytes,
            keep_others=keep_others, cleared=cleared,
        )  # fmt: skip
        try:
            self._drives = [
                Drive(
                    volume, frames, self._board, base=i * volume.plan.n_slots,
                    threads=threads_of_drive(threads, len(volumes)), pages_per_chunk=self._pages_per_chunk,
                    post=self._post, figures=self._board.stats, landing=landing,
                )
                for i, volume in enumerate(volumes)
            ]  # fmt: skip
        except BaseException:
            for volume in volumes:
                volume.close()
            raise
        self._slots = SlotTable([drive.taken for drive in self._drives], self._pages_per_chunk)
        for drive in self._drives:
            self._slots.quarantine(drive.base + drive.aside)
        self.n_slots = self._slots.n_slots
        self.renewals = [0] * len(self._drives)
        """How often each drive got a new slab in place of one that was gone."""
        for drive in self._drives:
            drive.start()

    # Slots

    @property
    def free_slots(self) -> int:
        """Slots that nobody owns and that no row on disk names; `alloc` hands out those of writable drives."""
        return self._slots.free_slots

    @property
    def used_slots(self) -> int:
        """Slots handed out and not freed, transfers in flight or not, and freed ones until their rows are deleted."""
        return self._slots.used_slots

    def room(self) -> tuple[int, int]:
        """Return the slots that `alloc` can hand out now, and those on their way there: only their rows must go."""
        return self._slots.room([drive.writable for drive in self._drives])

    @property
    def quarantined(self) -> int:
        """Freed slots that nobody gets until a test has shown that they work, since something failed there."""
        return self._slots.quarantined

    @property
    def writable(self) -> bool:
        """Whether some drive takes new pages now."""
        return any(drive.writable for drive in self._drives)

    def alloc(self, n: int) -> Ints | None:
        """Return ``n`` slots of writable drives in filling order, as consecutive as can be; None if fewer are free.

        More than one stripe (`io_bytes`) is spread over the drives, a stripe to each in turn.
        """
        slots = self._slots.alloc(n, [drive.writable for drive in self._drives])
        if slots is None:
            self.hurry()
        return slots

    def hurry(self) -> None:
        """Have freed slots come back soon: somebody waits for them."""
        for drive in self._drives:
            drive.hurry()

    def free(self, slots: Ints) -> None:
        """Give slots back, in any order; none may have a transfer that `poll` has not reported yet.

        Slots of pages that are on record are free, in `poll`, once a restart cannot find these pages any more; slots
        where something failed, once they have been tested.
        """
        self._slots.disown(slots)
        for drive, part in self._by_drive(np.sort(slots)):
            free = drive.free(part - drive.base)
            self._settle(drive, part[free])

    def _settle(self, drive: Drive, slots: Ints) -> None:
        bad = self._slots.settle(slots)
        if len(bad):
            drive.quarantine(bad - drive.base)

    def _by_drive(self, slots: Ints) -> list[tuple[Drive, Ints]]:
        """Split slots by drive, in their order."""
        if len(self._drives) == 1:
            return [(self._drives[0], slots)] if len(slots) else []
        lanes = slots // self._slots.each
        return [(self._drives[d], slots[lanes == d]) for d in np.unique(lanes).tolist()]

    # Transfers

    def write(self, frames: Ints, slots: Ints, seeds: Sums, tag: Hashable) -> None:
        """Queue the writing of ``frames[i]`` to ``slots[i]``; `poll` brings checksums seeded by ``seeds[i]``.

        The frames must not change until the result is polled: their very bytes are hashed and written.
        """
        self._check_frames(frames, slots, self._n_frames)
        sums = np.zeros(len(slots), dtype=np.uint64)
        job = new_job("write", frames, slots, seeds, sums, tag)
        job.weighted = None if self._landing is None else sums.copy()
        self._submit(job, Priority.WRITE)

    def read(
        self,
        frames: Ints,
        slots: Ints,
        seeds: Sums,
        checksums: Sums,
        tag: Hashable,
        priority: Priority = Priority.DEMANDED,
    ) -> None:
        """Queue the reading of ``slots[i]`` into ``frames[i]`` and its check against ``checksums[i]``.

        Frames from that of the pool's end on are those of the landing zone; then all are, and ``checksums`` are the
        weighted sums. What a frame holds after a page that failed is undefined.
        """
        landing = len(frames) > 0 and int(frames[0]) >= self._n_frames
        assert not landing or (frames >= self._n_frames).all(), "a read into frames of both kinds"
        zone = self._landing if landing else None
        self._check_frames(frames, slots, self._n_frames + (0 if zone is None else zone.n_frames))
        self._submit(new_job("read", frames, slots, seeds, checksums, tag), priority)

    def verify(self, slots: Ints, seeds: Sums, checksums: Sums, tag: Hashable) -> None:
        """Queue the check of ``slots[i]`` against ``checksums[i]``, behind everything else; needs no frames.

        Slots are read in the order in which they lie on the drive, whatever the order of the call.
        """
        nowhere = np.full(len(slots), -1, dtype=np.int64)
        order = np.argsort(slots)
        job = new_job("verify", nowhere, slots[order], seeds[order], checksums[order], tag)
        job.order = order
        self._submit(job, Priority.SCRUB)

    def _check_frames(self, frames: Ints, slots: Ints, n_frames: int) -> None:
        assert len(frames) == len(slots)
        assert ((frames >= 0) & (frames < n_frames)).all(), "a transfer of a frame outside the pool"

    def _submit(self, job: Job, priority: Priority) -> None:
        assert len(job.slots) == len(job.seeds) == len(job.checksums)
        self._slots.begin(job)
        lanes = self._slots.lanes(job.slots)
        ranges = cut(job.slots, self._pages_per_chunk, lanes)
        job.chunks_left = max(1, len(ranges))
        self._board.open(job)
        if not ranges:
            self._board.over([Chunk(priority, 0, job, 0, 0)], None)
        elif lanes is None:
            self._drives[0].transfers.push(job, ranges, priority)
        else:
            self._push_apart(job, ranges, lanes, priority)

    def _push_apart(self, job: Job, ranges: list[tuple[int, int]], lanes: Ints, priority: Priority) -> None:
        of_lane = lanes[[lo for lo, _ in ranges]].tolist()
        for lane in sorted(set(of_lane)):
            part = [bounds for bounds, where in zip(ranges, of_lane, strict=True) if where == lane]
            if lane < 0:
                self._board.over([Chunk(priority, 0, job, lo, hi) for lo, hi in part], "the slab is gone")
            else:
                self._drives[lane].transfers.push(job, part, priority)

    def poll(self) -> list[JobDone]:
        """Return the jobs that ended since the last call, in the order in which they ended."""
        finished = self._board.take()
        for job, _ in finished:
            self._slots.end(job)
        while self._found:
            self._learn(*self._found.popleft())
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            for drive in self._drives:
                drive.look()
        return [done for _, done in finished]

    def _post(self, drive: Drive, finding: Finding, slots: Ints) -> None:
        """Take what a keeper found out, on its thread."""
        if len(slots) or finding == "renewed":
            self._found.append((drive, finding, slots))
            self._board.wake()

    def _learn(self, drive: Drive, finding: Finding, local: Ints) -> None:
        slots = drive.base + local
        if finding == "freed":
            self._settle(drive, slots)
        elif finding == "sound":
            self._slots.release(slots)
        else:
            self._slots.lose(drive.base // self._slots.each)
            self.renewals[drive.base // self._slots.each] += 1
            drive.renewed()

    def cancel(self, tag: Hashable) -> None:
        """Drop what has not started of the jobs with this tag; they end as `cancelled` once the rest has."""
        for drive in self._drives:
            drive.transfers.cancel(tag)

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until every job has ended; return whether they have."""
        return self._board.wait_idle(timeout)

    # Restarts

    def record(self, stretch: Stretch, slots: Ints, checksums: Sums, used: float, weighted: Sums | None = None) -> None:
        """Put pages on record: a restart may find them from now on, and will from a second from now on.

        Parameters
        ----------
        stretch
            The pages, all written: their `JobDone` has been polled and says `ok`.
        slots, checksums : ndarray, shape (pages,)
            Where they are, and the checksums that came with the `JobDone`.
        used
            Last use, in Unix seconds.
        weighted : ndarray, shape (pages,), or None
            Weighted sums that came with the `JobDone`.
        """
        assert len(stretch) == len(slots) == len(checksums)
        if self._volatile or self._sealed:
            return
        lanes = slots // self._slots.each
        lanes[~self._slots.alive(slots)] = -1
        for lo, hi in cut(slots, max(1, len(slots)), lanes):
            if lanes[lo] >= 0:
                drive = self._drives[int(lanes[lo])]
                part = None if weighted is None else weighted[lo:hi]
                drive.record(stretch.part(lo, hi), slots[lo:hi] - drive.base, checksums[lo:hi], used, part)

    def touch(self, slots: Ints, used: float) -> None:
        """Note that the pages in these slots were used at ``used`` (Unix seconds), as far as they are on record."""
        if self._volatile or self._sealed:
            return
        for drive, part in self._by_drive(slots):
            drive.touch(part - drive.base, used)

    def clear(self, timeout: float = 5.0) -> bool:
        """Strike all pages from the record. Slots stay with their owners.

        Returns
        -------
        bool
            Whether it is certain that no restart finds any of them. Otherwise the store is closed, or a drive was too
            slow, or refused; its keeper goes on trying.
        """
        if self._closed:
            return False
        end = time.monotonic() + timeout
        asked = [drive.clear() for drive in self._drives]
        certain = [done.wait(max(0.0, end - time.monotonic())) for done in asked]
        if not all(certain):
            logger.error(
                "radixtier: NVMe is not emptied yet, a drive is too slow or refuses; a restart before it is may find "
                "old pages. Empty the directories with 'radixtier store clear' before you restart"
            )
        return all(certain)

    def seal(self, reason: str, timeout: float = 5.0) -> bool:
        """Clear, and put nothing on record from now on: the identity says nothing about what will be written."""
        if not self._sealed:
            self._sealed, self.sealed_because = True, reason
            logger.warning("radixtier: no page on NVMe will be found after a restart: %s", reason)
        return self.clear(timeout)

    def restorer(self) -> Restorer | None:
        """Return what brings the pages of an earlier run back, None if there are none; call it once, after opening."""
        if self._sealed or not self.has_rows:
            return None
        return Restorer(*self._journals())

    def finder(self) -> Finder:
        """Return what finds the pages of an earlier run for a rank that is told which; in the place of `restorer`."""
        return Finder(*self._journals(), self._board.wake)

    @property
    def has_rows(self) -> bool:
        """Whether an earlier run left anything."""
        return any(len(drive.rows) for drive in self._drives)

    def _journals(self) -> tuple[list[Path], list[int], list[Ints]]:
        paths = [drive.volume.plan.files.db for drive in self._drives]
        return paths, [drive.base for drive in self._drives], [drive.rows for drive in self._drives]

    # End

    def close(self, timeout: float = 10.0) -> bool:
        """Cancel what waits, wait up to ``timeout`` seconds for what runs and for the record, give the directories up.

        Returns
        -------
        bool
            False if a transfer is stuck: files and lock of its drive are then kept, since it may still move bytes.
        """
        end = time.monotonic() + timeout
        self._closed = True
        for drive in self._drives:
            drive.close()
        over = [drive.join(max(0.0, end - time.monotonic())) for drive in self._drives]
        return all(over)

    # Figures

    @property
    def capacity_bytes(self) -> int:
        """Most bytes that the files of this store may take, journals included."""
        plans = [drive.volume.plan for drive in self._drives]
        return sum(footprint(plan.n_slots, plan.header.page_bytes, plan.header.page_tokens) for plan in plans)

    def read_bandwidth(self) -> float:
        """Return a running estimate in bytes per second while reads are active; 0.0 before the first."""
        return self._board.read_bandwidth()

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and the chunks that wait and run now.

        ``{read,write,verify}_{pages,bytes}`` count what arrived and is right, ``.._errors`` pages that the device
        failed, ``corrupt`` pages with a wrong checksum, ``cancelled`` pages dropped before they started;
        ``.._busy_seconds`` add up over threads. ``journal_waiting`` are runs that are to go on record,
        ``journal_dropped`` pages that never did because the journal could not take them in time,
        ``journal_lag_seconds`` the age of the oldest run that is not on record yet.
        """
        return {
            **self._board.stats(),
            "queue_depth": sum(drive.transfers.waiting for drive in self._drives),
            "journal_waiting": sum(drive.ledger.waiting for drive in self._drives),
            "journal_dropped": sum(drive.ledger.dropped for drive in self._drives),
            "journal_lag_seconds": max(drive.ledger.lag() for drive in self._drives),
        }

    def take_latencies(self) -> list[Observed]:
        """Return the transfers that ended well since the last call, as far as they are kept; any thread."""
        return self._board.latencies.take()

    def health(self) -> list[DriveHealth]:
        """Return the state of every drive."""
        found: list[DriveHealth] = []
        for d, drive in enumerate(self._drives):
            free, quarantined = self._slots.drive(d)
            trouble = drive.health.trouble
            found.append(
                DriveHealth(
                    drive.volume.directory, drive.writable, None if trouble is None else trouble.text,
                    drive.health.since, free.free_slots, self._slots.each - free.free_slots - quarantined,
                    quarantined, free.largest, len(free), drive.volume.engine.name,
                    None if trouble is None else trouble.kind,
                )
            )  # fmt: skip
        return found
