"""A restart: every slot comes out once, only what follows from the root comes back, and nothing stands in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_rig import PAGE_TOKENS, after, opened, row

from radixtier.identity import Space, chain, namespace_seed
from radixtier.store import restorer as module
from radixtier.store.journal import Batch, Row
from radixtier.store.prefixes import PathCache
from radixtier.store.restorer import Restorer, Stored

WAIT = 20.0
N_SLOTS = 400
BASES = [0, 1000, 5000]


class Drives:
    """Journals of a few drives, and what a store knows of them after it has opened them."""

    def __init__(self, home: Path, contents: list[list[Row]]) -> None:
        self.paths = [home / f"{i}.db" for i in range(len(contents))]
        self.journals = [opened(path, N_SLOTS) for path in self.paths]
        for journal, rows in zip(self.journals, contents, strict=True):
            journal.apply(Batch(adds=rows))
        self.extents = [journal.extents() for journal in self.journals]
        self.bases = BASES[: len(contents)]
        self.contents = contents

    def restorer(self) -> Restorer:
        return Restorer(self.paths, self.bases, self.extents)

    def slots(self) -> set[int]:
        found = [
            base + slot + i
            for base, extents in zip(self.bases, self.extents, strict=True)
            for slot, pages in extents.tolist()
            for i in range(pages)
        ]
        return set(found)


@pytest.fixture
def drives(tmp_path: Path) -> Iterator[list[Drives]]:
    """What is put here is closed."""
    made: list[Drives] = []
    yield made
    for each in made:
        for journal in each.journals:
            journal.close()


def drain(restorer: Restorer, most: int = 7) -> list[Stored]:
    taken: list[Stored] = []
    deadline = time.monotonic() + WAIT
    while not restorer.done:
        assert restorer.wait(WAIT) and time.monotonic() < deadline
        got = restorer.take(most)
        assert len(got) <= most
        taken += got
    assert restorer.take(most) == [] and restorer.wait(0)
    return taken


def check(drives: Drives, restorer: Restorer, taken: list[Stored]) -> set[int]:
    """Each slot once, each path whole and in front of its row, what was in the slots unchanged; return the lost."""
    written = {
        base + each.slot + i: (each.stretch.keys[i].tobytes(), int(each.checksums[i]))
        for base, rows in zip(drives.bases, drives.contents, strict=True)
        for each in rows
        for i in range(len(each.stretch))
    }
    seen: set[int] = set()
    for stored in taken:
        seed = namespace_seed(*stored.stretch.space)
        path = chain(seed, stored.path, PAGE_TOKENS)
        assert stored.path.dtype == np.int32 and len(stored.path) == len(path) * PAGE_TOKENS
        assert (path[-1].tobytes() if len(path) else seed) == stored.stretch.front
        assert stored.stretch.intact()
        for slot, key, checksum in zip(stored.slots.tolist(), stored.stretch.keys, stored.checksums, strict=True):
            assert slot not in seen
            seen.add(slot)
            assert written[slot] == (key.tobytes(), int(checksum))
    lost = [slot for slots in restorer.take_dropped() for slot in slots.tolist()]
    assert len(lost) == len(set(lost)) and not set(lost) & seen
    assert seen | set(lost) == drives.slots()
    assert restorer.take_dropped() == []
    return set(lost)


def conversation(rng: np.random.Generator, turns: int) -> list[Row]:
    rows = [row(0, 3, int(rng.integers(10**9)), space=Space(f"lora{rng.integers(3)}"))]
    for _ in range(turns - 1):
        parent = rows[-1] if rng.random() < 0.8 else rows[int(rng.integers(len(rows)))]
        at = int(rng.integers(1, len(parent.stretch) + 1))
        rows.append(
            after(parent, 0, int(rng.integers(1, 6)), int(rng.integers(10**9)), at=at, used=float(rng.integers(1, 100)))
        )
    return rows


def spread(rows: list[Row], n: int, rng: np.random.Generator) -> list[list[Row]]:
    """Put rows on ``n`` drives, in any order."""
    contents: list[list[Row]] = [[] for _ in range(n)]
    ends = [0] * n
    for each in (rows[i] for i in rng.permutation(len(rows))):
        drive = int(rng.integers(n))
        contents[drive].append(each._replace(slot=ends[drive]))
        ends[drive] += len(each.stretch) + int(rng.integers(3))
    return contents


@pytest.mark.parametrize("cache_bytes", [1, 3000, 64 << 20])
@pytest.mark.parametrize("queue_bytes", [1, 32 << 20])
def test_everything_comes_back_over_three_drives(
    tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch, cache_bytes: int, queue_bytes: int
) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", cache_bytes)
    monkeypatch.setattr(module, "QUEUE_BYTES", queue_bytes)
    rng = np.random.default_rng(cache_bytes + queue_bytes)
    rows = [each for _ in range(10) for each in conversation(rng, 20)]
    drives.append(Drives(tmp_path, spread(rows, 3, rng)))
    restorer = drives[0].restorer()
    assert restorer.rows_total == 200 and restorer.pages_total == len(drives[0].slots())
    taken = drain(restorer)
    assert check(drives[0], restorer, taken) == set()
    assert len(taken) == 200


def test_hottest_first_and_parents_before_children(tmp_path: Path, drives: list[Drives]) -> None:
    cold, warm, hot = row(0, 2, 1, used=1.0), row(10, 2, 2, used=5.0), row(20, 2, 3, used=2.0)
    tail = after(hot, 30, 2, 4, used=9.0)
    drives.append(Drives(tmp_path, [[cold, warm, hot, tail]]))
    restorer = drives[0].restorer()
    taken = drain(restorer)
    assert [int(stored.slots[0]) for stored in taken] == [20, 30, 10, 0]
    assert [stored.used for stored in taken] == [2.0, 9.0, 5.0, 1.0]
    assert [each.tokens.tolist() for each in restorer.warmest] == [
        np.concatenate([hot.stretch.tokens, tail.stretch.tokens]).reshape(-1).tolist(),
        warm.stretch.tokens.reshape(-1).tolist(),
        cold.stretch.tokens.reshape(-1).tolist(),
    ]


def test_the_warmest_are_few(tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_ROWS", 3)
    drives.append(Drives(tmp_path, [[row(slot, 2, slot, used=float(slot)) for slot in range(0, 40, 2)]]))
    restorer = drives[0].restorer()
    drain(restorer)
    heads = {each.stretch.tokens[0, 0]: each.slot for each in drives[0].contents[0]}
    assert [heads[each.tokens[0]] for each in restorer.warmest] == [38, 36, 34]
    monkeypatch.setattr(module, "WARM_BYTES", 2 * 2 * PAGE_TOKENS * 4)
    restorer = drives[0].restorer()
    drain(restorer)
    assert [heads[each.tokens[0]] for each in restorer.warmest] == [38, 36]


def test_a_missing_drive_takes_what_hangs_behind_it(tmp_path: Path, drives: list[Drives]) -> None:
    head, other = row(0, 3), row(10, 3, 1)
    middle = after(head, 0, 2, 2)
    tail = after(middle, 20, 2, 3)
    drives.append(Drives(tmp_path, [[head, other, tail], [middle]]))
    drives[0].paths[1] = tmp_path / "gone.db"
    restorer = drives[0].restorer()
    lost = check(drives[0], restorer, drain(restorer))
    assert lost == {20, 21, 1000, 1001}


def test_a_row_that_does_not_follow_takes_what_hangs_behind_it(tmp_path: Path, drives: list[Drives]) -> None:
    head = row(0, 3)
    wrong = after(head, 10, 3, 1)
    wrong.stretch.tokens[1, 0] ^= 1  # sealed, but not what its keys say
    tail, sibling = after(wrong, 20, 2, 2), after(head, 30, 2, 3)
    drives.append(Drives(tmp_path, [[head, wrong, tail, sibling]]))
    restorer = drives[0].restorer()
    lost = check(drives[0], restorer, drain(restorer))
    assert lost == {10, 11, 12, 20, 21}


def test_a_root_of_no_namespace_is_an_orphan(tmp_path: Path, drives: list[Drives]) -> None:
    drives.append(
        Drives(tmp_path, [[row(0, 3), row(10, 3, 1, front=bytes(16)), row(20, 1, 2, front=namespace_seed("x"))]])
    )
    restorer = drives[0].restorer()
    assert check(drives[0], restorer, drain(restorer)) == {10, 11, 12, 20}


def test_pages_that_two_rows_share_come_back_once(tmp_path: Path, drives: list[Drives]) -> None:
    one = row(0, 5, 1, used=3.0)
    part = one.part(0, 3)._replace(slot=50, used=9.0)
    tail = after(part, 60, 2, 7)
    drives.append(Drives(tmp_path, [[one, tail], [part]]))
    restorer = drives[0].restorer()
    lost = check(drives[0], restorer, drain(restorer))
    assert lost == {0, 1, 2}


def test_rows_recorded_later_are_none_of_its_business(tmp_path: Path, drives: list[Drives]) -> None:
    drives.append(Drives(tmp_path, [[row(0, 3), row(10, 3, 1)]]))
    drives[0].journals[0].apply(Batch(adds=[row(20, 3, 2)], frees=[(11, 1)]))
    restorer = drives[0].restorer()
    taken = drain(restorer)
    assert [int(stored.slots[0]) for stored in taken] == [0]
    assert check(drives[0], restorer, taken) == {10, 11, 12}


def test_rows_that_change_meanwhile_are_left_out(
    tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row is given up and its slots are used anew while the rest, which needs its tokens, is read."""
    monkeypatch.setattr(module, "CACHE_BYTES", 1)
    monkeypatch.setattr(module, "QUEUE_BYTES", 1)
    head = row(0, 2, used=1000.0)
    middles = [after(head, 100 + 2 * i, 1, i, used=float(i)) for i in range(80)]
    tails = [after(each, each.slot + 1, 1, 5, used=each.used) for each in middles]
    drives.append(Drives(tmp_path, [[head, *middles, *tails]]))
    restorer = drives[0].restorer()
    assert restorer.wait(WAIT)
    [first] = restorer.take(1)
    assert first.slots.tolist() == [0, 1]
    drives[0].journals[0].apply(Batch(adds=[row(0, 2, 77)]))
    taken = drain(restorer)
    lost = check(drives[0], restorer, [first, *taken])
    assert lost, "rows whose path can no longer be told"


