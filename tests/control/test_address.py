"""Which addresses the control endpoint takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.control.address import LONGEST_PATH, Address, parse_address
from radixtier.units import BadValue


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        (" OFF ", None),
        ("unix:/run/x.sock", Address(path="/run/x.sock")),
        ("unix:/run//a/../x.sock", Address(path="/run/x.sock")),
        ("127.0.0.1:8080", Address(host="127.0.0.1", port=8080)),
        ("127.9.9.9:0", Address(host="127.9.9.9")),
        ("localhost:65535", Address(host="127.0.0.1", port=65535)),
        ("[::1]:80", Address(host="::1", port=80)),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert parse_address(text) == address
    if address is not None:
        assert parse_address(str(address)) == address


def test_a_relative_socket_lies_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_address("unix:x.sock") == Address(path=os.path.join(os.getcwd(), "x.sock"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an address"),
        ("8080", "not an address"),
        ("unix:", "not the path of a socket"),
        ("unix:/run/", "not the path"),
        ("unix:/a\0b", "not the path"),
        ("127.0.0.1:", "port '' is not a number"),
        ("127.0.0.1:65536", "port '65536'"),
        ("127.0.0.1:-1", "port '-1'"),
        ("127.0.0.1:٣", "port"),
        ("example.org:80", "'example.org' is not an IP address"),
        (":80", "'' is not an IP address"),
        ("::1:80", "stand in brackets"),
        ("[127.0.0.1]:80", "stand in brackets"),
        ("0.0.0.0:80", "can be reached from other machines, and no key"),
        ("[::]:80", "can be reached from other machines"),
        ("10.0.0.7:80", "can be reached from other machines"),
    ],
)
def test_what_is_refused_says_why(text: str, why: str) -> None:
    with pytest.raises(BadValue) as bad:
        parse_address(text)
    assert why in bad.value.why and bad.value.fix


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "10.0.0.7:80"])
def test_a_key_opens_it_to_other_machines(text: str) -> None:
    address = parse_address(text, key=True)
    assert str(address) == text


@pytest.mark.parametrize("character", ["x", "ü"])
def test_the_path_of_a_socket_has_a_length(character: str) -> None:
    room = (LONGEST_PATH - 1) // len(os.fsencode(character))
    assert parse_address("unix:/" + character * room) is not None
    with pytest.raises(BadValue, match="bytes"):
        parse_address("unix:/" + character * (room + 1))


@given(st.text(max_size=20) | st.from_regex(r"(unix:|\[?[0-9a-f.:]*\]?:)[0-9]*", fullmatch=True), st.booleans())
def test_any_text_is_an_address_or_a_bad_value(text: str, key: bool) -> None:
    try:
        address = parse_address(text, key)
    except BadValue:
        return
    assert address is None or parse_address(str(address), key) == address
