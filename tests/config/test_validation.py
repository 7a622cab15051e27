"""The configuration: every bad value named with its fix, defaults as shares, sizes as whole pages."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from radixtier import config as config_module
from radixtier import machine as machine_module
from radixtier.config import Origin, RadixTierConfig
from radixtier.footprint import footprint
from radixtier.machine import FileSystem, Machine, file_systems, free_disk_bytes
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.units import BadValue, Size, Unit

GIB = 2**30
MACHINE = Machine(ram_bytes=64 * GIB)


def config(**fields: Any) -> RadixTierConfig:
    return RadixTierConfig(enable=True, **fields)


def lines(subject: RadixTierConfig) -> list[str]:
    return [str(problem) for problem in subject.validate(MACHINE)]


def only_line(subject: RadixTierConfig) -> str:
    [line] = lines(subject)
    return line


def test_nothing_given_is_fine(tmp_path: Path) -> None:
    assert lines(config()) == []
    assert lines(config(nvme_path=(str(tmp_path),), dram_size=Size(GIB), hbm_size=Size(1, Unit.TOKENS))) == []


def test_dram_only() -> None:
    assert lines(config(nvme_size=Size(0))) == []


@pytest.mark.parametrize("name", ["hbm_size", "dram_size"])
def test_zero(name: str) -> None:
    line = only_line(config(**{name: Size(0)}))
    assert line.startswith(f"--radix-tier-{name.replace('_', '-')} 0 B: ")
    assert "Give it a size, or leave the flag out" in line


def test_more_ram_than_there_is() -> None:
    line = only_line(config(dram_size=Size(60 * GIB)))
    assert "64.0 GiB of RAM are available" in line
    assert line.endswith(f"Ask for at most {54 * 1024}MiB.")
    assert lines(config(dram_size=Size(54 * GIB))) == []


def test_a_small_machine_keeps_a_quarter() -> None:
    small = Machine(ram_bytes=8 * GIB)
    assert config(dram_size=Size(6 * GIB)).validate(small) == []
    assert len(config(dram_size=Size(6 * GIB + 1)).validate(small)) == 1


def test_more_disk_than_there_is(tmp_path: Path) -> None:
    line = only_line(config(nvme_path=(str(tmp_path),), nvme_size=Size(2**60)))
    assert f"free in {tmp_path} beside --radix-tier-nvme-min-free 1.0 GiB" in line


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
    """Make directories on file systems with so many GiB free: ``disks(8, (4, 2))`` has two on the second."""

    def make(*free: int | tuple[int, int]) -> tuple[str, ...]:
        groups = []
        for i, one in enumerate(free):
            amount, n = one if isinstance(one, tuple) else (one, 1)
            groups.append(FileSystem(tuple(str(tmp_path / f"disk{i}-{k}") for k in range(n)), amount * GIB))
        paths = tuple(path for group in groups for path in group.directories)
        for path in paths:
            os.mkdir(path)
        monkeypatch.setattr(config_module, "file_systems", lambda asked: groups if list(asked) else [])
        return paths

    return make


@pytest.mark.parametrize(
    ("free", "asked", "refused"),
    [
        ((10,), 9, []),
        ((10,), 9.5, ["more than the 9.0 GiB that are free in {0} beside"]),
        ((10, 10), 18, []),
        ((10, 3), 4, []),
        ((10, 3), 5, ["its share of 2.5 GiB is more than the 2.0 GiB that are free in {1} beside"]),
        ((5, 3), 10, ["its share of 5.0 GiB is more than the 4.0 GiB", "5.0 GiB is more than the 2.0 GiB"]),
        ((100, (9, 2)), 12, []),
        ((100, (9, 2)), 12.5, ["its share of 8.3 GiB is more than the 8.0 GiB that are free in {1}, {2} beside"]),
    ],
)
def test_each_file_system_holds_its_share(
    disks: Callable[..., tuple[str, ...]], free: tuple[Any, ...], asked: float, refused: list[str]
) -> None:
    paths = disks(*free)
    found = lines(config(nvme_path=paths, nvme_size=Size(int(asked * GIB))))
    assert len(found) == len(refused)
    for line, why in zip(found, refused, strict=True):
        assert why.format(*paths) in line


def test_less_space_than_is_left_to_others(disks: Callable[..., tuple[str, ...]]) -> None:
    paths = disks(10, 0)
    for size in (None, Size(GIB), Size(1000, Unit.TOKENS)):
        line = only_line(config(nvme_path=paths, nvme_size=size))
        assert line.startswith(f"--radix-tier-nvme-min-free 1.0 GiB: more than is free in {paths[1]} at all. Lower it")
    assert lines(config(nvme_path=paths, nvme_min_free=Size(0))) == []


def test_the_default_is_what_the_fullest_directory_allows(disks: Callable[..., tuple[str, ...]]) -> None:
    paths = disks(10, (13, 2), 50)
    chosen, notes = config(nvme_path=paths, dram_size=Size(1)).with_defaults(MACHINE)
    assert chosen.nvme_size == Size(4 * 6 * GIB // 2)  # of 9, 6, 6 and 49 GiB
    assert lines(chosen) == []
    assert "12.0 GiB, 1/2 of the free space in " + ", ".join(paths) in notes[0]
    assert notes[1:] == [f"--radix-tier-nvme-path: {paths[1]}, {paths[2]} share a file system, which adds no bandwidth"]


@pytest.mark.parametrize("others", ["reclaim", "keep"])
def test_what_an_earlier_run_left_counts_as_free(tmp_path: Path, others: str) -> None:
    """Also if it is kept: the new store's size includes it, so that a restart finds the room it had."""
    free = free_disk_bytes(str(tmp_path))
    left_over = 64 * 2**20
    for name in ("radixtier-r0-0123456789ab.slab", "radixtier-r0-0123456789ab.db-wal"):
        (tmp_path / name).write_bytes(bytes(left_over // 2))
    # Half of it above what was free before: other tests may write meanwhile.
    given = config(nvme_path=(str(tmp_path),), nvme_min_free=Size(0), nvme_others=others)
    assert given.check_disk(free - left_over // 2) == []


def _missing(tmp: Path) -> str:
    return str(tmp / "missing")


def _link(tmp: Path) -> str:
    (tmp / "link").symlink_to(tmp)
    return str(tmp / "link")


def _file(tmp: Path) -> str:
    (tmp / "file").write_text("")
    return str(tmp / "file")


@pytest.mark.parametrize(
    ("make", "why", "fix"),
    [
        (_missing, "does not exist", "mkdir -p"),
        (_link, "symbolic link", "Name "),
        (_file, "not a directory", "Name the directory"),
        (lambda tmp: "/proc/sys", "cannot be written", "may write to"),
    ],
)
def test_paths(tmp_path: Path, make: Callable[[Path], str], why: str, fix: str) -> None:
    path = make(tmp_path)
    line = only_line(config(nvme_path=(path,)))
    assert line.startswith(f"--radix-tier-nvme-path {path}: ")
    assert why in line
    assert fix in line


def test_a_good_path_stays_empty(tmp_path: Path) -> None:
    assert lines(config(nvme_path=(str(tmp_path),))) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module.os, "geteuid", lambda: os.getuid() + 1)
    assert f"it belongs to user {os.getuid()}" in only_line(config(nvme_path=(str(tmp_path),)))


def test_each_of_several_paths_is_checked(tmp_path: Path) -> None:
    good, bad, worse = tmp_path / "good", tmp_path / "bad", tmp_path / "worse"
    good.mkdir()
    worse.write_text("")
    found = lines(config(nvme_path=(str(good), str(bad), str(worse))))
    assert [line.partition(". ")[0] for line in found] == [
        f"--radix-tier-nvme-path {bad}: the directory does not exist",
        f"--radix-tier-nvme-path {worse}: not a directory",
    ]


def test_a_directory_named_twice(tmp_path: Path) -> None:
    path = str(tmp_path)
    for other in (path, os.path.join(path, "..", tmp_path.name)):
        line = only_line(config(nvme_path=(path, other)))
        assert line == f"--radix-tier-nvme-path {other}: the same directory as {path}. Name each directory once."


def test_directories_of_one_file_system(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / name) for name in "ab")
    for path in paths:
        os.mkdir(path)
    given = config(nvme_path=paths, nvme_size=Size(GIB), dram_size=Size(GIB), nvme_min_free=Size(0))
    assert file_systems(paths)[0].directories == paths
    assert given.with_defaults(MACHINE)[1] == [
        f"--radix-tier-nvme-path: {paths[0]}, {paths[1]} share a file system, which adds no bandwidth"
    ]


def test_size_without_path() -> None:
    assert "no directory" in only_line(config(nvme_size=Size(GIB)))


def test_path_with_size_zero(tmp_path: Path) -> None:
    line = only_line(config(nvme_size=Size(0), nvme_path=(str(tmp_path),)))
    assert f"contradicts --radix-tier-nvme-path {tmp_path}" in line


def test_words() -> None:
    assert "unknown engine. Use one of auto, posix, kvikio" in only_line(config(io_engine="magic"))
    assert "Use one of reclaim, keep" in only_line(config(nvme_others="burn"))
    for engine in ("auto", "posix", "kvikio"):
        assert lines(config(io_engine=engine, nvme_others="keep")) == []


def test_policies(tmp_path: Path) -> None:
    assert "unknown policy. Use one of lru, " in only_line(config(eviction="clock"))
    assert "unknown policy. Use one of all, second-hit, auto" in only_line(config(admission="some"))
    for eviction in EVICTIONS:
        for admission in ADMISSIONS:
            assert lines(config(eviction=eviction, admission=admission)) == []


def test_write_budget(tmp_path: Path) -> None:
    path = (str(tmp_path),)
    assert config(nvme_path=path).bytes_per_day() is None
    assert config(nvme_path=path, write_budget="500GB/day").bytes_per_day() == 500 * 10**9
    assert config(nvme_path=path, write_budget="0.5DWPD").bytes_per_day() == machine_module.drive_bytes(path) // 2
    assert machine_module.drive_bytes(path) == machine_module.drive_bytes((*path, *path))
    line = only_line(config(nvme_path=path, write_budget="lots"))
    assert line.startswith("--radix-tier-write-budget lots: ") and "500GB/day" in line
    assert "no NVMe tier" in only_line(config(write_budget="500GB"))


def test_control_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = f"unix:{tmp_path}/radixtier/{os.getpid()}.sock"
    path = (str(tmp_path),)
    assert str(config(nvme_path=path).control_address(key=False)) == f"unix:{tmp_path}/radixtier.sock"
    assert str(config().control_address(key=False)) == own, "a DRAM-only tier has one as well"
    assert config(nvme_path=path, control="off").control_address(key=False) is None
    assert str(config(control="127.0.0.1:9000").control_address(key=False)) == "127.0.0.1:9000"
    assert str(config(control="10.0.0.1:9000").control_address(key=True)) == "10.0.0.1:9000"
    with pytest.raises(BadValue, match="no key"):
        config(control="10.0.0.1:9000").control_address(key=False)
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    assert str(config(nvme_path=(str(deep),)).control_address(key=False)) == own
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert config().control_address(key=False) is None, "nobody asked for it"


def test_record(tmp_path: Path) -> None:
    file = str(tmp_path / "trace")
    assert lines(config(record=file)) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "trace").write_text("")
    assert only_line(config(record=file)) == (
        f"--radix-tier-record {file}: it is there already, and nothing is written over. "
        "Name another file, or move it away."
    )
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "it is there already" in only_line(config(record=str(tmp_path / "link")))
    assert "it is there already" in only_line(config(record=str(tmp_path)))
    line = only_line(config(record=f"{tmp_path}/none/trace"))
    assert f"there is no directory {tmp_path}/none. Create it (mkdir -p {tmp_path}/none) or name" in line
    line = only_line(config(record="/proc/sys/trace"))
    assert line.startswith("--radix-tier-record /proc/sys/trace: /proc/sys cannot be written (")
    assert line.endswith("Name a file in a directory that this user may write to.")


