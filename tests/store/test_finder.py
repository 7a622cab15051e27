"""Finding pages by their keys after a restart: what is asked for and there is found, and every slot comes out once."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_rig import row
from store_rig import IDENTITY, Put, Rig, path_of
from test_restorer import Drives, conversation, spread
from test_restorer import drives as drives

from radixtier.store.finder import Finder, Found

WAIT = 20.0

Keys = Any


def answers(finder: Finder, n: int) -> list[Found]:
    """Wait for ``n`` answers, for a bounded time."""
    found: list[Found] = []
    end = time.monotonic() + WAIT
    while len(found) < n:
        assert time.monotonic() < end, "no answer"
        found += finder.take()
        time.sleep(0.001)
    assert len(found) == n and finder.take() == []
    return found


def ask(finder: Finder, *keys: Keys) -> list[Found]:
    """Ask one question after the other, and wait for the answers."""
    for number, each in enumerate(keys):
        finder.find(number, each)
    found = answers(finder, len(keys))
    assert [each.number for each in found] == list(range(len(keys)))
    return found


def close(finder: Finder) -> list[int]:
    """Close, wait until it is over, and return the slots of what nobody found."""
    finder.close()
    end = time.monotonic() + WAIT
    while not finder.over:
        assert time.monotonic() < end, "it does not stop"
        time.sleep(0.001)
    rest: list[int] = finder.rest().tolist()
    assert finder.rest().tolist() == [], "each slot comes out once"
    return rest


def finder_of(drives: Drives, wake: Callable[[], None] = lambda: None) -> Finder:
    return Finder(drives.paths, drives.bases, drives.extents, wake)


def all_pages(drives: Drives) -> dict[bytes, tuple[int, int]]:
    """Key -> global slot and checksum of every page."""
    return {
        each.stretch.keys[i].tobytes(): (base + each.slot + i, int(each.checksums[i]))
        for base, rows in zip(drives.bases, drives.contents, strict=True)
        for each in rows
        for i in range(len(each.stretch))
    }


def check(found: Found, keys: Keys, pages: dict[bytes, tuple[int, int]]) -> None:
    """What is there is what was stored under these keys."""
    for i, key in enumerate(keys):
        if found.there[i]:
            assert (int(found.slots[i]), int(found.checksums[i])) == pages[key.tobytes()]
        else:
            assert found.slots[i] == -1


# ---- over a store that an earlier run left ---------------------------------------------------------


@pytest.fixture
def left(make_rig: Callable[..., Rig]) -> Callable[..., tuple[Rig, list[Put]]]:
    """Stores some paths, and opens their store again."""

    def leave(*lengths: int, **options: Any) -> tuple[Rig, list[Put]]:
        rig = make_rig(identity=IDENTITY, **options)
        puts = [rig.put(path_of(n, name=name)) for name, n in enumerate(lengths)]
        rig.until(rig.recorded)
        rig.reopen()
        return rig, puts

    return leave


@pytest.mark.parametrize("n_drives", [1, 3])
def test_pages_of_an_earlier_run_are_found_and_can_be_read(left: Any, n_drives: int) -> None:
    rig, puts = left(5, 3, 1, drives=n_drives)
    rig.woken.clear()
    finder = rig.store.finder()
    found = ask(finder, *(put.stretch.keys for put in puts))
    assert rig.woken.is_set()
    for put, each in zip(puts, found, strict=True):
        assert each.there.all() and each.slots.tolist() == put.slots.tolist()
        assert rig.get(Put(put.stretch, each.slots, each.checksums)).ok.all()
    assert close(finder) == []
    for each in found:
        rig.store.free(each.slots)
    rig.until(lambda: rig.store.used_slots == 0)


def test_what_nobody_asked_for_is_the_rest(left: Any) -> None:
    rig, (one, other) = left(4, 3)
    finder = rig.store.finder()
    [found] = ask(finder, one.stretch.keys[:2])
    assert found.slots.tolist() == one.slots[:2].tolist()
    rest = close(finder)
    assert rest == sorted([*one.slots[2:].tolist(), *other.slots.tolist()])
    rig.store.free(found.slots)
    rig.store.free(np.array(rest, np.int64))
    rig.until(lambda: rig.store.used_slots == 0)


def test_unknown_keys_are_not_there_and_known_ones_beside_them_are(left: Any) -> None:
    rig, (put,) = left(4)
    strange = path_of(2, name=99).keys
    finder = rig.store.finder()
    mixed = np.concatenate([strange[:1], put.stretch.keys[1:3], strange[1:]])
    [found, nothing] = ask(finder, mixed, strange)
    assert found.there.tolist() == [False, True, True, False]
    assert found.slots.tolist() == [-1, *put.slots[1:3].tolist(), -1]
    assert not nothing.there.any()
    assert close(finder) == [int(put.slots[0]), int(put.slots[3])]


def test_a_page_is_found_once(left: Any) -> None:
    rig, (put,) = left(3)
    finder = rig.store.finder()
    [first, again] = ask(finder, put.stretch.keys, put.stretch.keys)
    assert first.there.all() and not again.there.any() and again.slots.tolist() == [-1] * 3
    assert close(finder) == []


def test_what_came_to_the_journal_after_the_opening_is_left_out(left: Any) -> None:
    rig, (put,) = left(2)
    late = rig.put(path_of(2, name=50))
    rig.until(rig.recorded)
    finder = rig.store.finder()
    [old, new] = ask(finder, put.stretch.keys, late.stretch.keys)
    assert old.there.all() and not new.there.any()
    assert close(finder) == []
    rig.store.free(late.slots)


def test_a_store_without_rows_finds_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(identity=IDENTITY)
    assert not rig.store.has_rows
    finder = rig.store.finder()
    [found] = ask(finder, path_of(2).keys)
    assert not found.there.any() and close(finder) == []


# ---- over journals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_drives", [1, 3])
def test_every_page_of_every_drive_is_found(tmp_path: Path, drives: list[Drives], n_drives: int) -> None:
    rng = np.random.default_rng(n_drives)
    rows = [each for _ in range(8) for each in conversation(rng, 12)]
    drives.append(Drives(tmp_path, spread(rows, n_drives, rng)))
    finder, pages = finder_of(drives[0]), all_pages(drives[0])
    questions = [each.stretch.keys for each in rows]
    for keys, found in zip(questions, ask(finder, *questions), strict=True):
        assert found.there.all()
        check(found, keys, pages)
    assert close(finder) == []


def test_a_question_may_span_rows_and_drives_in_any_order(tmp_path: Path, drives: list[Drives]) -> None:
    one, other, third = row(0, 3, 1), row(7, 2, 2), row(4, 4, 3)
    drives.append(Drives(tmp_path, [[one, other], [third]]))
    keys = np.concatenate([each.stretch.keys for each in (third, one, other)])[::-1]
    finder, pages = finder_of(drives[0]), all_pages(drives[0])
    [found] = ask(finder, keys[1::2])
    assert found.there.all()
    check(found, keys[1::2], pages)
    left = {pages[key.tobytes()][0] for key in keys[::2]}
    assert close(finder) == sorted(left)


def test_the_same_page_on_two_drives_comes_out_once_and_is_rest_once(tmp_path: Path, drives: list[Drives]) -> None:
    twin = row(0, 2, 1)
    drives.append(Drives(tmp_path, [[twin], [twin._replace(slot=9)]]))
    finder = finder_of(drives[0])
    [found] = ask(finder, twin.stretch.keys)
    assert found.there.all()
    assert sorted([*found.slots.tolist(), *close(finder)]) == sorted(drives[0].slots())


def spoil(path: Path, slot: int) -> None:
    """Change the tokens of a row behind the journal's back."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (tokens,) = db.execute("SELECT tokens FROM runs WHERE slot = ?", (slot,)).fetchone()
        db.execute("UPDATE runs SET tokens = ? WHERE slot = ?", (bytes([tokens[0] ^ 1]) + tokens[1:], slot))


