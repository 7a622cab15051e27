"""Pages as SGLang's own storage tier keeps them: a file each.

Owns the files in one directory. Invariant: every read finds a cold page cache, every write counts until its bytes are
on the drive. One thread, like the one that serves SGLang's file backend.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path


class PageFiles:
    """``n_pages`` files in a directory of their own, with the bytes of ``pages`` in turn."""

    def __init__(self, directory: Path, pages: Sequence[memoryview], n_pages: int) -> None:
        self._directory = directory
        self._pages = pages
        self._files = [directory / f"{i:08}.bin" for i in range(n_pages)]
        directory.mkdir(mode=0o700)

    def write(self) -> float:
        """Write every page under another name, rename it, flush; return bytes per second."""
        for file in self._files:
            file.unlink(missing_ok=True)
        temporary = self._directory / "page.tmp"
        begin = time.perf_counter()
        for i, file in enumerate(self._files):
            with open(temporary, "wb", buffering=0) as stream:
                stream.write(self._page(i))
            os.replace(temporary, file)
        flush(self._directory)
        return self._nbytes() / (time.perf_counter() - begin)

    def read(self) -> float:
        """Drop the page cache, read every page; return bytes per second."""
        for file in self._files:
            with open(file, "rb", buffering=0) as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        for i, file in enumerate(self._files):
            with open(file, "rb", buffering=0) as stream:
                if stream.readinto(self._page(i)) != len(self._page(i)):
                    raise OSError(f"short read of {file}")
        return self._nbytes() / (time.perf_counter() - begin)

    def _page(self, i: int) -> memoryview:
        return self._pages[i % len(self._pages)]

    def _nbytes(self) -> int:
        return len(self._files) * len(self._pages[0])


def flush(directory: Path) -> None:
    """Return when all that was written to the file system of ``directory`` is on the drive."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
    finally:
        os.close(fd)