def test_cancelled_half_way(tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 1000)
    rows = [row(slot, 2, slot) for slot in range(0, 300, 2)]
    drives.append(Drives(tmp_path, [rows]))
    restorer = drives[0].restorer()
    taken = []
    while len(taken) < 20:
        assert restorer.wait(WAIT)
        taken += restorer.take(3)
    restorer.cancel()
    restorer._thread.join(WAIT)
    assert restorer.done and restorer.take(10) == []
    assert len(check(drives[0], restorer, taken)) == 300 - 2 * len(taken)
    restorer.cancel()


def test_what_waits_is_bounded(tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 2000)
    rows = [row(slot, 2, slot) for slot in range(0, 300, 2)]
    drives.append(Drives(tmp_path, [rows]))
    restorer = drives[0].restorer()
    each = 2 * (PAGE_TOKENS * 4 + 16 + 16)
    taken = []
    while not restorer.done:
        assert restorer.wait(WAIT)
        with restorer._change:
            assert restorer._ready_bytes == each * len(restorer._ready) < 2000 + each
        taken += restorer.take(1)
    assert check(drives[0], restorer, taken) == set()


@pytest.mark.parametrize("content", [None, b"", b"noise" * 5000])
def test_journals_that_are_gone_are_no_trouble(tmp_path: Path, drives: list[Drives], content: bytes | None) -> None:
    drives.append(Drives(tmp_path, [[row(0, 3)], [row(7, 3, 1)]]))
    drives[0].journals[1].close()
    drives[0].paths[1].unlink()
    if content is not None:
        drives[0].paths[1].write_bytes(content)
    restorer = drives[0].restorer()
    assert check(drives[0], restorer, drain(restorer)) == {1007, 1008, 1009}


