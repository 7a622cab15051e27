"""The landing zone: where pages that go straight on to HBM are read to.

Owns what the store asks of it, and the landing zone of a server without a GPU, which is ordinary memory. A landing
frame holds one page image, its parts one after the other, in a row of whole blocks; rows lie behind each other.
Invariant: the scheduler gives no frame to a read before the transfer that was the last to look at it has been
acknowledged, so nothing here orders anything but its own work. Transfers come from I/O threads, several at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from radixtier.footprint import slot_bytes
from radixtier.io.engine import Engine
from radixtier.io.frames import aligned_memory

Frames = npt.NDArray[np.int64]
"""Landing frames, from 0."""
Sums = npt.NDArray[np.uint64]
Summing = Callable[[list[memoryview], int], int]


class LandingZone(ABC):
    """A bounded number of landing frames of one size.

    Parameters
    ----------
    n_frames, page_bytes
        How many, and the bytes of a page image.
    """

    def __init__(self, n_frames: int, page_bytes: int) -> None:
        self.n_frames = n_frames
        self.page_bytes = page_bytes
        self.row_bytes = slot_bytes(page_bytes)

    @abstractmethod
    def buffers(self, frames: Frames) -> list[Any]:
        """Return the rows of ``frames`` in their order, as the engine takes them; neighbours are one buffer."""

    @abstractmethod
    def move(self, engine: Engine) -> Callable[[Any, int], int]:
        """Return what of an engine reads into these buffers."""

    @abstractmethod
    def sums(self, frames: Frames, seeds: Sums) -> Sums:
        """Return the weighted sums of the page images in ``frames``; nothing looks at these any more on return."""

    def close(self) -> None:  # noqa: B027 - ordinary memory has nothing to give back
        """Take back what was registered with a driver; no transfer may run any more."""

    def _stretches(self, frames: Frames) -> list[tuple[int, int]]:
        """Return the first and the number of frames of each stretch of neighbours."""
        ends = np.flatnonzero(np.diff(frames) != 1) + 1
        bounds = [0, *ends.tolist(), len(frames)]
        return [(int(frames[lo]), hi - lo) for lo, hi in pairwise(bounds) if hi > lo]


class HostLanding(LandingZone):
    """Landing frames in ordinary memory, for servers whose "HBM" is that as well.

    Parameters
    ----------
    summing
        Computes the weighted sum of the parts of a page, given its seed.
    """

    def __init__(self, n_frames: int, page_bytes: int, summing: Summing) -> None:
        super().__init__(n_frames, page_bytes)
        self.memory = aligned_memory(n_frames * self.row_bytes)
        self._summing = summing

    def buffers(self, frames: Frames) -> list[Any]:
        step = self.row_bytes
        return [self.memory[first * step : (first + n) * step] for first, n in self._stretches(frames)]

    def move(self, engine: Engine) -> Callable[[Any, int], int]:
        return engine.readv

    def sums(self, frames: Frames, seeds: Sums) -> Sums:
        rows = [self.memory[f * self.row_bytes :][: self.page_bytes] for f in frames.tolist()]
        found = [self._summing([row], seed) for row, seed in zip(rows, seeds.tolist(), strict=True)]
        return np.array(found, dtype=np.uint64)
