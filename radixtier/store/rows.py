"""Rows of the journal: what they are, and how they are written into a database.

Owns the format of a row. Invariant: a row that `decode` returns is byte for byte the row that `encode` was given,
since a seal over all of it (but its heat, which changes alone) is checked; numbers in blobs are little-endian on every
machine. Pure functions; any thread.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from radixtier.identity import DIGEST_BYTES, Space, Stretch
from radixtier.store.row_tokens import decode_tokens, encode_tokens, token_bytes

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint64]

COLUMNS = "slot, pages, space, used, front, seal, keys, checksums, tokens"
"""In the order in which they are stored: what linking needs first, so that it reads no tokens."""


class JournalError(Exception):
    """The journal cannot do what it was asked for.

    Attributes
    ----------
    full : bool
        It has no room left: in its own cap, or in the file system.
    freed : bool
        Of a failed `Journal.apply` with ``full``: all frees are durable, none of the adds is there.
    corrupt : bool
        The database is damaged: only `Journal.clear` brings the journal back.
    """

    def __init__(self, message: str, *, full: bool = False, freed: bool = False, corrupt: bool = False) -> None:
        super().__init__(message)
        self.full = full
        self.freed = freed
        self.corrupt = corrupt


class Row(NamedTuple):
    """Pages of one path in consecutive slots of one drive."""

    slot: int
    """Of the first page, local to the drive."""
    stretch: Stretch
    checksums: Sums
    """Of the page images, ``[pages]``."""
    used: float
    """Last use, in unix seconds."""
    weighted: Sums | None = None
    """Weighted sums of the page images, ``[pages]``, where they were computed."""

    def part(self, lo: int, hi: int) -> Row:
        """Return the row of pages ``lo .. hi - 1``."""
        weighted = None if self.weighted is None else self.weighted[lo:hi]
        return Row(self.slot + lo, self.stretch.part(lo, hi), self.checksums[lo:hi], self.used, weighted)


@dataclass
class Batch:
    """Changes that `Journal.apply` makes together, in this order: frees, adds, touches."""

    adds: list[Row] = field(default_factory=list)
    frees: list[tuple[int, int]] = field(default_factory=list)
    """First slot and number of slots; rows are cut where the ranges end."""
    touches: list[tuple[int, float]] = field(default_factory=list)
    """A slot anywhere in a row, and when it was used in unix seconds; slots without a row are passed over."""

    def __bool__(self) -> bool:
        return bool(self.adds or self.frees or self.touches)


class Index(NamedTuple):
    """All rows in slot order, without tokens and checksums: what linking needs.

    Row ``i`` has the keys ``keys[offsets[i] : offsets[i + 1]]``.
    """

    slot: Ints
    pages: Ints
    used: npt.NDArray[np.float64]
    space: Ints
    """Number of the namespace, a key of `spaces`."""
    front: Keys
    """``[rows, 16]``"""
    keys: Keys
    """``[pages of all rows, 16]``"""
    offsets: Ints
    """``[rows + 1]``"""
    spaces: dict[int, Space]
    """The namespaces by their numbers."""

    def select(self, chosen: npt.NDArray[np.bool_]) -> Index:
        """Return the chosen rows."""
        if chosen.all():
            return self
        pages = self.pages[chosen]
        return Index(
            self.slot[chosen], pages, self.used[chosen], self.space[chosen], self.front[chosen],
            self.keys[np.repeat(chosen, self.pages)], offsets_of(pages), self.spaces,
        )  # fmt: skip


def no_rows() -> Index:
    """Return the index of an empty journal."""
    ints = np.empty(0, dtype=np.int64)
    keys = np.empty((0, DIGEST_BYTES), dtype=np.uint8)
    return Index(ints, ints, np.empty(0), ints, keys, keys, offsets_of(ints), {})


def offsets_of(pages: Ints) -> Ints:
    """Return where the pages of each row start in a concatenation, and its end: ``[rows + 1]``."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(pages, dtype=np.int64)])


