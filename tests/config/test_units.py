"""Sizes: every accepted form to the exact byte, every rejected one with a fix."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.units import ACCEPTED_FORMS, BadValue, Size, Unit, format_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("64GiB", 64 * 2**30),
        ("512MiB", 512 * 2**20),
        ("2TB", 2 * 10**12),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("8192", 8192),
        ("8192B", 8192),
        (" 1.5 gib ", 3 * 2**29),
        ("0.1TiB", 2**40 // 10),
        ("0", 0),
        ("0GiB", 0),
        (8192, 8192),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_bytes(text: str | int, amount: int) -> None:
    assert parse_size(text) == Size(amount, Unit.BYTES)


@pytest.mark.parametrize(("text", "amount"), [("1.5Mtok", 1_500_000), ("12tok", 12), ("4ktok", 4000), ("1Gtok", 10**9)])
def test_tokens(text: str, amount: int) -> None:
    assert parse_size(text) == Size(amount, Unit.TOKENS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("64G", "unknown unit 'G'"),
        ("64Gib/s", "not a size"),
        ("GiB", "not a size"),
        ("", "not a size"),
        ("1.5.2GB", "not a size"),
        ("1e9", "not a size"),
        ("-1GiB", "cannot be negative"),
        ("٣GiB", "not a size"),
        (True, "not a size"),
    ],
)
def test_what_is_no_size(text: str, why: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_size(text)
    assert why in caught.value.why
    assert ACCEPTED_FORMS in caught.value.fix


def test_a_forgotten_unit_is_asked_for() -> None:
    with pytest.raises(BadValue, match=r"64 bytes, less than any page. Add the unit, for example 64GiB"):
        parse_size("64")


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(["KiB", "MiB", "GiB", "TB", "Mtok"]))
def test_arithmetic_is_exact(whole: int, thousandths: int, unit: str) -> None:
    factor = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TB": 10**12, "Mtok": 10**6}[unit]
    exact = (Fraction(whole) + Fraction(thousandths, 1000)) * factor
    assert parse_size(f"{whole}.{thousandths:03d}{unit}").amount == int(exact)


@pytest.mark.parametrize(
    ("amount", "text"), [(17, "17 B"), (1536, "1.5 KiB"), (3 * 2**29, "1.5 GiB"), (2**42, "4.0 TiB")]
)
def test_format(amount: int, text: str) -> None:
    assert format_bytes(amount) == text
