"""What the processes of a server use: CPU time, memory, descriptors, threads.

Owns nothing; reads ``/proc`` of one process group, which is what a server started by
:class:`radixtier.live.server.Server` is. A process that ends while it is looked at counts as nothing. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Usage(NamedTuple):
    """Sums over the processes of a group."""

    processes: int
    rss_bytes: int
    """Resident memory; what processes share counts once for each."""
    descriptors: int | None
    """None where those of a process cannot be read: a sum without them would say less than there is."""
    threads: int


def usage(group: int, proc: Path = PROC) -> Usage:
    """Return what the processes of a group have now; no process and all 0 where there is none."""
    processes = rss = descriptors = threads = 0
    readable = True
    for directory, fields in _members(group, proc):
        try:
            descriptors += len(os.listdir(directory / "fd"))
        except PermissionError:
            readable = False
        except OSError:
            continue  # it has ended
        processes += 1
        threads += int(fields[17])
        rss += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(processes, rss, descriptors if readable else None, threads)


def measured(group: int, proc: Path = PROC) -> Usage | None:
    """Return :func:`usage`, or None where no process of the group can be seen: that is no measurement of 0."""
    found = usage(group, proc)
    return found if found.processes else None


def cpu_seconds(group: int, proc: Path = PROC) -> float:
    """Return the CPU time of all processes of a group so far."""
    ticks = sum(int(fields[11]) + int(fields[12]) for _, fields in _members(group, proc))
    return ticks / os.sysconf("SC_CLK_TCK")


def _members(group: int, proc: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each process of a group with the fields of its ``stat`` after the name: state, parent, group, ..."""
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                yield stat.parent, fields
