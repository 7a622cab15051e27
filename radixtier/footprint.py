"""How many bytes a store takes on disk, and how many slots fit into a given number of them.

Owns the law; nothing else may compute it. Per directory: a slab file (two blocks, then the slots) and a journal (a
SQLite database, its write-ahead log and shared index, and a lock file of one block). Invariant: a store never takes
more than `footprint` of its slots. Units: bytes. Pure functions; any thread.
"""

from __future__ import annotations

BLOCK = 4096
"""Bytes: alignment of address, offset and length that O_DIRECT accepts on every common device."""

HEADER_BYTES = 2 * BLOCK
"""In front of the slots: the header, and a block for test writes."""

_ROW_BYTES = 256
"""Of a row that names a single page, beside its page: keys, numbers, the b-tree's share."""

_LOG_BYTES = 16 << 20


def slot_bytes(page_bytes: int) -> int:
    """Return the bytes of the slot that holds a page: rounded up to 4 KiB."""
    return -(-page_bytes // BLOCK) * BLOCK


def database_bytes(n_slots: int, page_tokens: int) -> int:
    """Return the most that the database of one directory may take.

    Per slot twice its tokens (int32), key (16) and checksum (8), for what b-trees and overflow pages leave empty, and
    for the few numbers that stand for images (see `radixtier.store.row_tokens`); and a row of its own.
    """
    raw = (256 << 10) + n_slots * (2 * (4 * page_tokens + 24) + _ROW_BYTES)
    return -(-raw // BLOCK) * BLOCK


def log_bytes(n_slots: int, page_tokens: int) -> int:
    """Return the most that the write-ahead log and the shared index of one directory may take."""
    return min(_LOG_BYTES, database_bytes(n_slots, page_tokens))


def footprint(n_slots: int, page_bytes: int, page_tokens: int, directories: int = 1) -> int:
    """Return the most that a store of ``n_slots`` slots takes in all its directories."""
    if n_slots == 0:
        return 0
    each = -(-n_slots // directories)
    one = HEADER_BYTES + each * slot_bytes(page_bytes) + BLOCK
    return directories * (one + database_bytes(each, page_tokens) + log_bytes(each, page_tokens))


def slots_for(capacity: int, page_bytes: int, page_tokens: int, directories: int = 1) -> int:
    """Return the slots, a multiple of ``directories``, of the largest store that takes at most ``capacity`` bytes."""
    low, high = 0, capacity // slot_bytes(page_bytes) // directories + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = footprint(middle * directories, page_bytes, page_tokens, directories) <= capacity
        low, high = (middle, high) if fits else (low, middle)
    return low * directories
