from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from radixtier.store.checksum import page_checksum


@given(
    parts=st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
)
def test_checksum_is_xxh3_of_the_concatenation(parts: list[bytes], seed: int) -> None:
    expected = xxhash.xxh3_64_intdigest(b"".join(parts), seed=seed)
    assert page_checksum([memoryview(part) for part in parts], seed) == expected


def test_another_identity_has_another_checksum() -> None:
    page = [memoryview(bytes(range(256)) * 16)]
    assert len({page_checksum(page, seed) for seed in (0, 1, 2**63, 2**64 - 1)}) == 4


def test_known_value() -> None:
    """The stored format must not drift with the library."""
    assert page_checksum([memoryview(b"radix"), memoryview(b"tier")], 42) == KNOWN


KNOWN = 0xFEE2153A53428728
