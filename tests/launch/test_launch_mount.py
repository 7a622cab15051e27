"""check_mount.sh: what it says about mounts of every kind, and that it changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch_rig import Rig


def mounted(rig: Rig, tmp_path: Path, kind: str, options: str = "rw,relatime", source: str = "/dev/none") -> None:
    """Have findmnt say this about every directory."""
    file = tmp_path / "bin" / "findmnt"
    file.write_text(f"#!/bin/sh\necho '{kind} {source} {options}'\n")
    file.chmod(0o700)


@pytest.mark.parametrize(
    ("kind", "options", "status", "words"),
    [
        ("ext4", "rw,relatime", 0, ["ok       file system  ext4"]),
        ("xfs", "rw,noatime", 0, ["ok       file system  xfs"]),
        ("tmpfs", "rw", 1, ["problem  file system  tmpfs lies in RAM"]),
        ("overlay", "rw", 1, ["problem  file system  overlay"]),
        ("nfs4", "rw,hard", 1, ["problem  file system  nfs4"]),
        ("fuse.sshfs", "rw", 1, ["problem  file system  fuse.sshfs"]),
        ("btrfs", "rw", 0, ["warning  file system  btrfs"]),
        ("ext4", "ro,relatime", 1, ["mounted read-only"]),
        ("ext4", "rw,data=journal", 0, ["warning  options      data=journal"]),
        ("xfs", "rw,sync", 0, ["warning  options      sync"]),
        ("ext4", "rw,nobarrier", 1, ["no barriers"]),
    ],
)
def test_mounts(rig: Rig, tmp_path: Path, store: str, kind: str, options: str, status: int, words: list[str]) -> None:
    mounted(rig, tmp_path, kind, options)
    done = rig.run("check_mount.sh", store)
    assert (done.returncode, done.stderr) == (status, "")
    assert all(word in done.stdout for word in words)


def test_it_reads_only(rig: Rig, tmp_path: Path, store: str) -> None:
    before = os.stat(store)
    assert rig.run("check_mount.sh", store).returncode in (0, 1)
    after = os.stat(store)
    assert os.listdir(store) == [] and (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    assert not list(rig.records.iterdir())


@pytest.mark.parametrize("verdict", [0, 1])
def test_the_doctor_looks_further(rig: Rig, tmp_path: Path, store: str, verdict: int) -> None:
    mounted(rig, tmp_path, "ext4")
    done = rig.run("check_mount.sh", store, "--doctor", STAND_IN_DOCTOR=str(verdict))
    [asked] = rig.recorded("doctor", 1)
    assert (done.returncode, asked["argv"]) == (verdict, ["-m", "radixtier.cli", "doctor", store])


def test_what_is_no_directory(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for path, word in ((tmp_path / "absent", "missing"), (tmp_path / "link", "symbolic link")):
        done = rig.run("check_mount.sh", str(path))
        assert done.returncode == 1 and word in done.stdout


def test_a_mount_that_does_not_answer(rig: Rig, tmp_path: Path, store: str) -> None:
    file = tmp_path / "bin" / "findmnt"
    file.write_text("#!/bin/sh\nexit 124\n")
    file.chmod(0o700)
    done = rig.run("check_mount.sh", store)
    assert done.returncode == 1 and "does not answer" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["/a", "/b"], ["--fast", "/a"]])
def test_usage_of_check_mount(rig: Rig, arguments: list[str]) -> None:
    done = rig.run("check_mount.sh", *arguments)
    assert done.returncode == 2 and "launch/check_mount.sh DIRECTORY" in done.stderr
