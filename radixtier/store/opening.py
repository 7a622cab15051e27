"""Opening the directories of a store: all of them, or none.

Owns nothing: what is open belongs to the returned volumes. Invariant: nothing is deleted before every directory is
ours and locked, and nothing stays open when one cannot be used. One thread, at start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from radixtier.footprint import footprint, slots_for
from radixtier.identity import StoreIdentity
from radixtier.io.engine import Engine
from radixtier.store.header import Header
from radixtier.store.leftovers import reclaim
from radixtier.store.paths import StoreFiles, store_id
from radixtier.store.slab import OTHERS_FLAG, SIZE_FLAG, StoreError, claim, lock, unlock
from radixtier.store.volume import Plan, Volume


def open_volumes(
    directories: Sequence[Path],
    capacity: int,
    page_bytes: int,
    page_tokens: int,
    *,
    identity: StoreIdentity | None,
    engine: Callable[[Path], Engine],
    rank: int,
    ranks: int = 1,
    min_free: int,
    keep_others: bool,
    cleared: Callable[[], None] = lambda: None,
) -> list[Volume]:
    """Open one volume per directory, equally large, together at most ``capacity`` bytes; see `PageStore`.

    What is kept aside counts in equal parts against every rank's capacity, so that all have equally many slots.

    Raises
    ------
    StoreError
        When that is not possible; nothing is then open.
    """
    header = Header.fresh(identity, page_bytes, page_tokens)
    ids = [store_id(identity and dataclasses.replace(identity, tp_rank=each)) for each in range(ranks)]
    ids[rank] = store_id(identity)
    places = [StoreFiles(directory, rank, ids[rank]) for directory in directories]
    with ExitStack() as undo:
        locks: list[int] = []
        for files in places:
            claim(files.directory)
            locks.append(lock(files.directory, rank))
            undo.callback(unlock, locks[-1])
        everyones = ([StoreFiles(directory, each, ids[each]) for each in range(ranks)] for directory in directories)
        aside = -(-sum(reclaim(ours, rank, header, keep_others) for ours in everyones) // ranks)
        cleared()
        n_slots = slots_for(capacity - aside, page_bytes, page_tokens, len(places))
        if not n_slots:
            least = ranks * (footprint(len(places), page_bytes, page_tokens, len(places)) + aside)
            kept = f", {ranks * aside} of which other stores take, or {OTHERS_FLAG} reclaim" if aside else ""
            each = f" on each of {ranks} ranks" if ranks > 1 else ""
            raise StoreError(
                f"{SIZE_FLAG}: {ranks * capacity} bytes do not hold a page of {page_bytes} bytes in each of "
                f"{len(places)} directories{each}: give at least {least}{kept}"
            )
        volumes: list[Volume] = []
        for files, lock_fd in zip(places, locks, strict=True):
            volumes.append(Volume(Plan(files, header, n_slots // len(places), min_free, engine), lock_fd))
            undo.callback(volumes[-1].close_files)
        undo.pop_all()
        return volumes
