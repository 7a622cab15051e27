"""The store of one rank among several: what one cannot do is done on none, and nothing moves where no place is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_store import CORRUPT, ERROR, OK, PAGE_BYTES
from ranks_play import RankStore
from ranks_rig import Ranks

from radixtier.ranks import AgreedStore
from radixtier.ranks.agreed_store import NOWHERE
from radixtier.store.jobs import JobDone

FRAMES = 8


class Stores:
    """An agreed store per rank, over fake ones with so many slots each."""

    def __init__(self, ranks: Ranks, *slots: int) -> None:
        self.ranks = ranks
        self.fakes = [RankStore(n, np.zeros((FRAMES, PAGE_BYTES), np.uint8), seed=rank) for rank, n in enumerate(slots)]
        self.agreed: list[Any] = [
            AgreedStore(fake, agreement)  # type: ignore[arg-type]
            for fake, agreement in zip(self.fakes, ranks.agreements, strict=True)
        ]

    def poll(self) -> list[list[JobDone]]:
        """Agree, and let every rank poll."""
        self.ranks.ride()
        return [store.poll() for store in self.agreed]

    def write(self, n: int, tag: int = 0) -> list[np.ndarray[Any, Any]]:
        """Write ``n`` pages; returns the slots that each rank took for them."""
        taken = []
        for store in self.agreed:
            slots = store.alloc(n)
            assert slots is not None
            store.write(np.arange(n), slots, np.arange(n, dtype=np.uint64), tag)
            taken.append(slots)
        return taken

    def stored(self, n: int) -> tuple[list[np.ndarray[Any, Any]], list[Any]]:
        """Pages that were written well: their slots and checksums."""
        self.ranks.ride()
        slots = self.write(n)
        for fake in self.fakes:
            fake.finish_all()
        return slots, [done[0].checksums for done in self.poll()]


@pytest.fixture
def make_stores(make_ranks: Callable[[int], Ranks]) -> Callable[..., Stores]:
    return lambda *slots: Stores(make_ranks(len(slots)), *slots)


def test_room_is_what_every_rank_has(make_stores: Any) -> None:
    stores = make_stores(9, 4, 7)
    assert [store.room() for store in stores.agreed] == [(0, 0)] * 3, "nobody knows yet"
    assert [store.alloc(1) for store in stores.agreed] == [None] * 3
    stores.ranks.ride()
    assert [store.room() for store in stores.agreed] == [(4, 0)] * 3
    assert [store.alloc(5) for store in stores.agreed] == [None] * 3
    assert [fake.hurried for fake in stores.fakes] == [2] * 3, "slots that are being freed come back soon"
    assert [len(store.alloc(3)) for store in stores.agreed] == [3] * 3
    assert [store.room() for store in stores.agreed] == [(1, 0)] * 3
    assert [store.alloc(2) for store in stores.agreed] == [None] * 3
    stores.ranks.ride()
    assert [store.room() for store in stores.agreed] == [(1, 0)] * 3


def test_pages_are_taken_where_every_drive_takes_them(make_stores: Any) -> None:
    stores = make_stores(4, 4)
    assert [store.writable for store in stores.agreed] == [True, True]
    stores.fakes[1].writable = False
    assert [store.writable for store in stores.agreed] == [True, True], "as of the last reduction"
    stores.ranks.ride()
    assert [store.writable for store in stores.agreed] == [False, False]
    stores.fakes[1].writable = True
    stores.ranks.ride()
    assert [store.writable for store in stores.agreed] == [True, True]


def test_a_write_that_one_rank_has_no_slots_for_fails_on_all_and_touches_none_there(make_stores: Any) -> None:
    stores = make_stores(4, 4)
    stores.ranks.ride()
    stores.fakes[1].writable = False  # after all agreed on the room
    one, other = stores.write(3)
    assert (one >= 0).all() and other.tolist() == [NOWHERE] * 3
    assert not stores.fakes[1].jobs and stores.fakes[1].free_slots == 4
    assert stores.poll() == [[], []], "the other rank is still writing"
    stores.fakes[0].finish_all()
    stores.poll()
    done = [mine[0] for mine in stores.poll()]
    assert [(each.ok.any(), each.corrupt.any(), each.nbytes, each.cancelled) for each in done] == [
        (False, False, 0, False)
    ] * 2
    assert done[0].error == "another rank could not" and done[1].error == "no slot is free on this rank"
    for store, slots in zip(stores.agreed, (one, other), strict=True):
        store.touch(slots, 1000.0)
        store.free(slots)
    assert stores.fakes[0].touched == one.tolist() and stores.fakes[1].touched == []
    assert [(fake.free_slots, fake.used_slots) for fake in stores.fakes] == [(4, 0)] * 2


@pytest.mark.parametrize("fate", [ERROR, CORRUPT])
def test_a_page_that_one_rank_cannot_read_is_lost_on_all(make_stores: Any, fate: str) -> None:
    stores = make_stores(4, 4, 4)
    slots, sums = stores.stored(2)
    for rank, (store, fake) in enumerate(zip(stores.agreed, stores.fakes, strict=True)):
        store.read(np.arange(2), slots[rank], np.arange(2, dtype=np.uint64), sums[rank], 1)
        fake.finish(1, [OK, fate] if rank == 2 else [])
    assert stores.poll() == [[], [], []], "what became of each page comes with the next reduction"
    done = [mine[0] for mine in stores.poll()]
    assert [each.ok.tolist() for each in done] == [[True, False]] * 3
    assert [each.corrupt.tolist() for each in done] == [[False, fate == CORRUPT]] * 3
    assert [each.nbytes for each in done] == [PAGE_BYTES] * 3
    assert [each.slots.tolist() for each in done] == [each.tolist() for each in slots], "slots stay those of the rank"
    assert len({(each.queue_seconds, each.service_seconds) for each in done}) == 1


def test_what_one_rank_cancelled_in_time_counts_as_cancelled(make_stores: Any) -> None:
    stores = make_stores(4, 4)
    slots, sums = stores.stored(3)
    for rank, (store, fake) in enumerate(zip(stores.agreed, stores.fakes, strict=True)):
        store.read(np.arange(3), slots[rank], np.arange(3, dtype=np.uint64), sums[rank], 1)
        fake.start(1, 3 if rank == 0 else 1)
        store.cancel(1)
        fake.finish(1)
    stores.poll()
    done = [mine[0] for mine in stores.poll()]
    assert [each.ok.tolist() for each in done] == [[True, False, False]] * 2
    assert [(each.cancelled, each.corrupt.any()) for each in done] == [(True, False)] * 2


def test_checks_are_agreed_like_reads(make_stores: Any) -> None:
    stores = make_stores(4, 4)
    slots, sums = stores.stored(2)
    for rank, (store, fake) in enumerate(zip(stores.agreed, stores.fakes, strict=True)):
        store.verify(slots[rank], np.arange(2, dtype=np.uint64), sums[rank], 1)
        fake.finish(1, [CORRUPT] if rank == 0 else [])
    stores.poll()
    assert [mine[0].corrupt.tolist() for mine in stores.poll()] == [[True, False]] * 2


def test_a_rank_that_left_goes_by_its_own_store(make_stores: Any) -> None:
    stores = make_stores(6, 3)
    stores.ranks.ride()
    one, other = stores.agreed
    [slots, _] = stores.write(2)
    stores.ranks.agreements[0].leave()
    assert one.room() == (4, 0) and one.poll() == []
    assert len(one.alloc(4)) == 4, "more than the other rank has"
    stores.fakes[0].writable = False
    assert not one.writable and other.writable
    stores.fakes[0].finish_all()
    [done] = one.poll()
    assert done.ok.tolist() == [True, True] and done.slots.tolist() == slots.tolist() and done.error is None
    assert one.poll() == [] and other.poll() == []


def test_what_was_agreed_and_not_polled_is_told_once_to_a_rank_that_left(make_stores: Any) -> None:
    stores = make_stores(4, 4)
    stores.ranks.ride()
    stores.write(2)
    for fake in stores.fakes:
        fake.finish_all()
    stores.ranks.ride()
    for store, agreement in zip(stores.agreed, stores.ranks.agreements, strict=True):
        agreement.leave()
        assert [done.tag for done in store.poll()] == [0] and store.poll() == []


def test_anything_else_the_store_itself_answers(make_stores: Any) -> None:
    stores = make_stores(5, 3)
    assert [(store.n_slots, store.free_slots) for store in stores.agreed] == [(5, 5), (3, 3)]
    with pytest.raises(AttributeError):
        stores.agreed[0].no_such_thing  # noqa: B018