def test_all_problems_at_once() -> None:
    found = lines(config(hbm_size=Size(0), dram_size=Size(0), nvme_size=Size(GIB), io_engine="magic"))
    assert len(found) == 4


def test_a_message_shows_what_was_written() -> None:
    origin = {"dram_size": Origin("RADIXTIER_DRAM_SIZE", "900GB")}
    assert only_line(config(dram_size=Size(900 * 10**9), origin=origin)).startswith("RADIXTIER_DRAM_SIZE 900GB: ")


def test_default_shares(tmp_path: Path) -> None:
    chosen, notes = config(nvme_path=(str(tmp_path),)).with_defaults(MACHINE)
    assert chosen.dram_size == Size(32 * GIB)
    assert chosen.hbm_size is None
    assert chosen.nvme_size is not None
    assert abs(chosen.nvme_size.amount - (free_disk_bytes(str(tmp_path)) - GIB) / 2) < GIB
    assert len(notes) == 2


def test_default_shares_where_hbm_is_ram() -> None:
    chosen, notes = config().with_defaults(MACHINE, hbm_in_ram=True)
    assert (chosen.hbm_size, chosen.dram_size, chosen.nvme_size) == (Size(16 * GIB), Size(16 * GIB), Size(0))
    assert len(notes) == 3


