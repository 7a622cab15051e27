"""A directory of the store: whom it belongs to, its lock, and the slab file in it.

Owns the lock of a rank from `lock` to its release, and the slab file from `open_slab` to `Slab.close`. Invariant:
nothing is changed or followed that is not ours: symbolic links, files and directories of other users are refused, other
files in the directory are left alone. One thread at a time: the owner's at start and stop, the keeper's in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from radixtier.footprint import BLOCK, HEADER_BYTES, footprint
from radixtier.machine import free_disk_bytes
from radixtier.store.header import Header, HeaderError
from radixtier.store.paths import PREFIX, StoreFiles, is_our_file, lock_path, sync_directory

logger = logging.getLogger(__name__)

PATH_FLAG = "--radix-tier-nvme-path"
SIZE_FLAG = "--radix-tier-nvme-size"
MIN_FREE_FLAG = "--radix-tier-nvme-min-free"
OTHERS_FLAG = "--radix-tier-nvme-others"


class StoreError(Exception):
    """The store cannot be opened; the message names the flag, the path and the fix."""


class Slab:
    """An open, preallocated slab file: two blocks, then the slots.

    Attributes
    ----------
    header : Header
        What it is valid for.
    nbytes : int
        Its length.
    kept : bool
        It is the slab of an earlier run, so that the rows which name its store id may be right.
    """

    def __init__(self, files: StoreFiles, fd: int, header: Header, nbytes: int, kept: bool) -> None:
        self.files = files
        self.header = header
        self.nbytes = nbytes
        self.kept = kept
        self._fd = fd

    @property
    def path(self) -> Path:
        """The file."""
        return self.files.slab

    def missing(self) -> str | None:
        """Return why the file at the path is not the open one any more, None if it is; raises `OSError`."""
        try:
            there = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return f"{self.path} has vanished"
        mine = os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            return f"{self.path} is another file than before"
        return None

    def moved(self) -> bool:
        """Whether the directory is on another file system than the slab; raises `OSError`."""
        return os.stat(self.files.directory).st_dev != os.fstat(self._fd).st_dev

    def disown(self) -> None:
        """Take a new store id, durably: every row that names the old one is worthless; raises `OSError`."""
        header = self.header.renewed()
        _write_header(self._fd, header)
        self.header = header

    def close(self, *, remove: bool = False) -> None:
        """Close the file, and delete it if it is to leave nothing behind."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if remove and not self.missing():
                self.path.unlink()
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)


def open_slab(files: StoreFiles, header: Header, n_slots: int, *, min_free: int = 0, afresh: bool = False) -> Slab:
    """Open the slab of ``n_slots`` slots, or make it when what is there is for something else or cannot be read.

    A slab of another length is grown or cut. A new one gets the store id of ``header``, after the databases that name
    an old one are gone.

    Raises
    ------
    StoreError
        When a file is not ours alone, or the file system has no room for the store and ``min_free`` bytes.
    """
    fd = open_own(files.slab)
    try:
        found = None if afresh else _read(fd, files.slab, header)
        nbytes = HEADER_BYTES + n_slots * header.slot_bytes
        if found is None:
            for path in files.databases:
                remove_own(path)
            os.ftruncate(fd, 0)
        _check_room(files, footprint(n_slots, header.page_bytes, header.page_tokens), min_free)
        _reserve(fd, files.directory, nbytes)
        if found is None:
            _write_header(fd, header)
            sync_directory(files.directory)
    except StoreError:
        os.close(fd)
        raise
    except OSError as e:
        os.close(fd)
        raise StoreError(f"{PATH_FLAG} {files.directory}: {files.slab}: {e.strerror or e}") from e
    return Slab(files, fd, found or header, nbytes, found is not None)


def _read(fd: int, path: Path, wanted: Header) -> Header | None:
    """Return the header of an open slab if its pages are good for us."""
    if not os.fstat(fd).st_size:
        return None
    try:
        found = Header.unpack(os.pread(fd, BLOCK, 0))
        why = ", ".join(wanted.differences(found))
    except HeaderError as e:
        why = str(e)
    if not why:
        return found
    logger.warning("radixtier: the pages in %s are dropped: %s", path, why)
    return None


def _write_header(fd: int, header: Header) -> None:
    os.pwrite(fd, header.pack(), 0)
    os.fsync(fd)


def _reserve(fd: int, directory: Path, nbytes: int) -> None:
    before = os.fstat(fd).st_size
    try:
        if before > nbytes:
            os.ftruncate(fd, nbytes)
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as e:
        os.ftruncate(fd, before)  # a file system filled to the brim by a failed start would hurt everybody on it
        raise StoreError(
            f"{SIZE_FLAG}: cannot reserve {nbytes} bytes in {directory}: {e.strerror}: "
            f"{free_disk_bytes(directory)} bytes are free there, give less or another {PATH_FLAG}"
        ) from e


def _check_room(files: StoreFiles, needed: int, min_free: int) -> None:
    room = free_disk_bytes(files.directory) + files.nbytes()
    if min_free and room < needed + min_free:
        raise StoreError(
            f"{MIN_FREE_FLAG}: {needed} bytes for the store in {files.directory} would leave {max(0, room - needed)} "
            f"bytes free there instead of {min_free}: lower {SIZE_FLAG} or {MIN_FREE_FLAG}"
        )


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


def lock(directory: Path, rank: int) -> int:
    """Take the lock of a rank and write our pid into it; return the descriptor that holds it.

    Raises
    ------
    StoreError
        When another process has it; the message names that.
    """
    fd = open_own(lock_path(directory, rank))
    take_lock(fd, directory)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def take_lock(fd: int, directory: Path) -> None:
    """Lock an open lock file without waiting, or close it and raise `StoreError`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StoreError(f"{PATH_FLAG} {directory}: cannot be locked: {e.strerror}") from e
        raise StoreError(
            f"{PATH_FLAG} {directory} is in use by process {pid}: stop it or give another directory"
        ) from e


def unlock(fd: int) -> None:
    """Give a lock up; the file stays, since unlinking it would let two processes hold the lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
    os.close(fd)


def open_own(path: Path) -> int:
    """Open our file for writing, 0600, created if absent; refuse links, special files and other owners."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as e:
        reason = "is a symbolic link" if e.errno == errno.ELOOP else (e.strerror or str(e))
        raise StoreError(f"{PATH_FLAG}: {path} {reason}: remove it or give another directory") from e
    if not is_our_file(os.fstat(fd)):
        os.close(fd)
        raise StoreError(f"{PATH_FLAG}: {path} is not our plain file: remove it or give another directory")
    os.fchmod(fd, 0o600)
    return fd


def remove_own(path: Path) -> None:
    """Delete our file if it is there; refuse links, special files and other owners with a `StoreError`."""
    try:
        found = path.lstat()
        if not is_our_file(found):
            what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not our plain file"
            raise StoreError(f"{PATH_FLAG}: {path} {what}: remove it or give another directory")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreError(f"{PATH_FLAG}: {path} cannot be removed: {e.strerror}: give another directory") from e
