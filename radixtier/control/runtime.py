"""Where sockets lie that have no place beside a store: in a directory that is this user's alone.

Owns the choice of that directory, and makes it. Any thread.
"""

from __future__ import annotations

import os
import stat
import tempfile

from radixtier.units import BadValue


def runtime_directory() -> str:
    """Return ``$XDG_RUNTIME_DIR/radixtier``, or a directory of this user in the one for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return os.path.join(runtime, "radixtier")
    return os.path.join(tempfile.gettempdir(), f"radixtier-{os.geteuid()}")


def runtime_socket(pid: int) -> str:
    """Return the path of the socket of a process."""
    return os.path.join(runtime_directory(), f"{pid}.sock")


def make_runtime_directory() -> None:
    """Make the directory, for this user only.

    Raises
    ------
    BadValue
        When something is in its place that others could have put there.
    OSError
        When it cannot be made.
    """
    directory = runtime_directory()
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise BadValue(f"{directory} is not a directory of this user", "Remove it, or choose an address") from None
        if found.st_mode & 0o077:
            os.chmod(directory, 0o700)