def test_defaults_leave_given_sizes_alone() -> None:
    given = config(hbm_size=Size(1), dram_size=Size(2), nvme_size=Size(0))
    chosen, notes = given.with_defaults(MACHINE, hbm_in_ram=True)
    assert chosen == given
    assert notes == []


def test_sizes_in_pages() -> None:
    given = config(hbm_size=Size(10_000), dram_size=Size(100_000), nvme_size=Size(0))
    sizes = given.resolve(bytes_per_token=100, page_size=16)
    assert (sizes.page_bytes, sizes.slot_bytes) == (1600, 4096)
    assert (sizes.hbm_pages, sizes.hbm_tokens) == (6, 96)
    assert (sizes.dram_pages, sizes.dram_tokens, sizes.dram_bytes) == (62, 992, 99_200)
    assert (sizes.nvme_slots, sizes.nvme_tokens, sizes.nvme_bytes) == (0, 0, 0)
    assert config(dram_size=Size(0), nvme_size=Size(0)).resolve(1, 1).hbm_tokens is None


@examples(
    nbytes=st.integers(0, 2**34),
    bytes_per_token=st.integers(1, 200_000),
    page_size=st.sampled_from([1, 16, 64]),
    ranks=st.integers(1, 4),
    directories=st.integers(1, 5),
)
def test_nvme_in_bytes_is_a_hard_cap(
    nbytes: int, bytes_per_token: int, page_size: int, ranks: int, directories: int
) -> None:
    """CASES C19, C20: all files of all ranks stay under it, and one more page per directory would not."""
    paths = tuple(f"/{i}" for i in range(directories))
    given = config(dram_size=Size(0), nvme_size=Size(nbytes), nvme_path=paths)
    sizes = given.resolve(bytes_per_token, page_size, ranks)
    assert sizes.nvme_slots % directories == 0
    assert ranks * sizes.nvme_bytes <= nbytes
    more = sizes.nvme_slots + directories
    assert ranks * (footprint(more, sizes.page_bytes, page_size, directories) + 1) > nbytes
    # A store that is given this as its capacity has these slots.
    again = config(dram_size=Size(0), nvme_size=Size(sizes.nvme_bytes), nvme_path=paths)
    assert again.resolve(bytes_per_token, page_size).nvme_slots == sizes.nvme_slots


