"""The descriptors that engines and probes work on.

Owns no state. Invariant: a descriptor is only ever opened again as the file that it already is, never by its name,
behind which another file may lie by then. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
"""What file systems and kernels without O_TMPFILE answer."""

SCRATCH_PREFIX = "radixtier-probe-"


def open_existing(path: Path, size: int, flags: int = 0) -> int:
    """Open a regular file for reading and writing, following no link.

    Raises
    ------
    OSError
        Also when the file holds fewer than ``size`` bytes.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    if (actual := os.fstat(fd).st_size) < size:
        os.close(fd)
        raise OSError(errno.EINVAL, f"holds {actual} bytes, expected {size}", str(path))
    return fd


def own_name(fd: int) -> str:
    """Return a name under which this process can open the file of ``fd`` again, linked or not."""
    return f"/proc/self/fd/{fd}"


def reopen(fd: int, flags: int = 0) -> int:
    """Open the file of ``fd`` once more, for reading and writing with these flags."""
    return os.open(own_name(fd), os.O_RDWR | os.O_CLOEXEC | flags)


@contextlib.contextmanager
def scratch_file(directory: Path, nbytes: int) -> Iterator[int]:
    """Yield the descriptor of an empty file of ``nbytes`` bytes without a name, so that nothing is left behind."""
    fd = _open_nameless(directory)
    try:
        os.ftruncate(fd, nbytes)
        yield fd
    finally:
        os.close(fd)


def _open_nameless(directory: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as e:
        if e.errno not in _NO_TMPFILE:
            raise
    path = directory / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}"
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    path.unlink()
    return fd
