"""The room on mounts that nobody named.

Owns the processes that touch them. Invariant: a mount that hangs costs
its caller :data:`PATIENCE_S` and nothing else. Main thread.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

PATIENCE_S = 5.0
"""For all mounts together; a mount that answers takes no time, Python some of it to start."""

_LOOK = """
import json, os, sys
room = os.statvfs(sys.argv[1])
print(json.dumps([os.stat(sys.argv[1]).st_dev, room.f_bavail * room.f_frsize, bool(room.f_flag & os.ST_RDONLY)]))
"""


class Room(NamedTuple):
    """What a mount says of itself: its device as in ``st_dev``, free bytes, and whether nothing can be written."""

    device: int
    free: int
    read_only: bool


def rooms(places: Sequence[str]) -> dict[str, Room]:
    """Ask mounts for their room, each in a process of its own; one that does not answer in time is left out."""
    until = time.monotonic() + PATIENCE_S
    asked = {place: _ask(place) for place in places}
    found = {}
    for place, child in asked.items():
        ended = child.poll() is not None
        try:
            out, _ = child.communicate(timeout=None if ended else max(0.0, until - time.monotonic()))
            found[place] = Room(*_list(out))
        except (subprocess.TimeoutExpired, TypeError):
            _leave(child)
    return found


def _ask(place: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LOOK, place],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _list(out: bytes) -> list[Any]:
    try:
        found: list[Any] = json.loads(out)
    except ValueError:  # nothing, since the mount is broken
        return []
    return found


def _leave(child: subprocess.Popen[bytes]) -> None:
    """End a process; one that hangs in the kernel ends when its mount comes back, and is not waited for."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.1)
    assert child.stdout is not None
    child.stdout.close()
