"""Moving one chunk between frames and consecutive slots.

Owns one worker's staging buffer. Invariant: a page counts as `ok` only when its whole slot was moved and, on
the way up, its checksum is right; staged pages reach their frames only then. One `ChunkMover` per worker
thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixtier.io.engine import Engine, Moved, transfer
from radixtier.io.frames import Bytes, FrameBuffer, aligned_memory
from radixtier.store.checksum import page_checksum
from radixtier.store.jobs import Chunk, Ints
from radixtier.store.slab import slot_bytes

Pages = list[list[memoryview]]


class ChunkMover:
    """Runs chunks of at most ``max_pages`` pages on one thread.

    Aligned frames are given to the engine as they are. Others go through a buffer of ``max_pages`` slots, so
    that the engine sees aligned memory and each page is hashed in one call.
    """

    def __init__(self, engine: Engine, frames: FrameBuffer, max_pages: int) -> None:
        self._engine = engine
        self._frames = frames
        self._slot_bytes = slot_bytes(frames.page_bytes)
        self._staging = None if frames.aligned else aligned_memory(max_pages * self._slot_bytes)

    def run(self, chunk: Chunk) -> Moved:
        """Move the chunk's pages and fill in their results in the job; never raises `OSError`."""
        return self._read(chunk) if chunk.job.kind == "read" else self._write(chunk)

    def _write(self, chunk: Chunk) -> Moved:
        job, lo, hi = chunk.job, chunk.lo, chunk.hi
        frames = job.frames[lo:hi]
        if self._staging is not None:
            rows = self._rows(self._staging, len(frames))
            self._frames.gather(frames, rows)
            rows[:, self._frames.page_bytes :] = 0
        pages, buffers = self._memory(frames)
        job.checksums[lo:hi] = _checksums(pages, job.seeds[lo:hi])
        moved = transfer(self._engine.writev, buffers, int(job.slots[lo]) * self._slot_bytes)
        job.ok[lo : lo + moved.nbytes // self._slot_bytes] = True
        return moved

    def _read(self, chunk: Chunk) -> Moved:
        job, lo = chunk.job, chunk.lo
        frames = job.frames[lo : chunk.hi]
        pages, buffers = self._memory(frames)
        moved = transfer(self._engine.readv, buffers, int(job.slots[lo]) * self._slot_bytes)
        whole = moved.nbytes // self._slot_bytes
        hi = lo + whole
        found = _checksums(pages[:whole], job.seeds[lo:hi])
        good = found == job.checksums[lo:hi]
        if self._staging is not None:
            rows = self._rows(self._staging, whole)
            self._frames.scatter(frames[:whole][good], rows if good.all() else rows[good])
        job.checksums[lo:hi] = found
        job.ok[lo:hi] = good
        job.corrupt[lo:hi] = ~good
        return moved

    def _memory(self, frames: Ints) -> tuple[Pages, list[memoryview]]:
        """Return the page images, and the buffers for the engine, of the frames or of their staged copies."""
        if self._staging is None:
            pages = [self._frames.views(frame) for frame in frames.tolist()]
            return pages, [view for page in pages for view in page]
        size, step = self._frames.page_bytes, self._slot_bytes
        staged = self._staging[: len(frames) * step]
        return [[staged[i : i + size]] for i in range(0, len(staged), step)], [staged]

    def _rows(self, staging: memoryview, n: int) -> Bytes:
        flat = np.frombuffer(staging, dtype=np.uint8, count=n * self._slot_bytes)
        return flat.reshape(n, self._slot_bytes)


def _checksums(pages: Pages, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    sums = [page_checksum(page, seed) for page, seed in zip(pages, seeds.tolist(), strict=True)]
    return np.array(sums, dtype=np.uint64)
