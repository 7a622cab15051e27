"""Who uses a directory of the store, and using it alone.

Owns the locks of the ranks from `alone` to its end. Invariant: looking never takes a lock away from a server that
starts, but for the instant in which a free one is tried. Main thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from radixtier.store.paths import PREFIX, find_stores
from radixtier.store.slab import StoreError, lock, unlock

_LOCK = re.compile(rf"{PREFIX}-r(\d+)\.lock")


def check_place(directory: Path) -> None:
    """Refuse what cannot be a directory of the store with a `StoreError`."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}: name a directory of the store") from error
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{directory} is a symbolic link: name {os.path.realpath(directory)} itself")
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{directory} is not a directory: name the one that holds the store")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise StoreError(f"{directory} cannot be read: run this as user {found.st_uid}")


def lock_holders(directory: Path) -> dict[int, str]:
    """Return the ranks whose lock somebody holds, and the pid that is written there; raises `OSError`.

    A lock is tried for sharing, so that two who look do not see each other.
    """
    held: dict[int, str] = {}
    for rank, path in _lock_files(directory):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held[rank] = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            finally:
                os.close(fd)
    return held


@contextlib.contextmanager
def alone(directories: Sequence[Path]) -> Iterator[None]:
    """Hold the locks of every rank that has files in the directories.

    Raises
    ------
    StoreError
        When somebody else holds one; the message names the process.
    """
    with contextlib.ExitStack() as held:
        for directory in directories:
            for rank, pid in lock_holders(directory).items():
                raise StoreError(f"{directory} is in use by process {pid} (rank {rank}): stop that server first")
            ranks = {rank for rank, _ in _lock_files(directory)} | {files.rank for files in find_stores(directory)}
            for rank in sorted(ranks):
                held.callback(unlock, lock(directory, rank))
        yield


def _lock_files(directory: Path) -> list[tuple[int, Path]]:
    names = (_LOCK.fullmatch(name) for name in sorted(os.listdir(directory)))
    return [(int(match[1]), directory / match[0]) for match in names if match]
