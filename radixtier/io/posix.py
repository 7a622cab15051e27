"""The `posix` engine: `preadv`/`pwritev`, past the page cache (O_DIRECT) where the file system allows it.

Owns one file descriptor, or two after a fallback. Invariant: O_DIRECT is given up at most once per file and
is never taken up again; both descriptors are of one file, whatever lies behind its name by then. Threads: see
`Engine`.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from radixtier.footprint import BLOCK
from radixtier.io.engine import Buffers, Engine
from radixtier.io.files import open_existing, reopen, scratch_file

logger = logging.getLogger(__name__)

_Call = Callable[[int, Buffers, int], int]

IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024)
"""Buffers per system call; longer lists are moved in several calls."""

O_DIRECT = getattr(os, "O_DIRECT", 0)


class PosixEngine(Engine):
    """Blocking vectored I/O; the kernel releases the GIL for the whole call.

    Parameters
    ----------
    direct
        Open with O_DIRECT. When the file system then refuses to open or to transfer with EINVAL, the file is
        reopened through the page cache, with one warning, and the transfer repeated.
    """

    def __init__(self, *, direct: bool) -> None:
        self._direct = direct
        self._path = Path()
        self._fd = -1
        self._retired_fd = -1
        self._fallback_lock = threading.Lock()

    @property
    def name(self) -> str:
        return "posix O_DIRECT" if self._direct else "posix buffered"

    @property
    def alignment(self) -> int:
        return BLOCK if self._direct else 1

    def open(self, path: Path, size: int) -> None:
        self._path = path
        self._fd = open_existing(path, size)
        if self._direct:
            try:
                direct = reopen(self._fd, O_DIRECT)
            except OSError as e:
                if e.errno != errno.EINVAL:
                    self.close()
                    raise
                self._give_up_direct(self._fd)
            else:
                self._fd, buffered = direct, self._fd
                os.close(buffered)

    def readv(self, buffers: Buffers, offset: int) -> int:
        return self._move(os.preadv, buffers, offset)

    def writev(self, buffers: Buffers, offset: int) -> int:
        return self._move(os.pwritev, buffers, offset)

    def _move(self, call: _Call, buffers: Buffers, offset: int) -> int:
        """One system call per `IOV_MAX` buffers; stops at the first short one."""
        done = 0
        for i in range(0, len(buffers), IOV_MAX):
            some = buffers[i : i + IOV_MAX]
            try:
                count = self._call(call, some, offset + done)
            except OSError:
                if done:
                    return done  # the caller continues there and meets the error with nothing moved
                raise
            done += count
            if count < sum(b.nbytes for b in some):
                break
        return done

    def _call(self, call: _Call, buffers: Buffers, offset: int) -> int:
        fd = self._fd
        try:
            return call(fd, buffers, offset)
        except OSError as e:
            if not (e.errno == errno.EINVAL and self._give_up_direct(fd)):
                raise
        return call(self._fd, buffers, offset)

    def _give_up_direct(self, refused_fd: int) -> bool:
        """Go on without O_DIRECT unless another thread does already; False if ``refused_fd`` was not direct."""
        with self._fallback_lock:
            if self._direct:
                # Other threads may be inside calls on the old descriptor: it is closed with the file only.
                self._retired_fd, self._fd = self._fd, reopen(self._fd)
                self._direct = False
                logger.warning(
                    "radixtier: O_DIRECT was refused on %s: going through the page cache from now on. "
                    "Use a file system with direct I/O (ext4, xfs) to keep the cache free.",
                    self._path,
                )
            return refused_fd != self._fd

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        for fd in (self._fd, self._retired_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._retired_fd = -1


def try_direct(directory: Path) -> str | None:
    """Do one real O_DIRECT write and read in ``directory``; return why they do not work, None if they do.

    `open` alone proves nothing: some file systems accept the flag there and refuse the first write.

    Raises
    ------
    OSError
        For what has nothing to do with O_DIRECT: no such directory, no permission, no space.
    """
    if not O_DIRECT:
        return "is unknown on this platform"
    out, back = mmap.mmap(-1, BLOCK), mmap.mmap(-1, BLOCK)
    out[:] = secrets.token_bytes(BLOCK)
    with scratch_file(directory, BLOCK) as plain:
        try:
            fd = reopen(plain, O_DIRECT)
            try:
                moved = os.pwritev(fd, [out], 0), os.preadv(fd, [back], 0)
            finally:
                os.close(fd)
        except OSError as e:
            if e.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return f"is refused ({e.strerror})"
            raise
    return None if moved == (BLOCK, BLOCK) and out[:] == back[:] else "does not give back what was written"
