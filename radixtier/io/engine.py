"""The interface of an I/O engine, and the loop that finishes what an engine left undone.

Owns no state. Invariant: an engine never claims bytes that it did not move; everything above relies on counts
only. Any thread may call `readv` and `writev`, also at the same time; `open` and `close` belong to one owner.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.footprint import BLOCK

Buffers = Sequence[memoryview]


class Engine(ABC):
    """Synchronous, vectored transfers on one open file.

    Contract
    --------
    - One instance serves one file: `open` once, then transfers from any number of threads, then `close`.
    - `readv` and `writev` block until the bytes have moved and release the GIL meanwhile. Like the system
      calls they may move fewer bytes than asked and return that count; 0 means end of file or no room. They
      raise `OSError` only when nothing was moved. `transfer` turns that into all or an error.
    - Offset, and address and length of every buffer, are multiples of `alignment`: staging is the caller's
      part.
    - No two transfers overlap on a range while one of them writes: that, too, is the caller's part.
    - Data is durable only after `sync`.
    - `read_device` is `readv` into memory of a GPU, where the engine can do that: buffers are arrays of bytes with
      ``__cuda_array_interface__``, ``nbytes`` and slices. Whoever touched a buffer on a stream waits for that first.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Engine and mode, for logs and figures."""

    @property
    @abstractmethod
    def alignment(self) -> int:
        """Bytes that addresses, offsets and lengths must be multiples of; it may only fall while open."""

    @abstractmethod
    def open(self, path: Path, size: int) -> None:
        """Open an existing regular file of ``size`` bytes for reading and writing; raises `OSError`."""

    @abstractmethod
    def readv(self, buffers: Buffers, offset: int) -> int:
        """Fill ``buffers`` in order from ``offset``; return the bytes read."""

    def read_device(self, buffers: Sequence[Any], offset: int) -> int:
        """Fill device buffers in order from ``offset``; return the bytes read. Raises `OSError` where it cannot."""
        raise OSError(errno.EOPNOTSUPP, f"{self.name} does not read into GPU memory")

    @abstractmethod
    def writev(self, buffers: Buffers, offset: int) -> int:
        """Write ``buffers`` in order at ``offset``; return the bytes written."""

    @abstractmethod
    def sync(self) -> None:
        """Return when everything written before is on the device; raises `OSError`."""

    @abstractmethod
    def close(self) -> None:
        """Close the file; no transfer may be running. Closing twice is allowed."""


class Moved(NamedTuple):
    """What `transfer` achieved: bytes moved from the start, and why it stopped short (None if it did not)."""

    nbytes: int
    error: str | None


def transfer(move: Callable[[Any, int], int], buffers: Sequence[Any], offset: int) -> Moved:
    """Call ``engine.readv``, ``writev`` or ``read_device`` until all is moved, nothing moves any more, or it fails.

    A short count is continued at the last whole `BLOCK`, so that a direct transfer stays aligned; one that
    ends in the first block is no progress, hence an error. Never raises `OSError`.
    """
    total = sum(b.nbytes for b in buffers)
    done = 0
    rest = buffers
    while done < total:
        try:
            count = move(rest, offset + done)
        except OSError as e:
            return Moved(done, str(e))
        if count < total - done:
            count -= (done + count) % BLOCK
            if count <= 0:
                return Moved(done, f"short transfer: {done} of {total} bytes at offset {offset}")
            rest = _skip(rest, count)
        done += count
    return Moved(done, None)


def head(buffers: Buffers, nbytes: int) -> list[memoryview]:
    """Return the first ``nbytes`` of ``buffers``."""
    kept: list[memoryview] = []
    for buffer in buffers:
        if nbytes <= 0:
            break
        kept.append(buffer[:nbytes])
        nbytes -= buffer.nbytes
    return kept


def _skip(buffers: Sequence[Any], nbytes: int) -> list[Any]:
    """Return what follows the first ``nbytes`` of ``buffers``."""
    for i, buffer in enumerate(buffers):
        if nbytes < buffer.nbytes:
            return [buffer[nbytes:], *buffers[i + 1 :]]
        nbytes -= buffer.nbytes
    return []
