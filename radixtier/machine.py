"""What this machine has to give: RAM under its cgroup limits, and free disk space.

Owns no state; every call reads the kernel's figures anew. Any thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """Facts that sizes are checked against.

    Attributes
    ----------
    ram_bytes : int
        RAM that can still be allocated, page cache counted as free, within every cgroup limit above us.
    """

    ram_bytes: int

    @classmethod
    def probe(cls, proc: Path = _PROC, cgroup: Path = _CGROUP) -> Machine:
        """Read the figures of the running machine.

        Parameters
        ----------
        proc, cgroup : Path
            Where procfs and the cgroup file system are mounted; tests pass their own.
        """
        available = _mem_available(proc / "meminfo")
        limits = [_headroom(directory) for directory in _own_cgroups(proc / "self" / "cgroup", cgroup)]
        return cls(ram_bytes=min([available, *(room for room in limits if room is not None)]))


def free_disk_bytes(path: str) -> int:
    """Return the bytes that an unprivileged user may still write under ``path``."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


def _mem_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable line")


def _own_cgroups(membership: Path, root: Path) -> list[Path]:
    """List the directories whose memory limits bind this process, from its own group up to the mount."""
    found: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "memory" if controllers else root
        # In a cgroup namespace the path may not exist under the mount: then the mount itself is our group.
        own = mount / path.lstrip("/")
        directory = own if own.is_dir() else mount
        found += [directory, *(p for p in directory.parents if p == mount or mount in p.parents)]
    return found


def _headroom(directory: Path) -> int | None:
    """Return what may still be allocated in one cgroup (v2 or v1), or None where it sets no limit."""
    for limits, usage, cache in (
        (("memory.max", "memory.high"), "memory.current", "inactive_file"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        bounds = [value for name in limits if (value := _number(directory / name)) is not None]
        used = _number(directory / usage)
        if bounds and used is not None:
            return max(0, min(bounds) - max(0, used - _stat(directory / "memory.stat", cache)))
    return None


def _number(file: Path) -> int | None:
    """Read one integer; None where the file is missing or says ``max``."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _stat(file: Path, key: str) -> int:
    """Read one line of ``memory.stat``: reclaimable page cache does not count as used."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)
