"""Rows whose content is a function of a seed, and journals under the caps that the footprint allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from radixtier.footprint import database_bytes, log_bytes
from radixtier.identity import Space, Stretch, namespace_seed
from radixtier.store.journal import Journal, Row

PAGE_TOKENS = 4
STORE = "0123456789abcdef" * 2

Page = tuple[bytes, tuple[int, ...], int, Space, bytes]
"""Key, tokens, checksum, namespace and key in front of one page."""


def opened(path: Path, n_slots: int, page_tokens: int = PAGE_TOKENS, **options: Any) -> Journal:
    """Open a journal under the caps of a store of ``n_slots``."""
    return Journal.open(
        path,
        **{
            "store_id": STORE,
            "n_slots": n_slots,
            "page_tokens": page_tokens,
            "max_bytes": database_bytes(n_slots, page_tokens),
            "log_bytes": log_bytes(n_slots, page_tokens),
            **options,
        },
    )


def row(
    slot: int,
    pages: int,
    seed: int = 0,
    *,
    front: bytes | None = None,
    space: Space = Space(),  # noqa: B008
    used: float = 1.0,
    page_tokens: int = PAGE_TOKENS,
) -> Row:
    """Return an intact row, at the root unless ``front`` is given."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 200_000, pages * page_tokens)
    stretch = Stretch.chained(space, namespace_seed(*space) if front is None else front, tokens, page_tokens)
    return Row(slot, stretch, rng.integers(0, 2**64, pages, dtype=np.uint64), used)


def after(parent: Row, slot: int, pages: int, seed: int = 0, *, at: int | None = None, used: float = 1.0) -> Row:
    """Return a row that hangs behind page ``at - 1`` of another, by default its last."""
    front = parent.stretch.keys[(len(parent.stretch) if at is None else at) - 1].tobytes()
    tokens = parent.stretch.tokens.shape[1]
    return row(slot, pages, seed, front=front, space=parent.stretch.space, used=used, page_tokens=tokens)


def pages_of(rows: list[Row]) -> dict[int, Page]:
    """Return all pages of the rows by their slots."""
    found: dict[int, Page] = {}
    for each in rows:
        stretch = each.stretch
        for i in range(len(stretch)):
            part = stretch.part(i, i + 1)
            tokens = tuple(part.tokens[0].tolist())
            assert each.slot + i not in found, "a slot has two pages"
            found[each.slot + i] = (
                part.keys.tobytes(), tokens, int(each.checksums[i]), stretch.space, part.front
            )  # fmt: skip
    return found


def heat_of(rows: list[Row]) -> dict[int, float]:
    """Return when the page of each slot was used."""
    return {each.slot + i: each.used for each in rows for i in range(len(each.stretch))}


def all_rows(journal: Any) -> list[Row]:
    """Return everything in a journal, and check its views against each other."""
    extents = journal.extents()
    rows: list[Row] = journal.rows(extents[:, 0].tolist())
    assert [(each.slot, len(each.stretch)) for each in rows] == [tuple(each) for each in extents.tolist()]
    assert all(each.stretch.intact() for each in rows)
    index, spaces = journal.index(), journal.spaces()
    assert index.spaces == spaces and set(spaces.values()) == {each.stretch.space for each in rows}
    assert np.array_equal(np.stack([index.slot, index.pages], axis=1), extents)
    for i, each in enumerate(rows):
        assert index.used[i] == each.used
        assert spaces[int(index.space[i])] == each.stretch.space
        assert index.front[i].tobytes() == each.stretch.front
        assert np.array_equal(index.keys[index.offsets[i] : index.offsets[i + 1]], each.stretch.keys)
    return rows


def sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of the database, and of its log and shared index."""
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    return path.stat().st_size, sum(each.stat().st_size for each in beside if each.exists())


def check_sizes(path: Path, n_slots: int, page_tokens: int = PAGE_TOKENS) -> None:
    database, log = sizes(path)
    assert database <= database_bytes(n_slots, page_tokens)
    assert log <= log_bytes(n_slots, page_tokens)
