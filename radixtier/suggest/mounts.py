"""The kernel's list of mounts, and the room on them.

Owns the reading of ``mountinfo`` and the processes that touch mounts nobody named. Invariant: a mount that hangs costs
its caller :data:`PATIENCE_S` and nothing else. Main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MOUNTS = Path("/proc/self/mountinfo")

PATIENCE_S = 5.0
"""For all mounts together; a mount that answers takes no time, Python some of it to start."""

_LOOK = """
import json, os, sys
room = os.statvfs(sys.argv[1])
print(json.dumps([os.stat(sys.argv[1]).st_dev, room.f_bavail * room.f_frsize, bool(room.f_flag & os.ST_RDONLY)]))
"""
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of the list.

    Attributes
    ----------
    number : str
        Of the device, as ``MAJOR:MINOR``; some file systems number themselves.
    place : str
        Where it is mounted.
    kind : str
        Of file system.
    source : str
        What is mounted, such as ``/dev/nvme0n1p1``.
    """

    number: str
    place: str
    kind: str
    source: str


class Room(NamedTuple):
    """What a mount says of itself: its device as in ``st_dev``, free bytes, and whether nothing can be written."""

    device: int
    free: int
    read_only: bool


def read_mounts(file: Path = MOUNTS) -> Iterator[Mount]:
    """Yield the lines of the list; names of places may have any bytes."""
    for line in file.read_bytes().split(b"\n"):
        head, _, tail = line.partition(b" - ")
        if tail:
            number, place, kind, source = map(_name, (*head.split(b" ")[2:5:2], *tail.split(b" ")[:2]))
            yield Mount(number, place, kind, source)


def _name(escaped: bytes) -> str:
    """Take back what the kernel writes for white space and backslashes."""
    return os.fsdecode(_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), escaped))


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
