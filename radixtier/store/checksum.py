"""Checksums of page images.

Owns nothing. Any thread. Law: ``xxh3_64`` over the page image, seeded with the first eight bytes of the
page's key digest, so that intact bytes stored under another identity fail as well. `xxhash` releases the GIL
for pieces over 64 KiB and keeps it for smaller ones, where handing it over would cost more than the hashing.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash


def page_checksum(parts: Sequence[memoryview], seed: int) -> int:
    """Return the 64-bit checksum of the concatenation of ``parts``; ``seed`` in ``0 .. 2**64 - 1``."""
    state = xxhash.xxh3_64(seed=seed)
    for part in parts:
        state.update(part)
    return state.intdigest()
