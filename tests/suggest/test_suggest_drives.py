"""Directories and the drives under them, on a machine made of files."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from radixtier.suggest import drives
from radixtier.suggest import mounts as mounts_module
from radixtier.suggest.drives import drive_name, look_at, other_drives, rotates


def disk(
    sys: Path, name: str, number: str, *, model: str = "", rotational: int = 0, members: tuple[str, ...] = ()
) -> Path:
    """Make a disk in sysfs."""
    node = sys / "devices" / name
    (node / "queue").mkdir(parents=True)
    (node / "device").mkdir()
    (node / "holders").mkdir()
    (node / "slaves").mkdir()
    (node / "dev").write_text(number)
    (node / "queue" / "rotational").write_text(f"{rotational}\n")
    (node / "device" / "model").write_text(f"{model}   \n")
    for member in members:
        (node / "slaves" / member).touch()
    link(sys, node, name, number)
    (sys / "block").mkdir(exist_ok=True)
    (sys / "block" / name).symlink_to(node)
    return node


def partition(sys: Path, of: Path, name: str, number: str) -> None:
    node = of / name
    node.mkdir()
    (node / "partition").write_text("1")
    (node / "dev").write_text(number)
    link(sys, node, name, number)


def link(sys: Path, node: Path, name: str, number: str) -> None:
    for place in (sys / "dev" / "block" / number, sys / "class" / "block" / name):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(node)


def number_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def test_a_good_directory_tells_its_drive(tmp_path: Path, room: None) -> None:
    found = look_at(str(tmp_path))
    assert found.usable and found.drive.startswith("ext4 on ")
    [about] = [f for f in found.findings if f.level == "ok"]
    assert about.topic == str(tmp_path) and "500.0 GiB free" in about.found
    assert list(tmp_path.glob("radixtier*")) == []


@pytest.mark.parametrize(
    ("kind", "level", "word"),
    [("tmpfs", "problem", "RAM"), ("overlay", "warning", "container"), ("nfs4", "warning", "another machine")],
)
def test_no_odd_file_system_without_a_word(
    tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch, kind: str, level: str, word: str
) -> None:
    monkeypatch.setattr(drives, "file_system_type", lambda path: kind)
    found = look_at(str(tmp_path))
    assert found.usable == (level != "problem")
    assert [f.level for f in found.findings if word in f.found and f.fix] == [level]


def test_what_cannot_hold_a_store(tmp_path: Path, room: None) -> None:
    for path, why in ((tmp_path / "absent", "does not exist"), (tmp_path / "file", "not a directory")):
        (tmp_path / "file").touch()
        found = look_at(str(path))
        assert not found.usable and why in found.findings[0].found


def test_a_mount_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(path: Path) -> None:
        raise OSError(errno.ETIMEDOUT, "does not answer: a test write took over 20 s", str(path))

    monkeypatch.setattr(drives, "try_posix", hang)
    monkeypatch.setattr(drives, "directory_fault", lambda path: pytest.fail("touched a mount that hangs"))
    found = look_at(str(tmp_path))
    assert not found.usable and "does not answer" in found.findings[0].found


def test_another_server_has_it(tmp_path: Path, room: None) -> None:
    with open(tmp_path / "radixtier-r0.lock", "w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = look_at(str(tmp_path))
    assert not found.usable and any("in use by process 4711" in f.found for f in found.findings)


def test_a_disk_that_turns_is_told(tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drives, "rotates", lambda path: True)
    found = look_at(str(tmp_path))
    assert found.usable and any("turning disk" in f.found for f in found.findings)


def test_names_of_drives(tmp_path: Path) -> None:
    sys, number = tmp_path / "sys", number_of(tmp_path)
    assert drive_name(str(tmp_path), sys) == "an unknown device"
    whole = disk(sys, "nvme3n1", "259:9", model="Fast 3.84TB", rotational=0)
    partition(sys, whole, "nvme3n1p1", number)
    assert drive_name(str(tmp_path), sys) == "nvme3n1 (Fast 3.84TB)"
    assert not rotates(str(tmp_path), sys)


def test_a_raid_names_its_members(tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    disk(sys, "md0", number_of(tmp_path), rotational=1, members=("nvme1n1", "nvme0n1"))
    assert drive_name(str(tmp_path), sys) == "md0 (over nvme0n1, nvme1n1)"
    assert rotates(str(tmp_path), sys)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """Disks in sysfs, and an empty list of mounts."""
    sys, mounts = tmp_path / "sys", tmp_path / "mountinfo"
    partition(sys, disk(sys, "nvme0n1", "259:0", model="A"), "nvme0n1p1", "259:1")
    disk(sys, "nvme1n1", "259:2", model="B")
    (disk(sys, "nvme2n1", "259:3") / "holders" / "md0").touch()
    mounts.touch()
    return mounts, sys


def mount(mounts: Path, place: Path, device: str = "nvme0n1p1", number: str = "259:1") -> None:
    """Add a mount to the list, as the kernel writes it."""
    place.mkdir()
    octal = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in os.fsencode(place))
    with open(mounts, "ab") as file:
        file.write(b"31 22 %b / %b rw shared:2 - xfs /dev/%b rw\n" % (number.encode(), octal, device.encode()))


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"my disk", "my disk"), ("Datenä長".encode(), "Datenä長"), (b"a\\b#", "a\\b#"), (b"\xff\n", "\ufffd?")],
)
def test_other_drives_are_named(
    machine: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes, shown: str
) -> None:
    monkeypatch.setattr(drives, "WORTH_NAMING", 0)
    mounts, sys = machine
    mount(mounts, tmp_path / os.fsdecode(name))
    mount(mounts, tmp_path / "again")
    with open(mounts, "a") as file:
        file.write("33 22 0:40 / /run rw - tmpfs tmpfs rw\n")
    there, absent = other_drives([], mounts, sys)
    assert there.startswith(f"{tmp_path / shown} (xfs on nvme0n1 (A), ") and there.endswith(" free)")
    assert absent == "nvme1n1 (B), which is not mounted here"
    # A drive that holds a given directory is not another one.
    assert list(other_drives([str(tmp_path)], mounts, sys)) == [absent]


def test_a_drive_with_little_room_is_not_named(machine: tuple[Path, Path], tmp_path: Path) -> None:
    mounts, sys = machine
    mount(mounts, tmp_path / "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drives, "WORTH_NAMING", 1 << 62)
        assert list(other_drives([], mounts, sys)) == ["nvme1n1 (B), which is not mounted here"]


def test_a_mount_that_hangs_is_not_waited_for(
    machine: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drives, "WORTH_NAMING", 0)
    hang = f"import sys, time\nif sys.argv[1] == {str(tmp_path / 'gone')!r}: time.sleep(600)\n"
    monkeypatch.setattr(mounts_module, "_LOOK", hang + mounts_module._LOOK)
    monkeypatch.setattr(mounts_module, "PATIENCE_S", 3.0)
    mounts, sys = machine
    mount(mounts, tmp_path / "gone", "nvme1n1", "259:2")
    mount(mounts, tmp_path / "well")
    [found] = other_drives([], mounts, sys)
    assert found.startswith(f"{tmp_path / 'well'} ")


def test_a_mount_that_is_broken_is_left_out(machine: tuple[Path, Path], tmp_path: Path) -> None:
    mounts, sys = machine
    mount(mounts, tmp_path / "broken")
    (tmp_path / "broken").rmdir()
    assert list(other_drives([], mounts, sys)) == ["nvme1n1 (B), which is not mounted here"]


def test_this_machine_can_be_asked() -> None:
    assert all(isinstance(each, str) for each in other_drives([]))
