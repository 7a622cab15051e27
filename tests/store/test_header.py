"""The header of a slab: read back as written, or not at all."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import IDENTITY

from radixtier.footprint import BLOCK
from radixtier.store import header
from radixtier.store.header import Header, HeaderError


def test_it_comes_back() -> None:
    for identity in (IDENTITY, None):
        one = Header.fresh(identity, 5000, 16)
        assert Header.unpack(one.pack()) == one
        assert one.slot_bytes == 8192


@given(at=st.integers(0, BLOCK - 1), bit=st.integers(0, 7))
def test_any_damage_is_noticed(at: int, bit: int) -> None:
    block = bytearray(Header.fresh(IDENTITY, 5000, 16).pack())
    block[at] ^= 1 << bit
    with pytest.raises(HeaderError):
        Header.unpack(bytes(block))


@given(st.binary(max_size=2 * BLOCK))
def test_anything_else_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderError):
        Header.unpack(block)


def test_another_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Header.fresh(IDENTITY, 5000, 16).pack()
    monkeypatch.setattr(header, "FORMAT", 2)
    with pytest.raises(HeaderError, match="format 1 instead of 2"):
        Header.unpack(block)


def test_ids_are_new_every_time() -> None:
    one = Header.fresh(IDENTITY, 5000, 16)
    assert len({one.store_id, one.renewed().store_id, Header.fresh(IDENTITY, 5000, 16).store_id}) == 3
    assert one.renewed()._replace(store_id=one.store_id) == one


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(IDENTITY)])
def test_every_field_of_the_identity_counts(field: str) -> None:
    value = getattr(IDENTITY, field)
    other = dataclasses.replace(IDENTITY, **{field: f"{value}x" if isinstance(value, str) else value + 1})
    mine, theirs = Header.fresh(IDENTITY, 5000, 16), Header.fresh(other, 5000, 16)
    assert mine.differences(theirs) == [f"{field} {getattr(other, field)} instead of {value}"]


def test_the_size_of_a_page_counts() -> None:
    mine = Header.fresh(IDENTITY, 5000, 16)
    assert mine.differences(Header.fresh(IDENTITY, 5001, 16)) == ["page_bytes 5001 instead of 5000"]
    assert mine.differences(Header.fresh(IDENTITY, 5000, 32)) == ["page_tokens 32 instead of 16"]
    assert mine.differences(Header.fresh(None, 5000, 16)) == ["identity"]
    assert mine.differences(mine.renewed()) == []
    older = mine._replace(identity=mine.identity.replace('"attention":"mha",', ""))
    assert older != mine and mine.differences(older) == ["identity"], "it names less, and may mean something else"


def test_an_identity_too_long_for_the_block_is_refused() -> None:
    with pytest.raises(HeaderError, match="does not fit"):
        Header.fresh(dataclasses.replace(IDENTITY, layout="x" * BLOCK), 5000, 16).pack()
