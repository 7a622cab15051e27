"""Moving one chunk between frames and consecutive slots.

Owns one worker's staging buffer. Invariant: a page counts as `ok` only when its whole slot was moved and, on
the way up, its checksum is right; staged pages reach their frames only then. What is read to a landing frame is there
before it was checked, and nobody looks at it before the job is over. One `ChunkMover` per worker thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radixtier.footprint import slot_bytes
from radixtier.io.engine import Engine, Moved, transfer
from radixtier.io.frames import Bytes, FrameBuffer, aligned_memory
from radixtier.io.landing import LandingZone
from radixtier.store.checksum import page_checksum
from radixtier.store.jobs import Chunk, Ints
from radixtier.store.weighted import weighted_sum

Pages = list[list[memoryview]]


class SpareBuffer:
    """Aligned memory that is allocated when it is first used; the user sees to it that one thread uses it at a time."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._memory: memoryview | None = None

    @property
    def memory(self) -> memoryview:
        """The memory."""
        if self._memory is None:
            self._memory = aligned_memory(self._nbytes)
        return self._memory


class ChunkMover:
    """Runs chunks of at most ``max_pages`` pages on one thread.

    Aligned frames are given to the engine as they are. Others go through a buffer of ``max_pages`` slots, so
    that the engine sees aligned memory and each page is hashed in one call. Pages that are only verified go to
    ``spare``, of the same size, which movers share: of a drive's chunks at most one verifies at a time.

    Movers that share ``hashing`` hash one at a time. Hashing gives up the interpreter once per page; several threads
    that do so at once spend more time on handing it over than on hashing (xxh3 does 25 GB/s, more than a drive).
    """

    def __init__(
        self,
        frames: FrameBuffer,
        max_pages: int,
        spare: SpareBuffer,
        hashing: threading.Lock,
        landing: LandingZone | None = None,
    ) -> None:
        self._hashing = hashing
        self._frames = frames
        self._landing = landing
        self._slot_bytes = slot_bytes(frames.page_bytes)
        self._spare = spare
        self._staging = None if frames.aligned else aligned_memory(max_pages * self._slot_bytes)

    def run(self, chunk: Chunk, engine: Engine, offset: int) -> Moved:
        """Move the chunk's pages and fill in their results in the job; never raises `OSError`.

        ``offset`` is that of the chunk's first slot in the engine's file, in bytes.
        """
        if chunk.job.kind == "write":
            return self._write(chunk, engine, offset)
        if self._landing is not None and self.lands(chunk):
            return self._land(chunk, self._landing, engine, offset)
        return self._read(chunk, engine, offset)

    def lands(self, chunk: Chunk) -> bool:
        """Whether a chunk is read to the landing zone."""
        return bool(chunk.job.frames[chunk.lo] >= self._frames.n_frames)

    def _write(self, chunk: Chunk, engine: Engine, offset: int) -> Moved:
        job, lo, hi = chunk.job, chunk.lo, chunk.hi
        frames = job.frames[lo:hi]
        if self._staging is not None:
            rows = self._rows(self._staging, len(frames))
            self._frames.gather(frames, rows)
            rows[:, self._frames.page_bytes :] = 0
        pages, buffers = self._memory(frames, self._staging)
        job.checksums[lo:hi] = self._checksums(pages, job.seeds[lo:hi])
        if job.weighted is not None:
            job.weighted[lo:hi] = self._checksums(pages, job.seeds[lo:hi], weighted_sum)
        moved = transfer(engine.writev, buffers, offset)
        job.ok[lo : lo + moved.nbytes // self._slot_bytes] = True
        return moved

    def _read(self, chunk: Chunk, engine: Engine, offset: int) -> Moved:
        job, lo = chunk.job, chunk.lo
        verify = job.kind == "verify"
        staging = self._spare.memory if verify else self._staging
        frames = job.frames[lo : chunk.hi]
        pages, buffers = self._memory(frames, staging)
        moved = transfer(engine.readv, buffers, offset)
        whole = moved.nbytes // self._slot_bytes
        hi = lo + whole
        found = self._checksums(pages[:whole], job.seeds[lo:hi])
        good = found == job.checksums[lo:hi]
        if staging is not None and not verify:
            rows = self._rows(staging, whole)
            self._frames.scatter(frames[:whole][good], rows if good.all() else rows[good])
        job.checksums[lo:hi] = found
        job.ok[lo:hi] = good
        job.corrupt[lo:hi] = ~good
        return moved

    def _land(self, chunk: Chunk, landing: LandingZone, engine: Engine, offset: int) -> Moved:
        job, lo = chunk.job, chunk.lo
        frames = job.frames[lo : chunk.hi] - self._frames.n_frames
        moved = transfer(landing.move(engine), landing.buffers(frames), offset)
        whole = moved.nbytes // self._slot_bytes
        hi = lo + whole
        found = landing.sums(frames[:whole], job.seeds[lo:hi])
        good = found == job.checksums[lo:hi]
        job.checksums[lo:hi] = found
        job.ok[lo:hi] = good
        job.corrupt[lo:hi] = ~good
        return moved

    def _memory(self, frames: Ints, staging: memoryview | None) -> tuple[Pages, list[memoryview]]:
        """Return the page images, and the buffers for the engine, of the frames or of their staged copies."""
        if staging is None:
            pages = [self._frames.views(frame) for frame in frames.tolist()]
            return pages, [view for page in pages for view in page]
        size, step = self._frames.page_bytes, self._slot_bytes
        staged = staging[: len(frames) * step]
        return [[staged[i : i + size]] for i in range(0, len(staged), step)], [staged]

    def _rows(self, staging: memoryview, n: int) -> Bytes:
        flat = np.frombuffer(staging, dtype=np.uint8, count=n * self._slot_bytes)
        return flat.reshape(n, self._slot_bytes)

    def _checksums(
        self, pages: Pages, seeds: npt.NDArray[np.uint64], of: Callable[[list[memoryview], int], int] = page_checksum
    ) -> npt.NDArray[np.uint64]:
        with self._hashing:
            sums = [of(page, seed) for page, seed in zip(pages, seeds.tolist(), strict=True)]
        return np.array(sums, dtype=np.uint64)
