"""Choosing the engine for a directory.

Owns nothing. Invariant: a choice rests on a real write and read in the very directory, never on what imports.
Called once per directory at start.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from radixtier.io.engine import Engine
from radixtier.io.posix import PosixEngine, try_direct

FLAG = "--radix-tier-io-engine"


class Choice(NamedTuple):
    """An engine, not yet open, and one line that says why it was taken."""

    engine: Engine
    reason: str


def choose_engine(name: str, directory: Path) -> Choice:
    """Return the engine that ``--radix-tier-io-engine name`` means in ``directory``, which must exist.

    Raises
    ------
    ValueError
        For a name that this release does not know.
    OSError
        When the directory is not there or cannot be written.
    """
    if name == "kvikio":
        raise ValueError(f"{FLAG} kvikio comes with radixtier 0.2: use auto or posix until then")
    if name not in ("auto", "posix"):
        raise ValueError(f"{FLAG} {name} is not an engine: use auto or posix")
    try:
        why_not = try_direct(directory)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Full, perhaps of our own old slab, which the store will drop; the engine can still fall back.
        return Choice(PosixEngine(direct=True), f"posix in {directory}, O_DIRECT untested: {e.strerror}")
    if why_not:
        return Choice(PosixEngine(direct=False), f"posix in {directory}, buffered: O_DIRECT {why_not}")
    return Choice(PosixEngine(direct=True), f"posix in {directory}, O_DIRECT: a test write and read worked")
