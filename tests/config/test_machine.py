"""RAM that may be allocated: the machine's, bounded by every cgroup above the process, v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixtier.machine import Machine, free_disk_bytes

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
