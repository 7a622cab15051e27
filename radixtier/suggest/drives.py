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
from radixtier.machine import MOUNTS, Mount, directory_fault, file_system_type, read_mounts
from radixtier.suggest.mounts import rooms
from radixtier.tools.drive import check_directory, check_file_system
from radixtier.tools.findings import Finding
from radixtier.tools.holders import lock_holders
from radixtier.units import format_bytes

LOCAL = frozenset({"ext4", "xfs", "btrfs", "f2fs"})
"""Types of file systems that other drives are suggested with."""

WORTH_NAMING = 16 << 30
"""Free bytes below which another drive is not mentioned."""

_SYS = Path("/sys")


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


def other_drives(given: Sequence[str], mounts: Path = MOUNTS, sys: Path = _SYS) -> Iterator[str]:
    """Describe local drives that are none of the given directories': those mounted, then NVMe drives that are not.

    Parameters
    ----------
    given : sequence of str
        Directories that are named already; they exist.
    mounts, sys : Path
        The kernel's list of mounts, and where sysfs is mounted.
    """
    named = {os.stat(path).st_dev for path in given}
    mounted: dict[str, tuple[Path, Mount]] = {}
    for mount in read_mounts(mounts):
        disk = _of_mount(mount, sys)
        if disk is not None:
            mounted.setdefault(disk.name, (disk, mount))
    found = rooms([mount.place for _, mount in mounted.values() if mount.kind in LOCAL])
    for disk, mount in mounted.values():
        room = found.get(mount.place)
        if room is None or room.device in named or room.read_only or room.free < WORTH_NAMING:
            continue
        yield f"{_shown(mount.place)} ({mount.kind} on {_described(disk)}, {format_bytes(room.free)} free)"
    for disk in sorted((sys / "block").glob("nvme*")):
        if disk.name not in mounted and not any((disk / "holders").glob("*")):
            yield f"{_described(disk)}, which is not mounted here"


def _of_mount(mount: Mount, sys: Path) -> Path | None:
    """Return the disk of a mount; some file systems number themselves, not their device."""
    if not mount.source.startswith("/dev/"):
        return None
    device = os.path.basename(os.path.realpath(mount.source))
    nodes = (sys / "class" / "block" / device, sys / "dev" / "block" / mount.number)
    return next((_whole(node) for node in nodes if node.exists()), None)


def _shown(place: str) -> str:
    """Write the name of a place, which may have any bytes, for a reader."""
    text = os.fsencode(place).decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


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
