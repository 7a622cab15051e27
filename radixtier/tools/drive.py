"""Whether a directory is fit for the store, and how fast its drive is.

Owns the checks of one directory. Invariant: what belongs to a store is looked at and never changed, so a server may
use the directory meanwhile; what is written for a test is removed. Main thread.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.footprint import BLOCK
from radixtier.io.probe import probe_report
from radixtier.machine import file_systems, free_disk_bytes
from radixtier.store.header import HeaderError, read_header
from radixtier.store.paths import PREFIX, find_stores
from radixtier.store.store import IO_BYTES, THREADS
from radixtier.tools.findings import Finding
from radixtier.tools.holders import lock_holders
from radixtier.tools.leftovers import find_leftovers
from radixtier.tools.offline import identity_fields
from radixtier.tools.rawio import Loop, Plan, random_memory
from radixtier.tools.scratch import scratch
from radixtier.units import format_bytes

_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}
_LAYERED = {"overlay", "aufs"}
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"}

SPEED_BYTES, PIECE_BYTES = 256 << 20, 64 << 20
SPEED_S = 3.0
"""Seconds of writing after which a slow drive has shown enough."""

LEAST_ROOM = 1 << 30
"""Bytes below which a store is smaller than the DRAM in front of it on any machine."""


class Speed(NamedTuple):
    """Bytes per second of large transfers, measured over ``nbytes``."""

    read: float
    write: float
    nbytes: int


class Drive(NamedTuple):
    """What was found out about one directory; no speed where it could not be measured."""

    findings: list[Finding]
    speed: Speed | None


def check_drive(directory: Path) -> Drive:
    """Run every check of one directory."""
    findings = check_directory(directory)
    if any(finding.level == "problem" for finding in findings):
        return Drive(findings, None)
    try:
        findings += check_contents(directory)
        report = probe_report(directory)
        if report["error"]:
            raise OSError(report["error"])
        findings += [check_file_system(report["file_system"]), *check_engines(report)]
        speed = measure(directory, direct=report["posix_direct"]["ok"])
    except OSError as error:
        fix = "name a directory on a working drive that this user may write to"
        return Drive([*findings, Finding("problem", "writing", f"failed: {error.strerror or error}", fix)], None)
    if speed is None:
        fix = "free some space to have it measured"
        return Drive([*findings, Finding("warning", "speed", "not measured: no room for a test file", fix)], None)
    rates = f"read {speed.read / 1e9:.2f} GB/s, write {speed.write / 1e9:.2f} GB/s"
    found = f"{rates} over {format_bytes(speed.nbytes)}; radixtier bench io measures longer"
    return Drive([*findings, Finding("ok", "speed", found)], speed)


def check_directory(directory: Path) -> list[Finding]:
    """Look at the directory itself: there, a directory and no link, ours, closed to others."""
    try:
        found = directory.lstat()
    except OSError as error:
        fix = f"mkdir -m 700 -p {directory}, or name another one"
        return [Finding("problem", "directory", error.strerror or str(error), fix)]
    if stat.S_ISLNK(found.st_mode):
        return [Finding("problem", "directory", "a symbolic link", f"name {os.path.realpath(directory)} itself")]
    if not stat.S_ISDIR(found.st_mode):
        return [Finding("problem", "directory", "not a directory", "name the directory that is to hold the store")]
    if found.st_uid != os.geteuid():
        what = f"belongs to user {found.st_uid}, not to user {os.geteuid()} who asks"
        return [Finding("problem", "directory", what, "run this as the server's user, or name one of its own")]
    return [_mode(directory, stat.S_IMODE(found.st_mode))]


def _mode(directory: Path, mode: int) -> Finding:
    others = [name for name in os.listdir(directory) if not name.startswith(PREFIX)]
    if mode & 0o022 and others:
        fix = f"chmod 700 {directory}, or name a directory of its own, such as {directory / PREFIX}"
        return Finding("problem", "directory", f"mode {mode:o}: other users can write, and it holds other files", fix)
    if mode & 0o077:
        note = "other files here stay as they are" if others else "a server closes it to others"
        return Finding("ok", "directory", f"ours, mode {mode:o}; {note}")
    return Finding("ok", "directory", f"ours, mode {mode:o}")


def check_contents(directory: Path) -> Iterator[Finding]:
    """List servers that use the directory, the stores in it, and what nobody will use again."""
    for rank, pid in lock_holders(directory).items():
        yield Finding("ok", "in use", f"process {pid} serves from it (rank {rank})")
    for files in find_stores(directory):
        try:
            fields = identity_fields(read_header(files.slab))
            what = ", ".join(f"{name} {value}" for name, value in fields.items()) or "nobody after its server"
        except (OSError, HeaderError) as error:
            what = f"nobody: it {error}"
        yield Finding("ok", "store", f"{files.id} (rank {files.rank}), {format_bytes(files.nbytes())}, for {what}")
    left = find_leftovers(directory)
    if left:
        names = ", ".join(path.name for path in left[:3]) + (", ..." if len(left) > 3 else "")
        yield Finding(
            "warning",
            "leftovers",
            f"{len(left)} files of runs that were killed: {names}",
            f"radixtier store gc {directory}",
        )


def check_file_system(kind: str) -> Finding:
    """Say what is wrong with some types of file systems."""
    if kind in _IN_MEMORY:
        return Finding("problem", "file system", f"{kind}: it lies in RAM", "name a directory on a drive")
    if kind in _LAYERED:
        fix = "mount a volume or a host directory into the container and name that"
        return Finding("warning", "file system", f"{kind}: a container's own layer, gone with the container", fix)
    if kind in _NETWORK or kind.startswith("fuse"):
        fix = "name a directory on a local drive: SQLite's log is made for one, and speed varies less"
        return Finding("warning", "file system", f"{kind}: its bytes lie on another machine, or may", fix)
    return Finding("ok", "file system", kind)


def check_rooms(directories: Sequence[Path], size: int | None) -> Iterator[Finding]:
    """Hold the size of the store, or a sensible minimum, against the free space of each file system.

    ``size`` is what the store is to take in all directories, in bytes. Older stores count as free space.
    """
    there = [str(directory) for directory in directories if directory.is_dir()]
    share = None if size is None else math.ceil(size / len(directories))
    for group in file_systems(there):
        where = ", ".join(group.directories)
        found = f"{format_bytes(group.free)} for a store in {where}"
        needed = LEAST_ROOM if share is None else share * len(group.directories)
        if group.free >= needed:
            yield Finding("ok", "space", found)
        elif share is None:
            yield Finding("warning", "space", found, "free some: a store that small is hardly worth its drive")
        else:
            fix = f"give a --size of at most {format_bytes(len(directories) * group.free // len(group.directories))}"
            yield Finding("problem", "space", f"{found}, less than {format_bytes(needed)}", f"{fix}, or free some")
        if len(group.directories) > 1:
            fix = "name one directory per drive"
            yield Finding("warning", "drives", f"{where} lie on one file system: no faster than one of them", fix)


def check_engines(report: dict[str, Any]) -> Iterator[Finding]:
    """Tell what `probe_report` found out about engines, GPUDirect Storage and alignment."""
    direct, gds, block = report["posix_direct"], report["gds"], report["block_alignment"]
    if direct["ok"]:
        yield Finding("ok", "O_DIRECT", "a test write and read went past the page cache")
    else:
        fix = "use ext4 or xfs on a local drive; pages go through the page cache otherwise, and cost RAM there"
        yield Finding("warning", "O_DIRECT", str(direct["why"]), fix)
    yield Finding("ok", "engine", str(report["auto"]))
    yield Finding("ok", "GDS", "GPUDirect Storage is active" if gds["ok"] else f"not in use; KvikIO: {gds['why']}")
    device = report["device"]
    straight = "KvikIO reads into GPU memory" if device["ok"] else f"everything goes through DRAM: {device['why']}"
    yield Finding("ok", "NVMe to HBM", straight)
    blocks = f"slots lie at multiples of {BLOCK} bytes, blocks are {block or 'unknown'}"
    if direct["ok"] or not block or BLOCK % block == 0:
        yield Finding("ok", "alignment", blocks)
    else:
        yield Finding("warning", "alignment", blocks, "name a directory on another drive if transfers fail")


def measure(directory: Path, *, direct: bool) -> Speed | None:
    """Write a file in large transfers, then read it; None where there is no room. Raises `OSError`."""
    nbytes = min(SPEED_BYTES, free_disk_bytes(directory) // 4) // PIECE_BYTES * PIECE_BYTES
    if not nbytes:
        return None
    loop = Loop(random_memory(2 * THREADS * IO_BYTES))
    with scratch(directory) as place:
        file = place / "speed"
        with open(file, "xb") as stream:
            os.posix_fallocate(stream.fileno(), 0, nbytes)
            written, seconds = 0, 0.0
            while written < nbytes and seconds < SPEED_S:
                seconds += PIECE_BYTES / loop.rate("write", file, Plan(written, PIECE_BYTES, IO_BYTES, THREADS, direct))
                written += PIECE_BYTES
            begin = time.perf_counter()
            os.fsync(stream.fileno())
            seconds += time.perf_counter() - begin
        read = loop.rate("read", file, Plan(0, written, IO_BYTES, THREADS, direct))
    return Speed(read, written / seconds, written)
