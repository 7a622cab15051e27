"""RAM that may be allocated: the machine's, bounded by every cgroup above the process, v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixtier import machine
from radixtier.machine import Machine, block_alignment, file_system_type, file_systems, free_disk_bytes

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    root = tmp_path / "proc"
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {64 * GIB // 1024} kB\n")
    (root / "self" / "cgroup").write_text("")
    return root


def group(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(str(content))


def test_without_cgroups_it_is_what_the_kernel_says(proc: Path, tmp_path: Path) -> None:
    assert Machine.probe(proc, tmp_path / "none").ram_bytes == 64 * GIB


def test_the_tightest_cgroup_above_us_binds(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    group(tmp_path / "cg" / "pod", memory__max=32 * GIB, memory__current=28 * GIB)
    group(tmp_path / "cg" / "pod" / "box", memory__max="max", memory__high=16 * GIB, memory__current=2 * GIB)
    assert Machine.probe(proc, tmp_path / "cg").ram_bytes == 4 * GIB


def test_page_cache_counts_as_free(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/box\n")
    stat = f"anon {GIB}\ninactive_file {6 * GIB}\n"
    group(tmp_path / "cg" / "box", memory__max=8 * GIB, memory__current=7 * GIB, memory__stat=stat)
    assert Machine.probe(proc, tmp_path / "cg").ram_bytes == 7 * GIB


def test_version_1(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("3:cpu,cpuacct:/x\n2:memory:/box\n0::/\n")
    group(
        tmp_path / "cg" / "memory" / "box",
        memory__limit_in_bytes=8 * GIB,
        memory__usage_in_bytes=5 * GIB,
        memory__stat=f"total_inactive_file {GIB}\n",
    )
    assert Machine.probe(proc, tmp_path / "cg").ram_bytes == 4 * GIB


def test_a_namespace_shows_our_group_at_the_mount(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/not/visible/here\n")
    group(tmp_path / "cg", memory__max=2 * GIB, memory__current=GIB)
    assert Machine.probe(proc, tmp_path / "cg").ram_bytes == GIB


def test_a_full_group_leaves_nothing(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/\n")
    group(tmp_path / "cg", memory__max=GIB, memory__current=2 * GIB)
    assert Machine.probe(proc, tmp_path / "cg").ram_bytes == 0


def test_this_machine() -> None:
    assert Machine.probe().ram_bytes > 0
    assert free_disk_bytes("/") >= 0


def test_directories_are_grouped_by_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).mkdir()
    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 1000)
    [one] = file_systems(paths)
    assert one == (tuple(paths), 1000)
    [of_proc, of_tmp] = file_systems(["/proc", paths[0]])
    assert (of_proc.directories, of_tmp.directories) == (("/proc",), (paths[0],))
    assert file_systems([]) == []


def test_files_of_stores_count_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 0)
    a, b = tmp_path / "a", tmp_path / "[b]"
    for directory in (a, b):
        directory.mkdir()
        (directory / "radixtier-r0-x.slab").write_bytes(bytes(8192))
        (directory / "other").write_bytes(bytes(8192))
    (a / "radixtier-link").symlink_to(a / "other")
    [both] = file_systems([str(a), str(b)])
    assert 2 * 8192 <= both.free < 3 * 8192
    # Named by two ways, a file counts once.
    [twice] = file_systems([str(a), str(a)])
    assert 8192 <= twice.free < 2 * 8192


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/x", "ext4"),
        ("/data/kv", "xfs"),
        ("/database", "ext4"),
        ("/data/fast/kv", "tmpfs"),
        ("/my disk/kv", "btrfs"),
        ("/März/kv", "jfs"),
    ],
)
def test_the_type_of_a_file_system(tmp_path: Path, path: str, kind: str) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "31 22 259:1 / /data rw shared:2 master:1 - xfs /dev/nvme0n1 rw\n"
        "32 31 0:40 / /data/fast rw - ext4 /dev/nvme1n1 rw\n"
        "33 32 0:41 / /data/fast rw - tmpfs none rw\n"
        "34 22 0:42 / /my\\040disk rw - btrfs /dev/sdb rw\n"
        "35 22 0:43 / /März rw - jfs /dev/sdc rw\n"
    )
    with info.open("ab") as more:
        more.write(b"36 22 0:44 / /\xff rw - xfs /dev/sdd rw\nnot a mount\n")
    assert file_system_type(path, info) == kind
    assert file_system_type(path, tmp_path / "absent") == "unknown"


def test_the_block_of_the_device(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    disk = tmp_path / "sys" / "disk"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "logical_block_size").write_text("4096\n")
    (disk / "partition").mkdir()
    node = tmp_path / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    node.parent.mkdir(parents=True)
    node.symlink_to(disk / "partition")
    assert block_alignment(str(tmp_path), tmp_path / "sys") == 4096
    (disk / "queue" / "logical_block_size").write_text("512\n")
    assert block_alignment(str(tmp_path), tmp_path / "sys") == 512
    assert block_alignment(str(tmp_path), tmp_path / "none") == os.statvfs(tmp_path).f_bsize
    assert block_alignment(str(tmp_path / "absent")) is None
