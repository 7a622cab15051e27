"""The second checksum: what it notices, that NumPy and torch find the same, and that the format does not drift."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.store.weighted import SEED_FACTOR, seeded, weighted_sum, weights

SEED = 0x0123456789ABCDEF


def page(seed: int = 0, nbytes: int = 4096) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(nbytes))


def of(data: bytes | bytearray, seed: int = SEED) -> int:
    return weighted_sum([memoryview(data)], seed)


@given(words=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), seed=st.integers(0, 2**64 - 1))
def test_it_is_the_law(words: list[int], seed: int) -> None:
    factors = weights(4 * len(words)).tolist()
    expected = (seed * SEED_FACTOR + sum(w * x for w, x in zip(factors, words, strict=True))) % 2**64
    assert of(np.array(words, "<i4").tobytes(), seed) == expected


@given(cuts=st.lists(st.integers(0, 1024), max_size=5))
def test_the_parts_of_a_page_do_not_matter(cuts: list[int]) -> None:
    data, bounds = bytes(page()), [0, *sorted(4 * cut for cut in cuts), 4096]
    parts = [memoryview(data)[lo:hi] for lo, hi in pairwise(bounds)]
    assert weighted_sum(parts, SEED) == of(data)


@pytest.mark.parametrize("bit", range(32))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    for at in (0, 1, 511, 1023):
        changed = page()
        changed[4 * at + bit // 8] ^= 1 << bit % 8
        assert of(changed) != of(page())


@pytest.mark.parametrize("bits", [(31, 31), (63, 63), (0, 0), (15, 31)])
def test_two_flipped_bits_are_noticed(bits: tuple[int, int]) -> None:
    """Sums of 64-bit words would miss two top bits."""
    changed = page()
    for at, bit in zip((64, 2048), bits, strict=True):
        changed[at + bit // 8] ^= 1 << bit % 8
    assert of(changed) != of(page())


@pytest.mark.parametrize("size", [4, 8, 512, 2048])
def test_pieces_that_changed_places_are_noticed(size: int) -> None:
    data = page()
    assert of(data[size : 2 * size] + data[:size] + data[2 * size :]) != of(data)


def test_zeros_torn_and_foreign_pages_are_noticed() -> None:
    data = page()
    torn = data[:2048] + page(1)[2048:]
    assert len({of(each) for each in (data, page(1), torn, bytes(4096))}) == 4
    assert of(data, SEED) != of(data, SEED ^ 1), "another page's identity"


def test_longer_pages_have_the_same_weights_in_front() -> None:
    assert weights(1 << 16)[:1024].tolist() == weights(4096).tolist()
    assert (weights(1 << 16) & 1).all() and len(np.unique(weights(1 << 16))) == 1 << 14


def test_known_value() -> None:
    """What is on disk must be found again by a later release."""
    assert of(bytes(range(256)) * 16, 42) == KNOWN


def test_torch_finds_the_same() -> None:
    torch = pytest.importorskip("torch")
    from radixtier.sglang.landing import row_sums

    pages = [page(seed) for seed in range(3)]
    words = torch.tensor(np.stack([np.frombuffer(each, "<i4") for each in pages]))
    seeds = np.array([1, 2**63, 2**64 - 1], np.uint64)
    found = seeded(row_sums(words, torch.tensor(weights(4096))).numpy(), seeds)
    assert found.tolist() == [of(each, seed) for each, seed in zip(pages, seeds.tolist(), strict=True)]


KNOWN = 0xD13BCCAA5CA562DA
