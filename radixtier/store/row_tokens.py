"""The tokens of a row of the journal as bytes.

Owns the encoding. Tokens of text are below 2**31 and stored as little-endian int32. What stands for an image or a sound
is made of some 62-bit numbers, the same few for its whole length: each of those, and each negative number, is stored
once behind the rest as a little-endian int64, and ``-1 - i`` in its places refers to number ``i``. Invariant: a row
takes no more than `token_bytes` tells. Pure functions; any thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixtier.identity import Tokens

WIDE_PER_PAGE = 4
"""Most different wide numbers per page of a row, on average. SGLang has four for one image."""

_WIDE = 8


def token_bytes(page_tokens: int) -> tuple[int, int]:
    """Return the least and the most bytes per page."""
    return 4 * page_tokens, 4 * page_tokens + _WIDE * WIDE_PER_PAGE


def encode_tokens(tokens: Tokens) -> bytes | None:
    """Return the bytes of tokens of shape (pages, page_tokens), None when they have too many wide numbers."""
    wide = (tokens < 0) | (tokens > np.iinfo(np.int32).max)
    if not wide.any():
        return np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    numbers, index = np.unique(tokens[wide], return_inverse=True)
    if len(numbers) > WIDE_PER_PAGE * len(tokens):
        return None
    narrow = tokens.copy()
    narrow[wide] = -1 - index
    encoded: bytes = narrow.astype("<i4").tobytes() + numbers.astype("<i8").tobytes()
    return encoded


def decode_tokens(data: bytes, pages: int, page_tokens: int) -> Tokens | None:
    """Return the tokens, shape (pages, page_tokens), None for what :func:`encode_tokens` does not write.

    ``data`` has at least the least bytes of its pages.
    """
    size = 4 * page_tokens * pages
    tokens: Tokens = np.frombuffer(data[:size], dtype="<i4").reshape(pages, page_tokens)
    if len(data) == size:
        return tokens
    if (len(data) - size) % _WIDE:
        return None
    numbers: npt.NDArray[np.int64] = np.frombuffer(data[size:], dtype="<i8")
    index = -1 - tokens.astype(np.int64)
    wide = index >= 0
    if not wide.any() or int(index.max()) >= len(numbers):
        return None
    return np.where(wide, numbers[np.where(wide, index, 0)], tokens)
