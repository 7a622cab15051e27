"""Tokens of a row as bytes: what was put in comes out, in bounds, and what was not written is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.identity import narrow
from radixtier.store.row_tokens import WIDE_PER_PAGE, decode_tokens, encode_tokens, token_bytes

PAGES, PAGE_TOKENS = 3, 4
IMAGE = [2**62 + number for number in range(4)]


@given(st.lists(st.sampled_from([0, 1, 2**31 - 1, 2**31, -1, -(2**31), *IMAGE]), min_size=12, max_size=12))
def test_tokens_come_back(tokens: list[int]) -> None:
    array = narrow(tokens).reshape(PAGES, PAGE_TOKENS)
    data = encode_tokens(array)
    assert data is not None
    least, most = token_bytes(PAGE_TOKENS)
    assert PAGES * least <= len(data) <= PAGES * most
    back = decode_tokens(data, PAGES, PAGE_TOKENS)
    assert back is not None and np.array_equal(back, array)


def test_tokens_of_text_take_four_bytes() -> None:
    array = narrow(range(12)).reshape(PAGES, PAGE_TOKENS)
    data = encode_tokens(array)
    assert array.dtype == np.int32 and data == np.arange(12, dtype="<i4").tobytes()


def test_too_many_wide_numbers_have_no_encoding() -> None:
    pages = 2
    tokens = 2**40 + np.arange(pages * 16, dtype=np.int64).reshape(pages, 16)
    assert encode_tokens(tokens) is None
    tokens.reshape(-1)[WIDE_PER_PAGE * pages :] = 0
    assert encode_tokens(tokens) is not None


@pytest.mark.parametrize(
    "behind",
    [b"123", b"12345678", np.array([7, 8, 9], dtype="<i8").tobytes()[:-1]],
    ids=["no number", "nothing refers to it", "half a number"],
)
def test_what_was_not_written_is_nothing(behind: bytes) -> None:
    assert decode_tokens(np.arange(12, dtype="<i4").tobytes() + behind, PAGES, PAGE_TOKENS) is None


def test_a_reference_to_nothing_is_nothing() -> None:
    codes = np.zeros(12, dtype="<i4")
    codes[3] = -3
    two = np.array([2**40, 2**41], dtype="<i8").tobytes()
    assert decode_tokens(codes.tobytes() + two, PAGES, PAGE_TOKENS) is None
