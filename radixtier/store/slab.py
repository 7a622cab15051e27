"""The directory of a store: its lock, its slab file, and whom they belong to.

Owns the directory lock and the slab file from `open_slab` to `Slab.close`. Invariant: nothing is changed or
followed that is not ours: symbolic links, files and directories of other users are refused, other files in
the directory are left alone. One thread, at start and stop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from radixtier.io.frames import BLOCK

logger = logging.getLogger(__name__)

PATH_FLAG = "--radix-tier-nvme-path"
SIZE_FLAG = "--radix-tier-nvme-size"
PREFIX = "radixtier"
LOCK_NAME = f"{PREFIX}.lock"
SLAB_NAME = f"{PREFIX}-000.slab"


class StoreError(Exception):
    """The store cannot be opened; the message names the flag, the path and the fix."""


def slot_bytes(page_bytes: int) -> int:
    """Return the bytes of the slot that holds a page: rounded up to 4 KiB."""
    return -(-page_bytes // BLOCK) * BLOCK


def capacity_for(n_slots: int, page_bytes: int) -> int:
    """Return the smallest capacity in bytes that gives ``n_slots``: the slots, and one block for the lock."""
    return n_slots * slot_bytes(page_bytes) + BLOCK


class Slab:
    """An open, locked, preallocated slab file of ``n_slots * slot_bytes`` bytes."""

    def __init__(self, path: Path, nbytes: int, lock_fd: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self._lock_fd = lock_fd

    def close(self) -> None:
        """Give the directory up; the slab file stays."""
        if self._lock_fd >= 0:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1


def open_slab(directory: Path, capacity_bytes: int, page_bytes: int) -> Slab:
    """Lock ``directory`` and preallocate its slab file, dropping what an earlier run left in it.

    Raises
    ------
    StoreError
        When the directory or a file in it is not ours alone, another process holds it, the capacity is below
        one page, or the file system has no room.
    """
    n_slots = (capacity_bytes - BLOCK) // slot_bytes(page_bytes)
    if n_slots < 1:
        raise StoreError(
            f"{SIZE_FLAG}: {capacity_bytes} bytes do not hold one page of {page_bytes} bytes: "
            f"give at least {capacity_for(1, page_bytes)}"
        )
    claim(directory)
    lock_fd = _lock(directory)
    try:
        path = directory / SLAB_NAME
        _preallocate(path, n_slots * slot_bytes(page_bytes))
    except BaseException:
        os.close(lock_fd)
        raise
    return Slab(path, n_slots * slot_bytes(page_bytes), lock_fd)


def claim(directory: Path) -> None:
    """Create the directory (0700), or check that an existing one is safe to use.

    One that others may read is closed to them if all in it is ours, else left as it is: our files are 0600.

    Raises
    ------
    StoreError
        When it is a symbolic link, of another user, or open to changes by others.
    """
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
        found = directory.lstat()
        ours = all(name.startswith(PREFIX) for name in os.listdir(directory))
    except OSError as e:
        raise StoreError(f"{PATH_FLAG} {directory}: {e.strerror}: give a directory we can create") from e
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{PATH_FLAG} {directory} is a symbolic link: give the directory it points to")
    if found.st_uid != os.geteuid():
        raise StoreError(f"{PATH_FLAG} {directory} belongs to user {found.st_uid}: give one of the server's own user")
    if found.st_mode & 0o077 and ours:
        directory.chmod(0o700)
    elif found.st_mode & 0o022:
        raise StoreError(
            f"{PATH_FLAG} {directory} can be written by other users and holds other files: "
            f"give a directory of its own, such as {directory / PREFIX}"
        )


def _lock(directory: Path) -> int:
    """Take the directory's lock and write our pid into it; return the descriptor that holds it."""
    path = directory / LOCK_NAME
    fd = _open_own(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StoreError(f"{PATH_FLAG} {directory}: cannot lock {path}: {e.strerror}") from e
        raise StoreError(
            f"{PATH_FLAG} {directory} is in use by process {pid}: stop it or give another directory"
        ) from e
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _preallocate(path: Path, nbytes: int) -> None:
    fd = _open_own(path)
    try:
        if leftover := os.fstat(fd).st_size:
            logger.info("dropping %d bytes that an earlier run left in %s", leftover, path)
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as e:
        os.ftruncate(fd, 0)  # a file system filled to the brim by a failed start would hurt everybody on it
        free = os.statvfs(path.parent)
        raise StoreError(
            f"{SIZE_FLAG}: cannot reserve {nbytes} bytes in {path.parent}: {e.strerror}: "
            f"{free.f_bavail * free.f_frsize} bytes are free there, give less or another {PATH_FLAG}"
        ) from e
    finally:
        os.close(fd)


def _open_own(path: Path) -> int:
    """Open our file for writing, 0600, created if absent; refuse links, special files and other owners."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as e:
        reason = "is a symbolic link" if e.errno == errno.ELOOP else (e.strerror or str(e))
        raise StoreError(f"{PATH_FLAG}: {path} {reason}: remove it or give another directory") from e
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(fd)
        raise StoreError(f"{PATH_FLAG}: {path} is not our plain file: remove it or give another directory")
    os.fchmod(fd, 0o600)
    return fd
