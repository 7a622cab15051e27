"""What this machine has to give: RAM under its cgroup limits, and file systems with their free space.

Owns no state; every call reads the kernel's figures anew. Any thread.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

STORE_FILES = "radixtier-*"
"""Everything that a store leaves in its directory; the next one takes the space over, so it counts as free."""

_PROC = Path("/proc")
MOUNTS = _PROC / "self" / "mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_SYS = Path("/sys")
_CGROUP = _SYS / "fs" / "cgroup"


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


def free_disk_bytes(path: str | Path) -> int:
    """Return the bytes that an unprivileged user may still write under ``path``."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


class FileSystem(NamedTuple):
    """A file system, and which of the directories asked about lie on it.

    Attributes
    ----------
    directories : tuple of str
        As they were given.
    free : int
        Bytes that an unprivileged user may still write, files of earlier stores in those directories counted as free.
    """

    directories: tuple[str, ...]
    free: int


def drive_bytes(directories: Iterable[str]) -> int:
    """Return the size of the file systems that existing directories lie on, each counted once."""
    sizes = {os.stat(directory).st_dev: shutil.disk_usage(directory).total for directory in directories}
    return sum(sizes.values())


def file_systems(directories: Iterable[str]) -> list[FileSystem]:
    """Group existing directories by the file system they lie on, in the order given."""
    by_device: dict[int, list[str]] = {}
    for directory in directories:
        by_device.setdefault(os.stat(directory).st_dev, []).append(directory)
    return [FileSystem(tuple(group), _room(group)) for group in by_device.values()]


def _room(directories: list[str]) -> int:
    """Return the free bytes of the file system that holds all of these, ours in them counted as free."""
    found = {file for d in directories for file in glob.glob(os.path.join(glob.escape(d), STORE_FILES))}
    return free_disk_bytes(directories[0]) + sum(allocated_bytes(file) for file in found)


def allocated_bytes(file: str | Path) -> int:
    """Return the bytes that a file takes on disk, 0 if there is none; a link counts for itself."""
    try:
        return os.lstat(file).st_blocks * 512
    except OSError:  # gone since it was listed
        return 0


def directory_fault(path: str) -> tuple[str, str] | None:
    """Say what keeps a directory from holding a store, and the fix; None if nothing does."""
    if os.path.islink(path):
        return "a symbolic link, which may point elsewhere tomorrow", f"Name {os.path.realpath(path)} itself"
    if not os.path.exists(path):
        return "the directory does not exist", f"Create it (mkdir -p {path}) or name another one"
    if not os.path.isdir(path):
        return "not a directory", "Name the directory that is to hold the store"
    if (owner := os.stat(path).st_uid) != os.geteuid():
        return f"it belongs to user {owner}", "Name a directory of the server's own user"
    try:
        # Permission bits say nothing about read-only mounts, nor to root: write for real, and leave nothing.
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0")
    except OSError as error:
        return f"cannot be written ({error.strerror})", "Name a directory that this user may write to"
    return None


class Mount(NamedTuple):
    """A line of the kernel's list of mounts.

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


def read_mounts(mountinfo: Path = MOUNTS) -> Iterator[Mount]:
    """Yield the lines of the kernel's list; names of places may have any bytes. Raises `OSError`."""
    for line in mountinfo.read_bytes().split(b"\n"):
        head, _, tail = line.partition(b" - ")
        if tail:
            number, place, kind, source = map(_name, (*head.split(b" ")[2:5:2], *tail.split(b" ")[:2]))
            yield Mount(number, place, kind, source)


def _name(escaped: bytes) -> str:
    """Take back what the kernel writes for white space and backslashes."""
    return os.fsdecode(_ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), escaped))


def file_system_type(path: str, mountinfo: Path = MOUNTS) -> str:
    """Return the type of the file system under ``path``, such as ``ext4``; ``unknown`` where the kernel is silent."""
    real = os.path.realpath(path)
    best, found = "", "unknown"
    with contextlib.suppress(OSError):
        for mount in read_mounts(mountinfo):
            # A later mount hides an earlier one at the same place.
            inside = real == mount.place or real.startswith(mount.place.rstrip("/") + "/")
            if inside and len(mount.place) >= len(best):
                best, found = mount.place, mount.kind
    return found


def block_alignment(path: str, sys: Path = _SYS) -> int | None:
    """Return the logical block in bytes of the device under ``path``, else the file system's; None if there is none."""
    try:
        device = os.stat(path).st_dev
        node = sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
        # A partition has no queue of its own: that is in the directory of its disk.
        sizes = (_number(at / "queue" / "logical_block_size") for at in (node, node.resolve().parent))
        return next((size for size in sizes if size), None) or os.statvfs(path).f_bsize
    except OSError:
        return None


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
