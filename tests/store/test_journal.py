"""The journal: what is written comes back, in other processes too, within its caps, and in nobody else's files."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from journal_rig import PAGE_TOKENS, STORE, after, all_rows, check_sizes, heat_of, opened, pages_of, row, sizes

from radixtier.footprint import database_bytes, log_bytes
from radixtier.identity import Space, Stretch, namespace_seed
from radixtier.store.journal import Batch, Journal, JournalError
from radixtier.store.journal_files import is_damage, is_full
from radixtier.store.rows import Row

N_SLOTS = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a b?#%.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = opened(path, N_SLOTS)
    yield journal
    journal.close()


def test_rows_come_back_after_a_restart(path: Path) -> None:
    first = row(3, 5, used=1234.567)
    rows = [first, after(first, 20, 2, 1, at=3), row(0, 1, 2, space=Space("", None))]
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=rows))
    journal.close()
    assert sizes(path)[1] == 0
    journal = opened(path, N_SLOTS)
    assert journal.replaced is None and journal.dropped == 0
    assert pages_of(all_rows(journal)) == pages_of(rows)
    assert heat_of(all_rows(journal)) == heat_of(rows)
    journal.close()


def test_namespaces_are_told_apart(journal: Journal) -> None:
    spaces = [
        *(Space(), Space("", None), Space(None, ""), Space("", "")),
        *(Space("a", "bc"), Space("ab", "c"), Space("X"), Space(None, "X"), Space("\ud800")),
    ]
    rows = [row(i, 1, space=space) for i, space in enumerate(spaces)]
    journal.apply(Batch(adds=rows))
    assert [each.stretch.space for each in all_rows(journal)] == spaces
    journal.apply(Batch(frees=[(1, len(spaces))]))
    assert list(journal.spaces().values()) == [Space()]  # one that nothing names any more is gone


def test_a_namespace_of_endless_name_is_not_kept(journal: Journal) -> None:
    journal.apply(Batch(adds=[row(0, 1, space=Space("x" * 100_000)), row(1, 1, space=Space("x" * 1000))]))
    assert journal.extents().tolist() == [[1, 1]]


def test_rows_of_images_come_back_cut_or_not_and_those_without_an_encoding_are_left_out(path: Path) -> None:
    """SGLang puts four numbers of 62 bits, over and over, in the place of an image."""
    page_tokens = 8
    image, noise = np.resize([2**62 + number for number in range(4)], 3 * page_tokens), 2**62 + np.arange(16 * 8)
    rows = []
    for slot, space, tokens in ((0, Space(), image), (8, Space("lora"), noise)):
        stretch = Stretch.chained(space, namespace_seed(*space), tokens, page_tokens)
        rows.append(Row(slot, stretch, np.arange(len(stretch), dtype=np.uint64), 1.0))
    journal = opened(path, N_SLOTS, page_tokens)
    journal.apply(Batch(adds=rows))
    assert pages_of(all_rows(journal)) == pages_of(rows[:1])
    assert list(journal.spaces().values()) == [Space()]
    journal.apply(Batch(frees=[(1, 1)]))
    assert pages_of(all_rows(journal)) == {slot: page for slot, page in pages_of(rows[:1]).items() if slot != 1}
    journal.close()


def test_a_freed_middle_splits_a_row(journal: Journal) -> None:
    whole = row(10, 6)
    journal.apply(Batch(adds=[whole], frees=[]))
    journal.apply(Batch(frees=[(12, 2)]))
    left, right = all_rows(journal)
    assert (left.slot, len(left.stretch), right.slot, len(right.stretch)) == (10, 2, 14, 2)
    assert right.stretch.front == whole.stretch.keys[3].tobytes()
    assert pages_of([left, right]) == {k: v for k, v in pages_of([whole]).items() if k not in (12, 13)}


def test_one_batch_frees_adds_and_touches_in_this_order(journal: Journal) -> None:
    journal.apply(Batch(adds=[row(0, 8)]))
    journal.apply(Batch(adds=[row(2, 2, 1)], frees=[(2, 2)], touches=[(3, 7.0), (2, 6.0), (7, 9.0), (50, 1.0)]))
    assert heat_of(all_rows(journal)) == {0: 1.0, 1: 1.0, 2: 7.0, 3: 7.0, 4: 9.0, 5: 9.0, 6: 9.0, 7: 9.0}


def test_an_add_takes_the_place_of_what_was_there(journal: Journal) -> None:
    old, new = row(0, 8), row(2, 3, 1)
    journal.apply(Batch(adds=[old]))
    journal.apply(Batch(adds=[new]))
    assert pages_of(all_rows(journal)) == pages_of([old]) | pages_of([new])


def test_time_that_is_no_number_is_the_distant_past(journal: Journal) -> None:
    journal.apply(Batch(adds=[row(0, 1, used=float("nan")), row(1, 1, used=float("inf"))]))
    assert heat_of(all_rows(journal)) == {0: 0.0, 1: 0.0}


def test_clear_removes_everything_but_the_status(path: Path, journal: Journal) -> None:
    journal.set_status({"pages": 3})
    journal.apply(Batch(adds=[row(0, 8, space=Space("a"))]))
    journal.clear()
    assert all_rows(journal) == [] and journal.spaces() == {} and journal.status() == {"pages": 3}
    journal.apply(Batch(adds=[row(1, 2)]))
    assert journal.extents().tolist() == [[1, 2]]
    check_sizes(path, N_SLOTS)


def test_what_cannot_be_removed_stays_in_use(path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.apply(Batch(adds=[row(0, 8)]))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(JournalError, match="read-only"):
            journal.clear()
    journal.apply(Batch(adds=[row(8, 8)]))
    journal.close()
    journal = opened(path, N_SLOTS)
    assert journal.extents().tolist() == [[0, 8], [8, 8]]
    journal.close()


def test_a_clear_that_fails_half_way_leaves_nothing_in_use(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.apply(Batch(adds=[row(0, 8)]))

    def refuse(_: Path) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("radixtier.store.journal_files.sync_directory", refuse)
        with pytest.raises(JournalError, match="no answer"):
            journal.clear()
    with pytest.raises(JournalError):
        journal.apply(Batch(adds=[row(8, 8)]))
    journal.clear()
    journal.apply(Batch(adds=[row(16, 8)]))
    assert journal.extents().tolist() == [[16, 8]]


def test_status_is_kept(path: Path, journal: Journal) -> None:
    assert journal.status() == {}
    journal.set_status({"reason": "slow", "pages": [1, 2]})
    journal.close()
    journal = opened(path, N_SLOTS)
    assert journal.status() == {"reason": "slow", "pages": [1, 2]}
    journal.close()


def test_fewer_slots_cut_rows(path: Path) -> None:
    rows = [row(0, 4), row(10, 8, 1), row(40, 8, 2)]
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=rows))
    journal.close()
    journal = opened(path, 14)
    assert journal.replaced is None and journal.dropped == 0
    assert pages_of(all_rows(journal)) == {k: v for k, v in pages_of(rows).items() if k < 14}
    journal.close()


def test_a_much_smaller_store_gives_its_bytes_back(path: Path) -> None:
    n_slots, few = 20_000, 200
    journal = opened(path, n_slots)
    for at in range(0, n_slots, 2000):
        journal.apply(Batch(adds=[row(slot, 40, slot) for slot in range(at, at + 2000, 40)]))
        check_sizes(path, n_slots)
    journal.close()
    before = path.stat().st_size
    assert before > 3 * database_bytes(few, PAGE_TOKENS)
    journal = opened(path, few)
    assert journal.replaced is None
    assert journal.extents()[:, 1].sum() == few
    check_sizes(path, few)
    journal.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [({"store_id": "f" * 32}, "store_id"), ({"page_tokens": 8}, "page_tokens")],
)
def test_rows_of_another_store_are_worth_nothing(path: Path, options: dict[str, object], why: str) -> None:
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=[row(0, 3)]))
    journal.close()
    journal = opened(path, N_SLOTS, **options)  # type: ignore[arg-type]
    assert why in (journal.replaced or "")
    assert not len(journal.extents())
    journal.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 2",
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
        "CREATE TABLE more (x)",
        "DROP TABLE spaces",
        "DELETE FROM meta",
    ],
)
def test_another_format_or_schema_is_replaced(path: Path, statement: str) -> None:
    opened(path, N_SLOTS).close()
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()
    journal = opened(path, N_SLOTS)
    assert journal.replaced
    journal.apply(Batch(adds=[row(0, 3)]))
    assert len(all_rows(journal)) == 1
    journal.close()


# Who may use the files


def test_files_are_ours_alone_whatever_the_umask(path: Path) -> None:
    old = os.umask(0)
    try:
        journal = opened(path, N_SLOTS)
        journal.apply(Batch(adds=[row(0, 3)]))
    finally:
        os.umask(old)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {path.name + suffix: 0o600 for suffix in ("", "-wal", "-shm")}
    journal.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["symlink", "hardlink", "directory"])
def test_links_and_special_files_are_refused(path: Path, suffix: str, kind: str) -> None:
    precious = path.parent / "precious"
    precious.write_bytes(b"precious")
    if suffix:
        opened(path, N_SLOTS).close()
    victim = path.with_name(path.name + suffix)
    if kind == "symlink":
        victim.symlink_to(precious)
    elif kind == "hardlink":
        victim.hardlink_to(precious)
    else:
        victim.mkdir()
    for call in (lambda: opened(path, N_SLOTS), lambda: Journal.open_readonly(path)):
        with pytest.raises(JournalError, match="remove it"):
            call()
    assert precious.read_bytes() == b"precious" and victim.is_symlink() == (kind == "symlink")


def test_a_dangling_link_is_refused(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(JournalError, match="symbolic link"):
        opened(path, N_SLOTS)
    assert not (path.parent / "elsewhere").exists()


def test_a_log_without_its_database_brings_nothing_back(path: Path) -> None:
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=[row(0, 3)]))
    path.unlink()
    log = path.with_name(path.name + "-wal")
    kept = log.read_bytes()
    journal._db.close()
    log.write_bytes(kept)
    journal = opened(path, N_SLOTS)
    assert not len(journal.extents()) and journal.replaced is None
    journal.close()


# Caps


@pytest.mark.parametrize("page_tokens", [1, 16, 64, 513, 1100])
@pytest.mark.parametrize("n_slots", [7, 600])
def test_a_row_per_page_fits(path: Path, n_slots: int, page_tokens: int) -> None:
    """The worst case: each page a path, every fourth a tenant of its own, in a random order, all changed often."""
    rng = np.random.default_rng(n_slots * page_tokens)
    spaces = [Space("adapter-of-some-length", f"{i:032x}") for i in range(1 + n_slots // 4)]
    journal = opened(path, n_slots, page_tokens)
    for turn in range(2):
        for part in np.array_split(rng.permutation(n_slots), 1 + n_slots // 50):
            adds = [
                row(slot, 1, slot + turn * n_slots, space=spaces[slot // 4], page_tokens=page_tokens)
                for slot in part.tolist()
            ]
            journal.apply(Batch(adds=adds, frees=[(slot, 1) for slot in part.tolist()]))
            check_sizes(path, n_slots, page_tokens)
        assert len(journal.extents()) == n_slots
        for part in np.array_split(rng.permutation(n_slots)[: n_slots * 2 // 3], 1 + n_slots // 50):
            journal.apply(Batch(frees=[(slot, 1) for slot in part.tolist()]))
            check_sizes(path, n_slots, page_tokens)
    journal.close()
    check_sizes(path, n_slots, page_tokens)


def test_a_batch_beyond_the_log_is_cut_into_transactions(path: Path) -> None:
    n_slots = 20_000
    rows = [row(slot, 40, slot) for slot in range(0, n_slots, 40)]
    journal = opened(path, n_slots, log_bytes=300_000)
    journal.apply(Batch(adds=rows))
    assert sizes(path)[1] <= 300_000
    assert pages_of(all_rows(journal)) == pages_of(rows)
    journal.apply(Batch(frees=[(0, n_slots - 1)], touches=[(n_slots - 1, 5.0)]))
    assert sizes(path)[1] <= 300_000
    assert heat_of(all_rows(journal)) == {n_slots - 1: 5.0}
    journal.close()


def test_a_long_row_is_cut(path: Path) -> None:
    n_slots = 30_000
    long = row(0, n_slots)
    journal = opened(path, n_slots, log_bytes=300_000)
    journal.apply(Batch(adds=[long]))
    assert sizes(path)[1] <= 300_000
    assert pages_of(all_rows(journal)) == pages_of([long])
    journal.close()


def test_full_means_frees_are_done_and_no_add_is_there(path: Path) -> None:
    n_slots = 4000
    journal = opened(path, n_slots, max_bytes=256 << 10)
    journal.apply(Batch(adds=[row(0, 8), row(8, 8, 1)]))
    adds = [row(slot, 1, slot) for slot in range(100, n_slots)]
    with pytest.raises(JournalError) as failed:
        journal.apply(Batch(adds=adds, frees=[(2, 2), (8, 8)]))
    assert failed.value.full and failed.value.freed and not failed.value.corrupt
    left = {slot for start, pages in journal.extents().tolist() for slot in range(start, start + pages)}
    assert left <= {0, 1, *range(4, 8)}
    journal.apply(Batch(adds=[row(100, 8)]))
    assert [100, 8] in journal.extents().tolist()
    assert path.stat().st_size <= 256 << 10
    journal.close()


def test_a_log_too_small_is_refused(path: Path) -> None:
    with pytest.raises(JournalError, match="too small"):
        opened(path, N_SLOTS, log_bytes=100_000)


def test_a_failed_write_leaves_a_batch_that_can_be_applied_again(path: Path) -> None:
    n_slots = 1000
    journal = opened(path, n_slots)
    before = [row(0, 8), row(8, 8, 1)]
    journal.apply(Batch(adds=before))
    batch = Batch(adds=[row(slot, 8, slot) for slot in range(16, 800, 8)], frees=[(4, 8)], touches=[(0, 9.0)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes(path)[1] + 8192, limits[1]))
    try:
        with pytest.raises(JournalError) as failed:
            journal.apply(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not failed.value.freed and not failed.value.corrupt
    journal.apply(batch)
    expected = {k: v for k, v in pages_of(before + batch.adds).items() if k not in range(4, 12)}
    assert pages_of(all_rows(journal)) == expected
    assert heat_of(all_rows(journal))[0] == 9.0
    journal.close()


@pytest.mark.parametrize(
    ("text", "full", "damage"),
    [
        ("database or disk is full", True, False),
        ("database is locked", False, False),
        ("disk I/O error", False, False),
        ("unable to open database file", False, False),
        ("database disk image is malformed", False, True),
        ("file is not a database", False, True),
    ],
)
def test_errors_are_told_apart_by_their_text_where_python_has_no_codes(text: str, full: bool, damage: bool) -> None:
    error = sqlite3.OperationalError(text)
    assert is_full(error) == full and is_damage(error) == damage


# Other processes

READER = """
import sys
from pathlib import Path
from radixtier.store.journal import Journal, JournalError
reader = Journal.open_readonly(Path(sys.argv[1]))
for line in sys.stdin:
    if line == "hold\\n":
        reader._db.execute("BEGIN")
    elif line == "release\\n":
        reader._db.execute("COMMIT")
    print(reader.store_id, reader.page_tokens, reader.extents().tolist(), flush=True)