@pytest.mark.parametrize(("tokens", "slots"), [(15, 0), (16, 3), (48, 3), (1000, 63)])
def test_nvme_in_tokens_is_rounded_up_to_whole_directories(tokens: int, slots: int) -> None:
    given = config(dram_size=Size(0), nvme_size=Size(tokens, Unit.TOKENS), nvme_path=("/a", "/b", "/c"))
    sizes = given.resolve(bytes_per_token=100, page_size=16)
    assert (sizes.nvme_slots, sizes.directories) == (slots, 3)
    assert sizes.nvme_bytes == footprint(slots, 1600, 16, 3)


def test_bytes_are_divided_over_ranks_and_tokens_are_not() -> None:
    given = config(dram_size=Size(100_000), nvme_size=Size(1000, Unit.TOKENS))
    sizes = given.resolve(bytes_per_token=25, page_size=16, ranks=4)
    assert sizes.dram_pages == 62
    assert sizes.nvme_tokens == 992


def test_unfinished_sizes_are_not_resolved() -> None:
    with pytest.raises(ValueError, match="with_defaults"):
        config().resolve(1, 1)


def test_it_travels_to_other_processes(tmp_path: Path) -> None:
    given = config(nvme_path=(str(tmp_path),), dram_size=Size(5), origin={"dram_size": Origin("x", "5")})
    copy = pickle.loads(pickle.dumps(given))
    assert copy == given
    assert copy.origin == given.origin
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.enable = False
