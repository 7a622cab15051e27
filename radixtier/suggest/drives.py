"""What lies under the directories that are to hold pages, and which other drives there are.

Owns the look at one directory: the same checks as a server's start makes, plus what the kernel calls the drive.
Invariant: a mount that hangs does not take the caller with it; test files are removed; what belongs to a store is only
looked at. Main thread.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from radixtier.io.trial import try_posix
from radixtier.machine import directory_fault, file_system_type
from radixtier.tools.drive import check_directory, check_file_system
from radixtier.tools.findings import Finding
from radixtier.tools.holders import lock_holders
from radixtier.units import format_bytes

LOCAL = frozenset({"ext4", "xfs", "btrfs", "f2fs"})
"""Types of file systems that other drives are suggested with."""

WORTH_NAMING = 16 << 30
"""Free bytes below which another drive is not mentioned."""

_SYS = Path("/sys")
_MOUNTS = Path("/proc/self/mountinfo")


class Directory(NamedTuple):
    """One directory for the store: the drive under it in words, and what was found; a problem means no server."""

    path: str
    drive: str
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether a server would start with it."""
        return not any(finding.level == "problem" for finding in self.findings)


def look_at(path: str) -> Directory:
    """Check one directory.

    Parameters
    ----------
    path : str
        Absolute.
    """
    try:
        direct = try_posix(Path(path))
    except TimeoutError as error:
        found = Finding("problem", path, str(error.strerror), "look at the drive or the mount, or name another one")
        return Directory(path, "unknown", (found,))
    except OSError:
        direct = None
    if fault := directory_fault(path):
        return Directory(path, "unknown", (Finding("problem", path, fault[0], fault[1]),))
    findings = [found._replace(topic=path) for found in check_directory(Path(path)) if found.level == "problem"]
    kind = file_system_type(path)
    drive = f"{kind} on {drive_name(path)}"
    for pid in list(lock_holders(Path(path)).values())[:1]:
        findings.append(Finding("problem", path, f"in use by process {pid}", "stop that server, or name another one"))
    found = check_file_system(kind)
    if found.level == "ok":
        found = found._replace(found=f"{drive}, {format_bytes(shutil.disk_usage(path).free)} free")
    findings.append(found._replace(topic=path))
    if direct is not None and direct.why_not:
        fix = "use ext4 or xfs on a local drive; pages go through the page cache otherwise, and cost RAM there"
        findings.append(Finding("warning", path, f"no O_DIRECT: {direct.why_not}", fix))
    if rotates(path):
        fix = "name a directory on an SSD: a turning disk reads a few MB/s of scattered pages"
        findings.append(Finding("warning", path, f"{drive} says that it is a turning disk", fix))
    return Directory(path, drive, tuple(findings))


def drive_name(path: str, sys: Path = _SYS) -> str:
    """Return what the kernel calls the drive under ``path``, with its model or its members where they are known."""
    disk = _disk(path, sys)
    return "an unknown device" if disk is None else _described(disk)


def rotates(path: str, sys: Path = _SYS) -> bool:
    """Whether the drive under ``path`` says that it turns; virtual drives often claim to."""
    disk = _disk(path, sys)
    return disk is not None and not disk.name.startswith(("vd", "nbd")) and _text(disk / "queue" / "rotational") == "1"


def other_drives(given: Sequence[str], mounts: Path = _MOUNTS, sys: Path = _SYS) -> Iterator[str]:
    """Describe local drives that are none of the given directories': those mounted, then NVMe drives that are not.

    Parameters
    ----------
    given : sequence of str
        Directories that are named already; they exist.
    mounts, sys : Path
        The kernel's list of mounts, and where sysfs is mounted.
    """
    named = {os.stat(path).st_dev for path in given}
    mounted: set[str] = set()
    for line in mounts.read_text().splitlines():
        head, _, tail = line.partition(" - ")
        number, where = head.split()[2], head.split()[4].encode().decode("unicode_escape")
        kind, source = tail.split()[:2]
        disk = _of_mount(number, source, sys)
        if disk is None or disk.name in mounted:
            continue
        mounted.add(disk.name)
        if kind not in LOCAL or not os.path.isdir(where) or os.stat(where).st_dev in named:
            continue
        free = shutil.disk_usage(where).free
        if free >= WORTH_NAMING and not os.statvfs(where).f_flag & os.ST_RDONLY:
            yield f"{where} ({kind} on {_described(disk)}, {format_bytes(free)} free)"
    for disk in sorted((sys / "block").glob("nvme*")):
        if disk.name not in mounted and not any((disk / "holders").glob("*")):
            yield f"{_described(disk)}, which is not mounted here"


def _of_mount(number: str, source: str, sys: Path) -> Path | None:
    """Return the disk of a line of the kernel's list; some file systems number themselves, not their device."""
    if not source.startswith("/dev/"):
        return None
    nodes = (sys / "class" / "block" / os.path.basename(os.path.realpath(source)), sys / "dev" / "block" / number)
    return next((_whole(node) for node in nodes if node.exists()), None)


def _disk(path: str, sys: Path) -> Path | None:
    device = os.stat(path).st_dev
    node = sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    return _whole(node) if node.exists() else None


def _whole(node: Path) -> Path:
    """Return the disk of a partition, or the device itself."""
    device = node.resolve()
    return device.parent if (device / "partition").exists() else device


def _described(disk: Path) -> str:
    model = _text(disk / "device" / "model")
    members = sorted(member.name for member in (disk / "slaves").glob("*"))
    about = model or (f"over {', '.join(members)}" if members else "")
    return f"{disk.name} ({about})" if about else disk.name


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
