"""Whether a result can be written to a file, found out before anything is measured.

Owns nothing. Law: a file that is there stays as it is, and none is left behind. Any thread.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def unwritable(file: Path) -> str | None:
    """Return what keeps a file from being written, and the fix, in one line; None if nothing does.

    The file is opened for writing: permission bits say nothing about read-only mounts, nor to root.
    """
    if file.is_dir():
        return "that is a directory; name a file"
    if not file.absolute().parent.is_dir():
        return "there is no such directory; make it, or name another"
    new = not file.exists()
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        return f"it cannot be written ({error.strerror}); name a file in a directory that is yours"
    if new:
        with suppress(OSError):
            file.unlink()
    return None
