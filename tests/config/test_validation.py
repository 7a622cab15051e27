"""The configuration: every bad value named with its fix, defaults as shares, sizes as whole pages."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixtier.config import Origin, RadixTierConfig
from radixtier.machine import Machine, free_disk_bytes
from radixtier.store import slab
from radixtier.units import Size, Unit

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
    assert f"free in {tmp_path}" in line


def test_the_store_of_an_earlier_run_counts_as_free(tmp_path: Path) -> None:
    free = free_disk_bytes(str(tmp_path))
    left_over = 64 * 2**20
    (tmp_path / slab.SLAB_NAME).write_bytes(bytes(left_over))
    # Half of it above what was free before: other tests may write meanwhile.
    assert config(nvme_path=(str(tmp_path),)).check_disk(free - left_over // 2) == []


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


def test_several_paths(tmp_path: Path) -> None:
    assert "several directories" in only_line(config(nvme_path=(str(tmp_path), "/nowhere")))


def test_size_without_path() -> None:
    assert "no directory" in only_line(config(nvme_size=Size(GIB)))


def test_path_with_size_zero(tmp_path: Path) -> None:
    line = only_line(config(nvme_size=Size(0), nvme_path=(str(tmp_path),)))
    assert f"contradicts --radix-tier-nvme-path {tmp_path}" in line


@pytest.mark.parametrize(("engine", "why"), [("kvikio", "later release"), ("magic", "unknown engine")])
def test_engines(engine: str, why: str) -> None:
    assert why in only_line(config(io_engine=engine))
    assert lines(config(io_engine="posix")) == []


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
    assert abs(chosen.nvme_size.amount - free_disk_bytes(str(tmp_path)) / 2) < GIB
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
    given = config(hbm_size=Size(10_000), dram_size=Size(100_000), nvme_size=Size(100_000))
    sizes = given.resolve(bytes_per_token=100, page_size=16)
    assert (sizes.page_bytes, sizes.slot_bytes) == (1600, 4096)
    assert (sizes.hbm_pages, sizes.hbm_tokens) == (6, 96)
    assert (sizes.dram_pages, sizes.dram_tokens, sizes.dram_bytes) == (62, 992, 99_200)
    assert (sizes.nvme_slots, sizes.nvme_tokens, sizes.nvme_bytes) == (24, 384, 98_304)


def test_a_page_of_whole_blocks_needs_no_padding() -> None:
    sizes = config(dram_size=Size(0), nvme_size=Size(2**20)).resolve(bytes_per_token=1024, page_size=8)
    assert sizes.slot_bytes == sizes.page_bytes == 8192
    assert sizes.nvme_slots == 128
    assert sizes.hbm_tokens is None


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
