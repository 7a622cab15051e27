"""The DRAM pool as raw memory: where each frame's bytes lie.

Owns a writable view of the pool and its geometry, never the memory itself. Invariant: the *page image* of a
frame, the order in which its bytes are hashed and stored, is the concatenation of its parts in the order
given at construction. Immutable after construction, so any thread may call anything; that nobody else writes
to a frame meanwhile is the caller's lease to keep.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.footprint import BLOCK as BLOCK

Bytes = npt.NDArray[np.uint8]


class Part(NamedTuple):
    """One contiguous piece of a page: at ``offset + frame * stride``, ``nbytes`` long (all in bytes)."""

    offset: int
    stride: int
    nbytes: int


def coalesce(parts: Iterable[tuple[int, int, int]]) -> tuple[Part, ...]:
    """Merge parts that follow each other in memory for every frame."""
    merged: list[Part] = []
    for part in (Part(*p) for p in parts):
        last = merged[-1] if merged else None
        adjacent = last and last.stride == part.stride and last.offset + last.nbytes == part.offset
        if last and adjacent and last.nbytes + part.nbytes <= part.stride:
            merged[-1] = last._replace(nbytes=last.nbytes + part.nbytes)
        else:
            merged.append(part)
    return tuple(merged)


class FrameBuffer:
    """Geometry of a pool of frames over one writable block of memory.

    Parameters
    ----------
    base
        Writable, contiguous buffer that holds all frames; it is kept alive by this object.
    n_frames
        Number of frames.
    parts
        ``(offset of frame 0, stride, nbytes)`` of each piece of a page, in bytes: one for a page-first
        layout, two where K and V are apart, ``2 * layers`` in a layer-first layout. Neighbours are merged.

    Raises
    ------
    ValueError
        When a part reaches outside ``base`` or parts or frames overlap.
    """

    def __init__(self, base: memoryview, n_frames: int, parts: Sequence[tuple[int, int, int]]) -> None:
        self._base = base.cast("B")
        self.n_frames = n_frames
        self.parts = coalesce(parts)
        self.page_bytes = sum(p.nbytes for p in self.parts)
        self._check()
        memory = np.frombuffer(self._base, dtype=np.uint8)
        self._pieces = [_by_frame(memory, part, n_frames) for part in self.parts]
        address = int(memory.ctypes.data)
        self.aligned = all(n % BLOCK == 0 for p in self.parts for n in (address + p.offset, p.stride, p.nbytes))
        """True when every piece of every frame can be given to O_DIRECT as it is."""

    def _check(self) -> None:
        if self._base.readonly:
            raise ValueError("the frame pool must be writable memory")
        if self.n_frames < 1 or not self.parts:
            raise ValueError(f"a pool needs frames and parts, got {self.n_frames} and {len(self.parts)}")
        for part in self.parts:
            end = part.offset + (self.n_frames - 1) * part.stride + part.nbytes
            if part.offset < 0 or part.nbytes < 1 or part.stride < part.nbytes or end > self._base.nbytes:
                raise ValueError(
                    f"{part} of {self.n_frames} frames does not fit into a pool of {self._base.nbytes} bytes"
                )
        self._check_overlap()

    def _check_overlap(self) -> None:
        """Parts of one stride may interleave; anything else must lie in ranges of its own."""
        for i, a in enumerate(self.parts):
            for b in self.parts[:i]:
                low, high = (a, b) if a.offset <= b.offset else (b, a)
                apart = low.offset + (self.n_frames - 1) * low.stride + low.nbytes <= high.offset
                if a.stride == b.stride:
                    gap = (high.offset - low.offset) % low.stride
                    apart = apart or (gap >= low.nbytes and gap + high.nbytes <= low.stride)
                if not apart:
                    raise ValueError(f"parts {low} and {high} overlap")

    def views(self, frame: int) -> list[memoryview]:
        """Return the pieces of a frame, in page-image order, as writable views (no copy)."""
        base = self._base
        return [base[o + frame * s : o + frame * s + n] for o, s, n in self.parts]

    def gather(self, frames: npt.NDArray[np.int64], out: Bytes) -> None:
        """Copy the page images of ``frames`` into the rows of ``out`` (``[len(frames), >= page_bytes]``)."""
        at = 0
        for piece in self._pieces:
            end = at + piece.shape[1]
            out[:, at:end] = piece[frames]
            at = end

    def scatter(self, frames: npt.NDArray[np.int64], rows: Bytes) -> None:
        """Copy page images from ``rows`` (``[len(frames), >= page_bytes]``) into ``frames``."""
        at = 0
        for piece in self._pieces:
            end = at + piece.shape[1]
            piece[frames] = rows[:, at:end]
            at = end


def _by_frame(memory: Bytes, part: Part, n_frames: int) -> Bytes:
    """View one part as ``[n_frames, nbytes]``."""
    view: Any = np.lib.stride_tricks.as_strided(
        memory[part.offset :], shape=(n_frames, part.nbytes), strides=(part.stride, 1)
    )
    return view  # type: ignore[no-any-return]


def aligned_memory(nbytes: int) -> memoryview:
    """Allocate zeroed, page-aligned memory, in huge pages if possible; it lives as long as the view.

    Huge pages halve the kernel's work for direct I/O: far fewer pages to pin and fewer segments per request.
    """
    # Private: shared memory gets huge pages only where shmem_enabled says so, which is hardly anywhere.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
