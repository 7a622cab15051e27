"""What the runbook promises about a store that is moved, spread over one more drive, or given a new drive."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rig import IDENTITY, WAIT, Put, Rig, path_of

from radixtier.cli.store import main


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "kv", identity=IDENTITY, drives=2, pages_per_transfer=2)
    yield made
    made.close()


def keys(puts: list[Put]) -> set[bytes]:
    return {key.tobytes() for put in puts for key in put.stretch.keys}


def reopened(rig: Rig, directories: list[Path], n_slots: int) -> list[Put]:
    """Open the closed store in other directories; return what a restart finds there, read and verified."""
    rig.directories = directories
    rig.open(n_slots)
    found = rig.restored()
    assert all(rig.get(put).ok.all() for put in found)
    return found


def test_a_store_that_was_copied_is_found_where_it_is_now(rig: Rig, tmp_path: Path) -> None:
    put = rig.put(path_of(8))
    assert rig.store.close(WAIT)
    subprocess.run(["cp", "-a", str(rig.directory), str(tmp_path / "new")], check=True, timeout=WAIT)
    there = [tmp_path / "new" / directory.name for directory in rig.directories]
    assert main(["verify", *map(str, there)]) == 0
    assert main(["clear", "--yes", *map(str, rig.directories)]) == 0
    assert keys(reopened(rig, there, 32)) == keys([put])


def test_one_more_directory_takes_nothing_away(rig: Rig, tmp_path: Path) -> None:
    put = rig.put(path_of(8))
    share = rig.store.n_slots // 2
    assert rig.store.close(WAIT)
    assert keys(reopened(rig, [*rig.directories, tmp_path / "third"], 3 * share)) == keys([put])
    more = rig.put(path_of(12, name=1))
    assert {rig.place(slot)[0] for slot in more.slots.tolist()} == {0, 1, 2}


def test_a_new_drive_begins_anew_and_the_others_keep_their_pages(rig: Rig) -> None:
    long, *short = rig.put(path_of(8)), rig.put(path_of(2, name=1)), rig.put(path_of(2, name=2))
    assert rig.store.close(WAIT)
    shutil.rmtree(rig.directories[1])
    found = keys(reopened(rig, rig.directories, 32))
    on_first = [put for put in short if all(rig.place(slot)[0] == 0 for slot in put.slots.tolist())]
    # Of the long path, what is in front of the first page that is gone.
    left = next(n for n, slot in enumerate(long.slots.tolist()) if rig.place(slot)[0] == 1)
    assert found == keys([long.part(0, left), *on_first])
