"""Choosing the engine for a directory.

Owns nothing. Invariant: a choice rests on a real write and read in the very directory, never on what imports.
Called once per directory at start.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from radixtier.io.engine import Engine
from radixtier.io.posix import PosixEngine, direct_works

FLAG = "--radix-tier-io-engine"


class Choice(NamedTuple):
    """An engine, not yet open, and one line that says why it was taken."""

    engine: Engine
    reason: str


def choose_engine(name: str, directory: Path) -> Choice:
    """Return the engine that ``--radix-tier-io-engine name`` means in ``directory``.

    Raises
    ------
    ValueError
        For a name that this release does not know.
    """
    if name == "kvikio":
        raise ValueError(f"{FLAG} kvikio comes with radixtier 0.2: use auto or posix until then")
    if name not in ("auto", "posix"):
        raise ValueError(f"{FLAG} {name} is not an engine: use auto or posix")
    if why_not := direct_works(directory):
        return Choice(PosixEngine(direct=False), f"posix, buffered, in {directory}: O_DIRECT {why_not}")
    return Choice(PosixEngine(direct=True), f"posix, O_DIRECT, in {directory}: a test write and read worked")
