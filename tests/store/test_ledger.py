"""What waits for the journal of a drive, against the rows that a journal would hold."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from store_rig import path_of

from radixtier.store import ledger
from radixtier.store.journal import Batch, Row
from radixtier.store.ledger import Ledger

N = 40
NONE: np.ndarray = np.empty((0, 2), dtype=np.int64)


def row(slot: int, n: int, name: int = 0) -> Row:
    return Row(slot, path_of(n, name=name), np.arange(n, dtype=np.uint64), 1000.0)


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def applied(rows: dict[int, bytes], batch: Batch) -> None:
    """Do to ``rows`` (slot -> key) what a journal does."""
    for start, n in batch.frees:
        for slot in range(start, start + n):
            rows.pop(slot, None)
    for added in batch.adds:
        for i, key in enumerate(added.stretch.keys):
            rows[added.slot + i] = key.tobytes()


def test_a_row_is_taken_once() -> None:
    book = Ledger(N, NONE)
    assert book.due == math.inf and book.take() is None
    assert book.add(row(3, 4)) < math.inf and book.waiting == 1
    work = book.take()
    assert work is not None and [(r.slot, len(r.stretch)) for r in work.batch.adds] == [(3, 4)]
    assert not work.batch.frees and not len(work.freed)
    assert book.take() is None and book.due == math.inf and book.waiting == 0


def test_what_is_freed_before_it_is_taken_leaves_no_trace() -> None:
    book = Ledger(N, NONE)
    book.add(row(3, 5))
    assert book.free(slots(3, 6))[0].all()
    book.add(row(6, 1, name=1))
    work = book.take()
    assert work is not None and not work.batch.frees
    assert [(r.slot, len(r.stretch)) for r in work.batch.adds] == [(4, 2), (7, 1), (6, 1)]
    whole = path_of(5)
    first, second, other = (r.stretch for r in work.batch.adds)
    assert first.front == whole.keys[0].tobytes() and second.front == whole.keys[3].tobytes()
    assert (first.keys == whole.keys[1:3]).all() and (second.keys == whole.keys[4:]).all()
    assert all(stretch.intact() for stretch in (first, second, other))
    assert work.batch.adds[1].checksums.tolist() == [4]


def test_what_a_row_may_name_is_withheld() -> None:
    book = Ledger(N, np.array([[10, 3]]))
    book.add(row(3, 4))
    book.take()
    free, due = book.free(slots(3, 5, 6, 8, 11))
    assert free.tolist() == [False, False, False, True, False] and due < math.inf
    work = book.take()
    assert work is not None and work.batch.frees == [(3, 1), (5, 2), (11, 1)] and work.freed.tolist() == [3, 5, 6, 11]
    book.failed(work, 7.0)
    assert not book.free(slots(12))[0].any()
    again = book.take()
    assert again is not None and again.freed.tolist() == [3, 5, 6, 11, 12]
    book.committed(again.freed)
    assert book.free(slots(3, 5, 6, 11, 12))[0].all()


def test_a_row_that_failed_is_dropped_but_may_be_there() -> None:
    book = Ledger(N, NONE)
    book.add(row(3, 4))
    work = book.take()
    assert work is not None
    book.failed(work, 1.0)
    assert book.dropped == 4 and book.take() is None
    assert not book.free(slots(3))[0].any()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_ROWS", 3)
    book = Ledger(N, NONE)
    for i in range(5):
        book.add(row(2 * i, 2, name=i))
    assert (book.waiting, book.dropped) == (3, 4)
    assert book.free(np.arange(10))[0].all()
    assert book.take() is None
    monkeypatch.setattr(ledger, "MAX_BYTES", 100)
    book.add(row(0, 1))
    book.add(row(1, 2))
    assert (book.waiting, book.dropped) == (1, 6)
    monkeypatch.setattr(ledger, "MAX_TOUCHES", 1)
    book.take()
    book.add(row(5, 1))
    book.take()
    book.touch(slots(0, 5), 1.0)
    work = book.take()
    assert work is not None and work.batch.touches == [(0, 1.0)]


def test_a_batch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "ROWS_PER_BATCH", 2)
    book = Ledger(N, NONE)
    for i in range(5):
        book.add(row(2 * i, 2, name=i))
    book.free(slots(9))
    taken = []
    while work := book.take():
        taken.append([(r.slot, len(r.stretch)) for r in work.batch.adds])
        assert (book.due < math.inf) == (len(taken) < 3)
    assert taken == [[(0, 2), (2, 2)], [(4, 2), (6, 2)], [(8, 1)]]


def test_a_touch_is_one_per_row() -> None:
    book = Ledger(N, np.array([[0, 4], [4, 3], [20, 5]]))
    book.touch(slots(0, 1, 2, 3, 4, 5, 6, 10, 11, 20, 21, 23, 24), 5.0)
    work = book.take()
    assert work is not None and work.batch.touches == [(0, 5.0), (4, 5.0), (20, 5.0), (23, 5.0)]
    book.touch(slots(10), 5.0)
    assert book.due == math.inf and book.take() is None


def test_dues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.store.ledger.time.monotonic", lambda: 100.0)
    book = Ledger(N, np.array([[0, 4]]))
    assert book.touch(slots(0), 1.0) == 100.0 + ledger.TOUCH_S
    assert book.add(row(10, 2)) == 100.0 + ledger.COMMIT_S
    assert book.hurry() == 100.0 + ledger.COMMIT_S, "nobody waits for a row"
    assert book.free(slots(1))[1] == 100.0 + ledger.COMMIT_S
    assert book.hurry() == 100.0 + ledger.HURRY_S


def test_emptied_frees_everything() -> None:
    book = Ledger(N, np.array([[0, 4]]))
    book.add(row(10, 2))
    book.free(slots(0, 1))
    book.forget()
    assert book.emptied().tolist() == [0, 1]
    assert book.take() is None and book.free(np.arange(N))[0].all()


def test_nothing_is_taken_while_the_slab_is_replaced() -> None:
    book = Ledger(N, NONE)
    book.add(row(10, 2))
    book.suspend()
    book.add(row(20, 2))
    assert book.take() is None and book.dropped == 2
    book.resume()
    book.add(row(20, 2))
    assert book.take() is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_random_life(seed: int) -> None:
    """Free slots are named by no row, ever; owned ones by the right row, or by none that waits."""
    rng = random.Random(seed)
    book = Ledger(N, NONE)
    free, withheld, owned = set(range(N)), set[int](), dict[int, bytes | None]()
    rows: dict[int, bytes] = {}
    for step in range(400):
        what = rng.choice(["record", "record", "free", "commit", "fail", "half"])
        if what == "record" and free:
            start = rng.choice(sorted(free))
            n = next((k for k in range(1, 6) if start + k not in free), 6)
            added = row(start, n, name=step)
            book.add(added)
            free -= set(range(start, start + n))
            owned.update({start + i: key.tobytes() for i, key in enumerate(added.stretch.keys)})
        elif what == "free" and owned:
            gone = sorted(rng.sample(sorted(owned), rng.randint(1, len(owned))))
            now, _ = book.free(slots(*gone))
            for slot, clear in zip(gone, now.tolist(), strict=True):
                del owned[slot]
                (free if clear else withheld).add(slot)
        elif work := book.take():
            if what == "half":
                work.batch.adds = work.batch.adds[:1]
            if what != "fail":
                applied(rows, work.batch)
            if what == "commit":
                book.committed(work.freed)
                withheld -= set(work.freed.tolist())
                free |= set(work.freed.tolist())
            else:
                book.failed(work, 0.0)
        assert not free & rows.keys(), "a row names a free slot"
        assert all(owned[slot] == key for slot, key in rows.items() if slot in owned)
        assert len(free) + len(withheld) + len(owned) == N
    while work := book.take():
        applied(rows, work.batch)
        book.committed(work.freed)
    assert rows.keys() <= owned.keys()
