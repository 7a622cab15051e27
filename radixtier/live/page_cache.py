"""Takes files out of the page cache, so that reading them reads the drive.

Owns nothing. Law: afterwards the bytes of the files are on the drive and not in memory, which is looked up and not
believed; names and inodes stay cached. Linux. Any thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import NamedTuple

STILL_S = 2.0
LOOK_S = 0.25


class Files(NamedTuple):
    """Regular files below a directory."""

    number: int
    bytes: int
    """As allocated on the drive: holes do not count."""
    cached_bytes: int = 0
    """Of them in the page cache."""


def size(directory: Path) -> Files:
    """Count the files below a directory; those that vanish meanwhile count as nothing."""
    sizes = []
    for path in _files(directory):
        try:
            sizes.append(path.stat().st_blocks * 512)
        except FileNotFoundError:
            continue
    return Files(len(sizes), sum(sizes))


def wait_until_still(directory: Path, timeout_s: float) -> bool:
    """Wait until nothing was added for :data:`STILL_S`; False if it still grows after ``timeout_s``."""
    end = time.monotonic() + timeout_s
    last, since = size(directory), time.monotonic()
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        now = size(directory)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since >= STILL_S:
            return True
    return False


def drop(directory: Path) -> Files:
    """Write back all files below a directory and drop their pages; tell what stayed cached all the same."""
    count = total = cached = 0
    for path in _files(directory):
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            count += 1
            total += os.fstat(file).st_blocks * 512
            cached += cached_bytes(file)
        finally:
            os.close(file)
    return Files(count, total, cached)


def cached_bytes(file: int) -> int:
    """Return how much of an open file is in the page cache, in whole pages of memory."""
    length = os.fstat(file).st_size
    if length == 0:
        return 0
    pages = (length + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    flags = (ctypes.c_ubyte * pages)()
    # Mapped privately and writable only because ctypes takes the address of no other buffer; nothing is written.
    with mmap.mmap(file, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view:
        first = ctypes.c_ubyte.from_buffer(view)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), flags
        )
        del first
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(flag & 1 for flag in flags) * mmap.PAGESIZE


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