def test_a_journal_that_breaks_half_way(
    tmp_path: Path, drives: list[Drives], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 1)
    contents = [[row(slot, 1, slot + 1000 * drive) for slot in range(200)] for drive in range(2)]
    drives.append(Drives(tmp_path, contents))
    restorer = drives[0].restorer()
    assert restorer.wait(WAIT)
    first = restorer.take(1)
    for journal in drives[0].journals:
        journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    fd = os.open(drives[0].paths[1], os.O_RDWR)
    os.pwrite(fd, b"\xff" * (os.fstat(fd).st_size - 100), 100)
    os.close(fd)
    taken = first + drain(restorer)
    lost = check(drives[0], restorer, taken)
    assert min(lost) >= 1000 and len([s for s in taken if s.slots[0] < 1000]) == 200
    assert "not brought back" in caplog.text


def test_nothing_to_bring_back(tmp_path: Path, drives: list[Drives]) -> None:
    drives.append(Drives(tmp_path, [[], []]))
    restorer = drives[0].restorer()
    assert drain(restorer) == [] and restorer.warmest == [] and restorer.take_dropped() == []
    assert restorer.rows_total == restorer.pages_total == 0


# Paths


def test_a_conversation_is_kept_once() -> None:
    """Paths of rows behind one another share their memory."""
    cache = PathCache(10**9)
    for number in range(1000):
        cache.put(number, number - 1, number * 8, np.full(8, number, dtype=np.int32))
    assert cache.nbytes < 6 * 8000 * 4
    whole = cache.get(999)
    assert whole is not None and np.array_equal(whole, np.repeat(np.arange(1000), 8))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=50),
    st.integers(0, 3000),
)
def test_paths_are_never_overwritten(steps: list[tuple[int, float, int]], limit: int) -> None:
    cache = PathCache(limit)
    paths: list[npt.NDArray[np.int32]] = []
    out: list[npt.NDArray[np.int32]] = []
    for number, (parent, share, length) in enumerate(steps):
        tokens = np.full(length, number, dtype=np.int32)
        front = paths[parent] if parent < number else tokens[:0]
        if parent < number and cache.get(parent) is None:
            front = tokens[:0]
        before = int(share * len(front))
        out.append(cache.put(number, parent, before, tokens))
        paths.append(np.concatenate([front[:before], tokens]))
        assert cache.nbytes <= limit or len(cache) == 1
    for mine, expected in zip(out, paths, strict=True):
        assert np.array_equal(mine, expected)


def test_a_journal_can_be_written_while_it_is_read(tmp_path: Path, drives: list[Drives]) -> None:
    rows = [row(slot, 2, slot) for slot in range(0, 300, 2)]
    drives.append(Drives(tmp_path, [rows]))
    journal = drives[0].journals[0]
    restorer = drives[0].restorer()
    taken = []
    while not restorer.done:
        assert restorer.wait(WAIT)
        got = restorer.take(5)
        # What has been taken may be touched, given up and recorded anew.
        slots = [int(stored.slots[0]) for stored in got]
        journal.apply(Batch(frees=[(slot, 1) for slot in slots], touches=[(slot + 1, 5.0) for slot in slots]))
        taken += got
    assert check(drives[0], restorer, taken) == set()
    assert journal.extents().tolist() == [[slot, 1] for slot in range(1, 300, 2)]
