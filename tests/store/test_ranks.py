"""Stores of a server's ranks in one directory: each its own files and lock, and what servers of other sizes left."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from store_rig import IDENTITY, PAGE_TOKENS
from test_caps import bytes_on_disk
from test_slab import CAPACITY, PAGE, open_slab

from radixtier.footprint import footprint, slots_for
from radixtier.store.paths import StoreFiles, find_stores, lock_path
from radixtier.store.slab import StoreError
from radixtier.store.volume import Volume
from radixtier.tools.holders import lock_holders

OTHER = dataclasses.replace(IDENTITY, weights="cd" * 32)

Open = Callable[..., list[Volume]]


@pytest.fixture
def open_ranks(tmp_path: Path) -> Iterator[Open]:
    """Open the stores of all ranks of a server in one directory; those that were open are closed first."""
    with ExitStack() as stack:

        def start(ranks: int, size: int = 4 * CAPACITY, identity: object = IDENTITY, **options: object) -> list[Volume]:
            stack.close()
            opened = []
            for rank in range(ranks):
                mine = identity and dataclasses.replace(identity, tp_rank=rank, tp_size=ranks)  # type: ignore[type-var]
                opened.append(open_slab(tmp_path, size // ranks, identity=mine, rank=rank, ranks=ranks, **options))
                stack.callback(opened[-1].close)
            return opened

        yield start


def ranks_with_files(directory: Path) -> list[int]:
    return [files.rank for files in find_stores(directory)]


def test_each_rank_has_files_and_a_lock(open_ranks: Open, tmp_path: Path) -> None:
    opened = open_ranks(4)
    assert ranks_with_files(tmp_path) == [0, 1, 2, 3]
    assert len({volume.plan.files.id for volume in opened}) == 4
    assert sorted(lock_holders(tmp_path)) == [0, 1, 2, 3]
    assert len({volume.plan.n_slots for volume in opened}) == 1
    with pytest.raises(StoreError, match="is in use"):
        open_slab(tmp_path, rank=2, ranks=4)


@pytest.mark.parametrize("size", [4 * CAPACITY, 4 * CAPACITY + 3 * 4096 + 1])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_ranks_together_stay_under_the_size(open_ranks: Open, tmp_path: Path, ranks: int, size: int) -> None:
    """CASES C20: whatever was there before."""
    for before in (1, 4):
        open_ranks(before, size)
        opened = open_ranks(ranks, size)
        assert {volume.plan.n_slots for volume in opened} == {slots_for(size // ranks, PAGE, PAGE_TOKENS)}
        assert bytes_on_disk(tmp_path) <= size


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2), (2, 4), (3, 2), (2, 3)])
def test_a_server_of_another_size_is_never_read(
    open_ranks: Open, tmp_path: Path, before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES C16."""
    ids = [(volume.plan.files.rank, volume.plan.files.id) for volume in open_ranks(before)]
    with caplog.at_level(logging.WARNING):
        opened = open_ranks(after)
    assert not any(volume.slab.kept for volume in opened)
    assert ranks_with_files(tmp_path) == list(range(after)), "also those of ranks that are no more"
    assert not {(files.rank, files.id) for files in find_stores(tmp_path)} & set(ids)
    removed = [record.getMessage() for record in caplog.records if "removed the store" in record.getMessage()]
    assert len(removed) == before
    assert all(f"tp_size {before} instead of {after}" in line for line in removed)


def test_the_same_server_finds_its_ranks_again(open_ranks: Open) -> None:
    ids = [volume.slab.header.store_id for volume in open_ranks(3)]
    again = open_ranks(3)
    assert all(volume.slab.kept for volume in again)
    assert [volume.slab.header.store_id for volume in again] == ids


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 2), (2, 1), (2, 3)])
def test_kept_stores_count_in_equal_parts(open_ranks: Open, tmp_path: Path, before: int, after: int) -> None:
    open_ranks(before, identity=OTHER, size=4 * CAPACITY)
    open_ranks(0)
    aside = find_stores(tmp_path)
    nbytes = sum(files.nbytes() for files in aside)
    opened = open_ranks(after, size=12 * CAPACITY, keep_others=True)
    assert set(aside) < set(find_stores(tmp_path))
    each = 12 * CAPACITY // after - -(-nbytes // after)
    assert {volume.plan.n_slots for volume in opened} == {slots_for(each, PAGE, PAGE_TOKENS)}
    assert bytes_on_disk(tmp_path) <= 12 * CAPACITY
    # Back with the first one, whose stores are still good; the second one's are kept this time.
    assert all(volume.slab.kept for volume in open_ranks(before, identity=OTHER, size=24 * CAPACITY, keep_others=True))


def test_too_small_a_size_is_told_for_all_ranks(tmp_path: Path) -> None:
    least = 2 * footprint(1, PAGE, PAGE_TOKENS)
    with pytest.raises(StoreError, match=rf"on each of 2 ranks: give at least {least}$"):
        open_slab(tmp_path, least // 2 - 1, rank=1, ranks=2)


def test_nothing_is_taken_from_a_server_that_runs(tmp_path: Path) -> None:
    """Its ranks hold their locks; one of them is no rank of the server that starts."""
    foreign = open_slab(tmp_path, rank=2, ranks=3)
    with pytest.raises(StoreError, match="is in use"):
        open_slab(tmp_path, rank=0, ranks=2)
    assert foreign.slab.missing() is None
    foreign.close()
    open_slab(tmp_path, rank=0, ranks=2).close()
    assert ranks_with_files(tmp_path) == [0]
    assert lock_path(tmp_path, 2).exists(), "others may be waiting for it"


def test_room_is_taken_when_all_have_cleared_up(tmp_path: Path) -> None:
    open_slab(tmp_path, identity=OTHER).close()
    seen: list[list[StoreFiles]] = []
    open_slab(tmp_path, rank=0, ranks=2, cleared=lambda: seen.append(find_stores(tmp_path))).close()
    assert seen == [[]]


_RANK = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_ranks import IDENTITY, dataclasses, open_slab
rank = int(sys.argv[1])
mine = dataclasses.replace(IDENTITY, tp_rank=rank, tp_size=2)
volume = open_slab(Path(sys.argv[2]), identity=mine, rank=rank, ranks=2)
print(volume.plan.n_slots, flush=True)
sys.stdin.read()
volume.close()
"""


def test_ranks_are_processes_that_start_at_once(open_ranks: Open, tmp_path: Path) -> None:
    open_ranks(3)
    open_ranks(0)
    code = _RANK.format(path=[entry for entry in sys.path if entry])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert {process.stdout.readline() for process in ranks if process.stdout} == {"10\n"}
        assert sorted(lock_holders(tmp_path).values()) == sorted(str(process.pid) for process in ranks)
    finally:
        ended = [process.communicate(timeout=60) for process in ranks]
    assert len(ended) == 2
    assert [process.returncode for process in ranks] == [0, 0]
    assert ranks_with_files(tmp_path) == [0, 1]
