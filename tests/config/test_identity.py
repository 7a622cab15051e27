"""Page keys: CASES C15 (tenants share nothing) and C18 (the same in every process)."""

from __future__ import annotations

import array
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.identity import chain, checksum_seed, namespace_seed

TOKENS = list(range(100, 140))


def test_c15_namespaces_share_no_key() -> None:
    parts = [None, "", "a", "b", "ab", "bc", "c", "a\0", "\x01", "X"]
    spaces = [namespace_seed(extra, salt) for extra, salt in itertools.product(parts, parts)]
    assert len(set(spaces)) == len(parts) ** 2
    keys = {bytes(key) for space in spaces for key in chain(space, TOKENS, 4)}
    assert len(keys) == len(spaces) * len(TOKENS) // 4


def test_c18_keys_do_not_depend_on_the_process() -> None:
    program = (
        "from radixtier.identity import *;print(chain(namespace_seed('lora', 'salt'), range(64), 16).tobytes().hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("0", "1", "4711")
    }
    assert outputs == {chain(namespace_seed("lora", "salt"), range(64), 16).tobytes().hex()}


def test_keys_are_what_they_were() -> None:
    """A store outlives the program that wrote it: these values may only change with the format version."""
    assert namespace_seed().hex() == "350e08c2551c390f6c28a1123d8168a7"
    assert chain(namespace_seed(), [1, 2, 3, 4], 2).tobytes().hex() == (
        "4b4f864475548145e6a9b5d94544bb53984356d8935a0198e336ea6c4ce2e36e"
    )


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        tuple(TOKENS),
        array.array("i", TOKENS),
        array.array("q", TOKENS),
        np.array(TOKENS, dtype=np.int32),
        np.array(TOKENS, dtype=">i8"),
        np.array([t for t in TOKENS for _ in range(2)])[::2],
    ],
)
def test_the_container_does_not_matter(tokens: object) -> None:
    assert (chain(namespace_seed(), tokens, 8) == chain(namespace_seed(), TOKENS, 8)).all()  # type: ignore[arg-type]


def test_large_token_ids_do_not_wrap() -> None:
    small, large = chain(namespace_seed(), [5], 1), chain(namespace_seed(), [5 + 2**32], 1)
    assert small.tobytes() != large.tobytes()


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_a_chain_can_be_continued(tokens: list[int], page_size: int, pages: int) -> None:
    root = namespace_seed("x")
    whole = chain(root, tokens, page_size)
    assert whole.shape == (len(tokens) // page_size, 16)
    cut = min(pages, len(whole))
    parent = bytes(whole[cut - 1]) if cut else root
    assert (chain(parent, tokens[cut * page_size :], page_size) == whole[cut:]).all()


def test_a_key_depends_on_everything_before_it() -> None:
    changed = [TOKENS[0] + 1, *TOKENS[1:]]
    before, after = chain(namespace_seed(), TOKENS, 4), chain(namespace_seed(), changed, 4)
    assert not (before == after).all(axis=1).any()


def test_page_sizes_share_no_key() -> None:
    keys = [bytes(key) for size in (1, 2, 4, 8) for key in chain(namespace_seed(), TOKENS, size)]
    assert len(set(keys)) == len(keys)


def test_a_wrong_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        chain(b"short", TOKENS, 4)


def test_checksum_seed() -> None:
    key = chain(namespace_seed(), TOKENS, 4)[0]
    assert checksum_seed(key) == checksum_seed(bytes(key)) == int.from_bytes(bytes(key)[:8], "little")
