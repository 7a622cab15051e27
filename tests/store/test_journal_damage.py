"""Damaged files: a journal opens, with rows that were once written or with none, and works from then on."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from journal_rig import Page, after, check_sizes, opened, pages_of, row

from radixtier.identity import Space
from radixtier.store.journal import Batch, Journal, JournalError
from radixtier.store.paths import files_of
from radixtier.store.restorer import Restorer

N_SLOTS = 1200
PAGE_TOKENS = 40
SEEDS = range(12)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[tuple[int, Page]]]:
    """Files as a crash leaves them, part of the rows in the log only, and all pages that ever were in them."""
    path = tmp_path_factory.mktemp("written") / "journal.db"
    journal = opened(path, N_SLOTS, PAGE_TOKENS)
    ever: set[tuple[int, Page]] = set()
    parent = row(0, 4, page_tokens=PAGE_TOKENS)
    for turn in range(2):
        for at in range(0, N_SLOTS, 300):
            rows = []
            for slot in range(at, at + 300, 50):
                head = row(slot, 10, slot + turn, space=Space(f"lora{slot % 3}"), page_tokens=PAGE_TOKENS)
                rows += [head, after(head, slot + 10, 30, 1, at=5), row(slot + 40, 1, slot, page_tokens=PAGE_TOKENS)]
                parent = after(head, slot + 41, 9, 2)
                rows.append(parent)
            ever |= set(pages_of(rows).items())
            journal.apply(Batch(adds=rows, frees=[(at, 300)]))
    copy = path.parent / "crashed.db"
    for source, target in zip(files_of(path)[:3], files_of(copy), strict=False):
        shutil.copy(source, target)
    journal.close()
    return copy, ever


def noise(rng: random.Random, data: bytearray) -> bytearray:
    return bytearray(rng.randbytes(len(data)))


def truncate(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data))]


def flip(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.choice([1, 3, 100])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def flip_head(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.choice([1, 3])):
        data[rng.randrange(100)] ^= 1 << rng.randrange(8)
    return data


def shuffle(rng: random.Random, data: bytearray) -> bytearray:
    """Old or other blocks in the place of some."""
    for _ in range(rng.choice([1, 5])):
        a, b = (rng.randrange(len(data) // 4096) * 4096 for _ in range(2))
        data[a : a + 4096] = data[b : b + 4096]
    return data


def blank(rng: random.Random, data: bytearray) -> bytearray:
    at = rng.randrange(len(data))
    data[at : at + 5000] = bytes(len(data[at : at + 5000]))
    return data


Damage = Callable[[random.Random, bytearray], bytearray]


def restore(path: Path, journal: Journal) -> None:
    """Whatever the restorer brings back is intact, and all slots come out once."""
    extents = journal.extents()
    restorer = Restorer([path], [0], [extents])
    taken = []
    while not restorer.done:
        assert restorer.wait(20)
        taken += restorer.take(50)
    assert all(stored.stretch.intact() for stored in taken)
    slots = np.concatenate([np.empty(0, dtype=np.int64), *(s.slots for s in taken), *restorer.take_dropped()])
    expected = [np.arange(slot, slot + pages) for slot, pages in extents.tolist()]
    assert np.array_equal(np.sort(slots), np.concatenate([np.empty(0, dtype=np.int64), *expected]))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("damage", [noise, truncate, flip, flip_head, shuffle, blank])
def test_a_damaged_file_never_hurts(
    tmp_path: Path, written: tuple[Path, set[tuple[int, Page]]], damage: Damage, suffix: str
) -> None:
    source, ever = written
    for seed in SEEDS:
        path = tmp_path / f"{seed}.db"
        for original, copy in zip(files_of(source)[:3], files_of(path), strict=False):
            shutil.copy(original, copy)
        victim = path.with_name(path.name + suffix)
        victim.write_bytes(damage(random.Random(seed), bytearray(victim.read_bytes())))
        journal = opened(path, N_SLOTS, PAGE_TOKENS)
        use(path, journal, ever)
        journal.close()
        check_sizes(path, N_SLOTS, PAGE_TOKENS)


def use(path: Path, journal: Journal, ever: set[tuple[int, Page]]) -> None:
    rows = journal.rows(journal.extents()[:, 0].tolist())
    assert set(pages_of(rows).items()) <= ever
    assert all(each.stretch.intact() for each in rows)
    restore(path, journal)
    fresh = row(5, 20, 10**6, page_tokens=PAGE_TOKENS)
    journal.apply(Batch(adds=[fresh], frees=[(100, 77), (300, 500)], touches=[(900, 3.0)]))
    found = pages_of(journal.rows(journal.extents()[:, 0].tolist()))
    assert {slot: found[slot] for slot in range(5, 25)} == pages_of([fresh])
    assert not found.keys() & {*range(100, 177), *range(300, 800)}
    check_sizes(path, N_SLOTS, PAGE_TOKENS)


CHANGES = [
    "UPDATE runs SET tokens = substr(tokens, 5) WHERE slot = 10",
    "UPDATE runs SET tokens = 7 WHERE slot = 10",
    "UPDATE runs SET keys = NULL WHERE slot = 10",
    "UPDATE runs SET keys = CAST(keys AS TEXT) WHERE slot = 10",
    "UPDATE runs SET front = x'00' WHERE slot = 10",
    "UPDATE runs SET used = 1.5 WHERE slot = 10",
    "UPDATE runs SET pages = 30.5 WHERE slot = 10",
    "UPDATE runs SET pages = 0 WHERE slot = 10",
    "UPDATE runs SET pages = -1 WHERE slot = 10",
    "UPDATE runs SET pages = 9223372036854775807 WHERE slot = 10",
    "UPDATE runs SET space = 12345 WHERE slot = 10",
    "UPDATE runs SET space = 'x' WHERE slot = 10",
    "UPDATE runs SET slot = -10 WHERE slot = 10",
    "UPDATE runs SET slot = 9223372036854775807 WHERE slot = 10",
    "UPDATE runs SET slot = 12 WHERE slot = 40",  # overlaps the row in front of it
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_impossible_row_is_deleted(tmp_path: Path, change: str) -> None:
    path = tmp_path / "journal.db"
    rows = [row(0, 10), row(10, 30, 1), row(40, 5, 2), row(45, 5, 3)]
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=rows))
    journal.close()
    change_behind_its_back(path, change)
    journal = opened(path, N_SLOTS)
    assert journal.replaced is None and journal.dropped == 1
    lost = range(40, 45) if "40" in change else range(10, 40)
    assert pages_of(journal.rows(journal.extents()[:, 0].tolist())) == {
        slot: page for slot, page in pages_of(rows).items() if slot not in lost
    }
    journal.close()


SILENT = [
    "UPDATE runs SET tokens = zeroblob(length(tokens)) WHERE slot = 10",
    "UPDATE runs SET keys = zeroblob(length(keys)) WHERE slot = 10",
    "UPDATE runs SET checksums = zeroblob(length(checksums)) WHERE slot = 10",
    "UPDATE runs SET slot = 60 WHERE slot = 10",
]


@pytest.mark.parametrize("change", SILENT)
def test_a_row_that_is_not_what_was_written_is_left_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "journal.db"
    rows = [row(0, 10), row(10, 30, 1), row(40, 5, 2)]
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=rows))
    journal.close()
    change_behind_its_back(path, change)
    journal = opened(path, N_SLOTS)
    assert journal.replaced is None
    kept = journal.rows(journal.extents()[:, 0].tolist())
    assert pages_of(kept) == {k: v for k, v in pages_of(rows).items() if not 10 <= k < 40}
    restore(path, journal)
    journal.apply(Batch(frees=[(12, 2), (62, 2)]))  # cutting it deletes it
    assert pages_of(journal.rows(journal.extents()[:, 0].tolist())) == pages_of(kept)
    journal.close()


@pytest.mark.parametrize("change", ["UPDATE spaces SET extra_key = x'ff'", "UPDATE spaces SET cache_salt = 5"])
def test_rows_of_a_damaged_namespace_are_deleted(tmp_path: Path, change: str) -> None:
    path = tmp_path / "journal.db"
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=[row(0, 10)]))
    journal.close()
    change_behind_its_back(path, change)
    journal = opened(path, N_SLOTS)
    assert journal.dropped == 1 and not len(journal.extents()) and journal.spaces() == {}
    journal.close()


@pytest.mark.parametrize("value", [b"\xff", b"[1]", b"{", b"[" * 100_000, 5, None])
def test_a_damaged_status_is_none(tmp_path: Path, value: object) -> None:
    path = tmp_path / "journal.db"
    journal = opened(path, N_SLOTS)
    journal._db.execute("INSERT INTO meta VALUES ('status', ?)", (value,))
    assert journal.status() == {}
    journal.clear()
    journal.close()


def test_damage_while_in_use_is_repaired_by_clear(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=[row(slot, 10, slot) for slot in range(0, N_SLOTS, 10)]))
    journal.close()
    journal = opened(path, N_SLOTS)
    journal.set_status({"pages": 1})
    journal._db.execute("PRAGMA shrink_memory")  # what it has read already it would not read again
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))
    with pytest.raises(JournalError) as failed:
        journal.apply(Batch(frees=[(0, N_SLOTS)]))
    assert failed.value.corrupt and not failed.value.full
    journal.clear()
    journal.apply(Batch(adds=[row(3, 4)]))
    assert journal.extents().tolist() == [[3, 4]]
    journal.close()


def change_behind_its_back(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()