def valid(n_slots: int, page_tokens: int) -> str:
    """Return the SQL condition under which a row has the right types and sizes and lies within the slots."""
    sizes = {
        "used": "8",
        "front": f"{DIGEST_BYTES}",
        "seal": "8",
        "keys": f"{DIGEST_BYTES} * pages",
    }
    numbers = f"typeof(pages) = 'integer' AND typeof(space) = 'integer' AND pages BETWEEN 1 AND {n_slots}"
    blobs = " AND ".join(f"typeof({name}) = 'blob' AND length({name}) = {size}" for name, size in sizes.items())
    least, most = token_bytes(page_tokens)
    tokens = f"typeof(tokens) = 'blob' AND length(tokens) BETWEEN {least} * pages AND {most} * pages"
    # The weighted sums, where there are any, follow the checksums.
    sums = "typeof(checksums) = 'blob' AND length(checksums) IN (8 * pages, 16 * pages)"
    return f"({numbers} AND slot >= 0 AND slot + pages <= {n_slots} AND {blobs} AND {sums} AND {tokens})"


def row_bytes(pages: int, page_tokens: int) -> int:
    """Return the most bytes of a row in the database, without what its b-tree adds."""
    return pages * (token_bytes(page_tokens)[1] + DIGEST_BYTES + 16) + 2 * DIGEST_BYTES + 48


def encode(row: Row, space: int) -> tuple[Any, ...] | None:
    """Return the values of `COLUMNS`, None for a row whose tokens have no encoding."""
    keys = np.ascontiguousarray(row.stretch.keys, dtype=np.uint8).tobytes()
    checksums = np.ascontiguousarray(row.checksums, dtype="<u8").tobytes()
    if row.weighted is not None:
        checksums += np.ascontiguousarray(row.weighted, dtype="<u8").tobytes()
    tokens = encode_tokens(row.stretch.tokens)
    if tokens is None:
        return None
    pages = len(row.stretch)
    seal = _seal(row.slot, pages, space, row.stretch.front, keys, checksums, tokens)
    return row.slot, pages, space, encode_used(row.used), row.stretch.front, seal, keys, checksums, tokens


def encode_used(used: float) -> bytes:
    """Return the time as a blob: always of one size, so that a touch is written in place."""
    return struct.pack("<d", _finite(used))


def decode(values: tuple[Any, ...], spaces: dict[int, Space], page_tokens: int) -> Row | None:
    """Return the row, or None when its seal or its namespace is wrong; types and sizes must be right (`valid`)."""
    slot, pages, space, used, front, seal, keys, checksums, tokens = values
    if space not in spaces or seal != _seal(slot, pages, space, front, keys, checksums, tokens):
        return None
    known = decode_tokens(tokens, pages, page_tokens)
    if known is None:
        return None
    stretch = Stretch(spaces[space], front, np.frombuffer(keys, dtype=np.uint8).reshape(pages, DIGEST_BYTES), known)
    sums = np.frombuffer(checksums, dtype="<u8")
    weighted = sums[pages:] if len(sums) > pages else None
    return Row(slot, stretch, sums[:pages], _finite(*struct.unpack("<d", used)), weighted)


def decode_used(blobs: Iterable[bytes]) -> npt.NDArray[np.float64]:
    """Return times in unix seconds; what is not a finite number is the distant past."""
    used = np.frombuffer(b"".join(blobs), dtype="<f8")
    return np.where(np.isfinite(used), used, 0.0)


def _finite(used: float) -> float:
    return used if math.isfinite(used) else 0.0


def _seal(slot: int, pages: int, space: int, front: bytes, keys: bytes, checksums: bytes, tokens: bytes) -> bytes:
    state = xxhash.xxh3_64(struct.pack("<qqq", slot, pages, space))
    for part in (front, keys, checksums, tokens):
        state.update(part)
    return state.digest()


def encode_text(text: str | None) -> bytes | None:
    """Return a part of a namespace as a blob, so that every text has one, lone surrogates included."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decode_space(extra_key: Any, cache_salt: Any) -> Space | None:
    """Return the namespace of two blobs, or None when they are none."""
    parts: list[str | None] = []
    for blob in (extra_key, cache_salt):
        if not isinstance(blob, bytes | None):
            return None
        try:
            parts.append(None if blob is None else blob.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None
    return Space(*parts)
