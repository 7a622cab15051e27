"""A directory for the files of a measurement, which leaves nothing behind.

Owns the directory while it is open. Invariant: it is new, it is ours, and it is gone afterwards, also after Ctrl-C or
a plain `kill`; what else lies beside it is not touched. It is locked while it is open, so that one that a killed
process left behind can be told from one in use. Main thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "radixtier-bench-"
"""Of the names of scratch directories."""


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a directory (0700) in ``parent`` and remove it at the end, with all that is in it.

    While it is open SIGTERM raises `KeyboardInterrupt`, as SIGINT does. While it is removed both are ignored.
    """
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield directory
        finally:
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
            shutil.rmtree(directory)
            os.close(fd)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def abandoned(parent: Path) -> list[Path]:
    """Return our scratch directories whose process is gone; raises `OSError` when ``parent`` cannot be listed."""
    return [path for path in sorted(parent.iterdir()) if path.name.startswith(PREFIX) and _is_abandoned(path)]


def _is_abandoned(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.fstat(fd).st_uid == os.geteuid()
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
