"""The first block of a slab: whose pages it holds.

Owns the format. Invariant: what :meth:`Header.unpack` returns was packed by this format version, whole. The random id
ties the slab to the database that names its slots: with another id the rows there are worthless. Pure; any thread.

Layout of the block: magic, format version (u16), length of the text (u32), the header as JSON, zeros, and the xxh3_64
of all that in the last 8 bytes; little-endian.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
from pathlib import Path
from typing import NamedTuple

import xxhash

from radixtier.footprint import BLOCK, slot_bytes
from radixtier.identity import StoreIdentity

MAGIC = b"RADIXTIER\0"
FORMAT = 1
_FRONT = struct.Struct("<10sHI")
_SUM = struct.Struct("<Q")


class HeaderError(ValueError):
    """The block holds no header that this release can read; the message says why."""


class Header(NamedTuple):
    """What a slab is valid for."""

    identity: str
    """`StoreIdentity.to_json`, or empty for a store that nothing outlives."""
    page_bytes: int
    page_tokens: int
    slot_bytes: int
    store_id: str
    """16 random bytes in hex."""

    @classmethod
    def fresh(cls, identity: StoreIdentity | None, page_bytes: int, page_tokens: int) -> Header:
        """Return a header with a new id."""
        text = "" if identity is None else identity.to_json()
        return cls(text, page_bytes, page_tokens, slot_bytes(page_bytes), _new_id())

    def renewed(self) -> Header:
        """Return the same header with a new id."""
        return self._replace(store_id=_new_id())

    def pack(self) -> bytes:
        """Return the block."""
        text = json.dumps(self._asdict(), sort_keys=True).encode()
        front = _FRONT.pack(MAGIC, FORMAT, len(text)) + text
        if len(front) > BLOCK - _SUM.size:
            raise HeaderError(f"an identity of {len(self.identity)} characters does not fit into a block")
        block = front.ljust(BLOCK - _SUM.size, b"\0")
        return block + _SUM.pack(xxhash.xxh3_64_intdigest(block))

    @classmethod
    def unpack(cls, block: bytes) -> Header:
        """Read a block back.

        Raises
        ------
        HeaderError
            For anything else than :meth:`pack` writes.
        """
        if len(block) != BLOCK or not block.startswith(MAGIC):
            raise HeaderError("is no slab of radixtier")
        _, version, length = _FRONT.unpack_from(block)
        if version != FORMAT:
            raise HeaderError(f"has format {version} instead of {FORMAT}")
        if _SUM.unpack_from(block, BLOCK - _SUM.size)[0] != xxhash.xxh3_64_intdigest(block[: -_SUM.size]):
            raise HeaderError("has a damaged header")
        try:
            return cls(**json.loads(block[_FRONT.size : _FRONT.size + length]))
        except (ValueError, TypeError) as e:
            raise HeaderError(f"has an unknown header: {e}") from e

    def differences(self, other: Header) -> list[str]:
        """Name what another slab is for, where that differs, and what this one is for."""
        found: list[str] = []
        if self.identity != other.identity:
            with contextlib.suppress(ValueError, TypeError):
                found = StoreIdentity.from_json(self.identity).differences(StoreIdentity.from_json(other.identity))
            found = found or ["identity"]  # of a release that named other things
        for name in ("page_bytes", "page_tokens", "slot_bytes"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name} {theirs} instead of {mine}")
        return found


def _new_id() -> str:
    return secrets.token_hex(16)


def read_header(path: Path) -> Header:
    """Read the header of a slab file; raises `OSError` or :class:`HeaderError`, and follows no link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return Header.unpack(os.pread(fd, BLOCK, 0))
    finally:
        os.close(fd)