@pytest.mark.parametrize("late", [False, True])
def test_a_damaged_row_is_not_there_and_its_slots_are_the_rest(
    tmp_path: Path, drives: list[Drives], late: bool
) -> None:
    """``late``: the row is damaged after the finder has begun."""
    good, bad, last = row(0, 3, 1), row(5, 2, 2), row(9, 2, 3)
    drives.append(Drives(tmp_path, [[good, bad, last]]))
    if not late:
        spoil(drives[0].paths[0], bad.slot)
    finder = finder_of(drives[0])
    [before] = ask(finder, good.stretch.keys)
    if late:
        spoil(drives[0].paths[0], bad.slot)
    finder.find(1, bad.stretch.keys)
    finder.find(2, last.stretch.keys)
    damaged, after = answers(finder, 2)
    assert before.there.all() and after.there.all() and not damaged.there.any()
    assert damaged.slots.tolist() == [-1, -1]
    assert close(finder) == [5, 6]


def test_a_journal_that_is_gone_takes_its_pages_along(
    tmp_path: Path, drives: list[Drives], caplog: pytest.LogCaptureFixture
) -> None:
    here, gone = row(0, 3, 1), row(0, 2, 2)
    drives.append(Drives(tmp_path, [[here], [gone]]))
    drives[0].paths[1] = tmp_path / "gone.db"
    finder = finder_of(drives[0])
    [one, other] = ask(finder, here.stretch.keys, gone.stretch.keys)
    assert one.there.all() and not other.there.any()
    assert close(finder) == [1000, 1001], "its slots are given back all the same"
    assert sum("not brought back" in record.getMessage() for record in caplog.records) == 1


@settings(max_examples=30)
@given(data=st.data(), n_drives=st.integers(1, 3), seed=st.integers(0, 1000))
def test_each_slot_comes_out_once_whatever_is_asked(tmp_path_factory: Any, data: Any, n_drives: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = conversation(rng, int(rng.integers(1, 12)))
    drives = Drives(tmp_path_factory.mktemp("find"), spread(rows, n_drives, rng))
    finder, pages = finder_of(drives), all_pages(drives)
    known = np.concatenate([each.stretch.keys for each in rows])
    every = np.concatenate([known, row(0, 4, 10**6).stretch.keys])
    out: list[int] = []
    asked: set[int] = set()
    for number in range(data.draw(st.integers(0, 5))):
        wanted = sorted(data.draw(st.sets(st.integers(0, len(every) - 1), min_size=1)))
        finder.find(number, every[wanted])
        [found] = answers(finder, 1)
        check(found, every[wanted], pages)
        new = [i for i in wanted if i < len(known) and i not in asked]
        assert found.there.tolist() == [i in new for i in wanted]
        out += found.slots[found.there].tolist()
        asked |= set(wanted)
    out += close(finder)
    assert sorted(out) == sorted(drives.slots())
    for journal in drives.journals:
        journal.close()
