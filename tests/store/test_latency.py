"""What the monitor learns of transfers and of the journal: every transfer that went well once, and how old rows are."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import numpy as np
import pytest
from store_rig import Rig, path_of

from radixtier.store import ledger
from radixtier.store.journal import Row
from radixtier.store.latency import Latencies
from radixtier.store.ledger import Ledger

NO_ROWS = np.empty((0, 2), dtype=np.int64)


def test_observations_are_taken_once_in_their_order() -> None:
    latencies = Latencies()
    latencies.add("read", 0.5, 4096)
    latencies.add("write", 1.5, 8192)
    assert latencies.take() == [("read", 0.5, 4096), ("write", 1.5, 8192)]
    assert latencies.take() == []


def test_the_oldest_go_when_nobody_takes_them() -> None:
    latencies = Latencies(most=3)
    for nbytes in range(10):
        latencies.add("read", 0.0, nbytes)
    assert [nbytes for _, _, nbytes in latencies.take()] == [7, 8, 9]


def test_threads_add_while_another_takes() -> None:
    latencies, taken = Latencies(), []

    def work() -> None:
        for _ in range(1000):
            latencies.add("read", 0.0, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += latencies.take()
    assert len(taken + latencies.take()) == 4000


def test_every_transfer_that_went_well_is_observed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pages_per_transfer=2, threads=1)
    keys, where, sums = rig.stored(4)
    found = rig.store.take_latencies()
    assert [(kind, nbytes) for kind, _, nbytes in found] == [("write", 2 * rig.store.slot_bytes)] * 2
    assert all(seconds > 0 for _, seconds, _ in found)
    assert rig.read(keys, where, sums).ok.all()
    assert [(kind, nbytes) for kind, _, nbytes in rig.store.take_latencies()] == [
        ("read", 2 * rig.store.slot_bytes)
    ] * 2


def test_transfers_that_failed_say_nothing_of_the_drive(rig: Rig) -> None:
    keys, where, sums = rig.stored(3)
    rig.store.take_latencies()
    rig.engine.error("read", errno.EIO)
    assert not rig.read(keys, where, sums).ok.any()
    assert rig.store.take_latencies() == []


class Clock:
    """Stands in for the module ``time``."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ledger, "time", clock)
    return clock


def row(slot: int, name: int = 0) -> Row:
    return Row(slot, path_of(1, name=name), np.zeros(1, dtype=np.uint64), 1000.0)


def test_the_journal_lags_by_the_age_of_its_oldest_row(clock: Clock) -> None:
    book = Ledger(40, NO_ROWS)
    assert book.lag() == 0.0
    book.add(row(1))
    clock.now += 2
    book.add(row(2, name=1))
    clock.now += 3
    assert book.lag() == 5.0
    work = book.take()
    assert work is not None
    clock.now += 1
    assert book.lag() == 6.0, "what is being committed is not durable yet"
    book.add(row(3, name=2))
    clock.now += 1
    book.committed(work.freed)
    assert book.lag() == 1.0


@pytest.mark.parametrize("end", ["failed", "forgotten"])
def test_rows_that_are_given_up_make_no_lag(clock: Clock, end: str) -> None:
    book = Ledger(40, NO_ROWS)
    book.add(row(1))
    clock.now += 9
    if end == "failed":
        work = book.take()
        assert work is not None
        book.failed(work, 1.0)
    else:
        book.forget()
    assert book.lag() == 0.0


def test_health_tells_the_kind_of_trouble_and_a_sealed_store_why(rig: Rig) -> None:
    assert rig.store.sealed_because is None and rig.store.stats()["journal_lag_seconds"] >= 0
    (drive,) = rig.store.health()
    assert drive.kind is None
    slots = rig.store.alloc(1)
    assert slots is not None
    rig.engine.error("write", errno.EIO)
    assert not rig.write(["key"], slots).ok.any()
    (drive,) = rig.store.health()
    assert drive.kind == "io" and drive.reason is not None
    rig.engine.clear()
    rig.store.seal("weights were updated")
    rig.store.seal("again")
    assert rig.store.sealed_because == "weights were updated"