"""


class Reader:
    """Another process that reads a journal when asked to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", READER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str = "read") -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate(timeout=20)


def test_another_process_reads_beside_the_writer(path: Path, journal: Journal) -> None:
    reader = Reader(path)
    assert reader.ask() == f"{STORE} {PAGE_TOKENS} []"
    journal.apply(Batch(adds=[row(5, 3)]))
    assert reader.ask() == f"{STORE} {PAGE_TOKENS} [[5, 3]]"
    reader.close()
    journal.apply(Batch(adds=[row(9, 1)]))
    assert len(all_rows(journal)) == 2


def test_a_reader_that_holds_on_cannot_make_the_log_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.store.journal_files.BUSY_S", 0.05)
    n_slots = 4000
    journal = opened(path, n_slots)
    reader = Reader(path)
    reader.ask("hold")

    def fill() -> None:
        for slot in range(0, n_slots, 8):
            journal.apply(Batch(adds=[row(slot, 8, slot)]))
            check_sizes(path, n_slots)

    with pytest.raises(JournalError, match="a reader") as failed:
        fill()
    assert not failed.value.full
    check_sizes(path, n_slots)
    there = len(journal.extents())
    reader.ask("release")
    reader.close()
    journal.apply(Batch(adds=[row(n_slots - 8, 8)]))
    assert len(all_rows(journal)) == there + 1
    journal.close()


def test_reading_what_is_not_there_fails(path: Path) -> None:
    with pytest.raises(JournalError):
        Journal.open_readonly(path)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(JournalError):
        Journal.open_readonly(path)
    assert path.read_bytes() == b"no database" * 1000


def test_a_reader_sees_a_closed_journal_and_leaves_it_usable(path: Path) -> None:
    journal = opened(path, N_SLOTS)
    journal.apply(Batch(adds=[row(5, 3)]))
    journal.close()
    reader = Journal.open_readonly(path)
    assert pages_of(all_rows(reader)) == pages_of([row(5, 3)])
    reader.close()
    check_sizes(path, N_SLOTS)
    journal = opened(path, N_SLOTS)
    assert journal.extents().tolist() == [[5, 3]] and journal.replaced is None
    journal.close()


def test_closed_means_closed(path: Path) -> None:
    journal = opened(path, N_SLOTS)
    journal.close()
    for call in (journal.extents, journal.index, journal.status, lambda: journal.apply(Batch(adds=[row(0, 1)]))):
        with pytest.raises(JournalError):
            call()
    assert log_bytes(N_SLOTS, PAGE_TOKENS) >= sizes(path)[1]
