"""Checks of a directory: what keeps it from holding a store is said, and nothing in it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import Rig, path_of

from radixtier.machine import FileSystem
from radixtier.tools import drive
from radixtier.tools.drive import check_drive, check_engines, check_file_system, check_rooms

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test file of a few MiB, on whatever the tests run."""
    monkeypatch.setattr(drive, "SPEED_BYTES", 8 * MIB)
    monkeypatch.setattr(drive, "PIECE_BYTES", 4 * MIB)
    monkeypatch.setattr(drive, "probe_report", lambda directory: report())


def report(**changes: Any) -> dict[str, Any]:
    """What `probe_report` says of a good drive."""
    return {
        "error": None,
        "posix_direct": {"ok": True, "why": None},
        "gds": {"ok": False, "why": "not installed"},
        "device": {"ok": False, "why": "not installed"},
        "auto": "posix in a directory",
        "file_system": "ext4",
        "block_alignment": 512,
        **changes,
    }


def levels(findings: list[Any]) -> dict[str, str]:
    return {finding.topic: finding.level for finding in findings}


def test_a_good_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = check_drive(tmp_path)
    assert set(levels(found.findings).values()) <= {"ok", "warning"}
    assert found.speed is not None and found.speed.nbytes == 8 * MIB
    assert found.speed.read > 0 and found.speed.write > 0
    assert os.listdir(tmp_path) == []


def _absent(path: Path) -> Path:
    return path / "absent"


def _link(path: Path) -> Path:
    (path / "real").mkdir()
    (path / "link").symlink_to(path / "real")
    return path / "link"


def _file(path: Path) -> Path:
    (path / "file").write_text("")
    return path / "file"


def _shared(path: Path) -> Path:
    (path / "other").write_text("of somebody")
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("make", [_absent, _link, _file, _shared])
def test_a_directory_that_cannot_be_used(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    found = check_drive(make(tmp_path))
    assert levels(found.findings) == {"directory": "problem"}
    assert found.findings[0].fix
    assert found.speed is None


def test_another_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive.os, "geteuid", lambda: 12345)
    [finding] = check_drive(tmp_path).findings
    assert finding.level == "problem" and "user" in finding.found


def test_stores_servers_and_leftovers_are_seen_and_left_alone(tmp_path: Path, make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.put(path_of(2))
    probe = rig.directory / "radixtier-probe-0123"
    probe.write_text("")
    os.utime(probe, (0, 0))
    before = {path: path.lstat().st_ino for path in rig.directory.iterdir()}
    found = check_drive(rig.directory).findings
    text = {finding.topic: finding.found for finding in found}
    assert f"process {os.getpid()}" in text["in use"]
    assert rig.files().id in text["store"] and "float32" in text["store"]
    assert probe.name in text["leftovers"]
    assert levels(found)["leftovers"] == "warning"
    assert {path: path.lstat().st_ino for path in rig.directory.iterdir()} == before
    rig.store.close()
    assert "in use" not in levels(check_drive(rig.directory).findings)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", "ok"), ("xfs", "ok"), ("unknown", "ok"), ("tmpfs", "problem"), ("overlay", "warning"),
        ("nfs4", "warning"), ("fuse.sshfs", "warning"),
    ],
)  # fmt: skip
def test_file_systems(kind: str, level: str) -> None:
    finding = check_file_system(kind)
    assert finding.level == level
    assert bool(finding.fix) == (level != "ok")


@pytest.mark.parametrize(
    ("size", "free", "level"),
    [
        (None, drive.LEAST_ROOM, "ok"), (None, drive.LEAST_ROOM - 1, "warning"),
        (100, 100, "ok"), (101, 100, "problem"),
    ],
)  # fmt: skip
def test_room(tmp_path: Path, size: int | None, free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "file_systems", lambda directories: [FileSystem(tuple(directories), free)])
    [finding] = check_rooms([tmp_path], size)
    assert finding.level == level
    assert bool(finding.fix) == (level != "ok")


def test_room_of_directories_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its share; two on one file system share that."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    groups = [FileSystem((str(paths[0]), str(paths[1])), 200), FileSystem((str(paths[2]),), 100)]
    monkeypatch.setattr(drive, "file_systems", lambda directories: groups)
    assert [f.level for f in check_rooms(paths, 300)] == ["ok", "warning", "ok"]
    assert [f.level for f in check_rooms(paths, 301)] == ["problem", "warning", "problem"]


@pytest.mark.parametrize(
    ("direct", "block", "level"),
    [(True, 512, "ok"), (True, 1 << 20, "ok"), (False, 4096, "ok"), (False, 16384, "warning"), (False, None, "ok")],
)
def test_alignment(direct: bool, block: int | None, level: str) -> None:
    found = report(posix_direct={"ok": direct, "why": "is refused"}, block_alignment=block)
    assert levels(list(check_engines(found)))["alignment"] == level


def test_engines() -> None:
    found = {finding.topic: finding for finding in check_engines(report(posix_direct={"ok": False, "why": "refused"}))}
    assert found["O_DIRECT"].level == "warning" and found["O_DIRECT"].found == "refused"
    assert "not installed" in found["GDS"].found and found["engine"].found == "posix in a directory"
    assert found["NVMe to HBM"].found == "everything goes through DRAM: not installed"
    works = {"ok": True, "why": None}
    found = {finding.topic: finding for finding in check_engines(report(gds=works, device=works))}
    assert found["GDS"].found == "GPUDirect Storage is active"
    assert found["NVMe to HBM"].found == "KvikIO reads into GPU memory"


def test_a_broken_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(drive, "probe_report", lambda directory: report(error="Input/output error"))
    found = check_drive(tmp_path)
    assert "Input/output error" in found.findings[-1].found
    assert levels(found.findings)["writing"] == "problem" and found.speed is None


def test_without_room_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(drive, "free_disk_bytes", lambda directory: MIB)
    found = check_drive(tmp_path)
    assert levels(found.findings)["speed"] == "warning" and found.speed is None
