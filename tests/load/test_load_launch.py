"""Commands that users write, and what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from radixtier.live.server import serve_command
from radixtier.load.launch import Launched, parse

MODEL = "--model-path /models/a"


def test_arguments_of_serve(tmp_path: Path) -> None:
    command = parse(f"{MODEL} --note 'two words'")
    assert command.serve and command.words == ("--model-path", "/models/a", "--note", "two words")
    server = Launched("a", command, tmp_path / "log")
    address = ["--host", "127.0.0.1", "--port", str(server.port)]
    assert server._command == [*serve_command(), *address, *command.words]


def test_a_whole_command_line_gets_an_address(tmp_path: Path) -> None:
    server = Launched("a", parse(f"{sys.executable} serve.py --x 1"), tmp_path / "log")
    assert server._command == [
        sys.executable,
        "serve.py",
        "--x",
        "1",
        "--host",
        "127.0.0.1",
        "--port",
        str(server.port),
    ]


def test_a_port_that_has_its_place_stays_there(tmp_path: Path) -> None:
    server = Launched("a", parse(f"{sys.executable} serve.py --port {{port}} --peer x:{{port}}"), tmp_path / "log")
    assert server._command == [sys.executable, "serve.py", "--port", str(server.port), "--peer", f"x:{server.port}"]


@pytest.mark.parametrize("rest", [MODEL, f"{sys.executable} serve.py"])
def test_variables_in_front(tmp_path: Path, rest: str) -> None:
    command = parse(f"FIRST=1 SECOND='a b' {rest}")
    assert command.env == {"FIRST": "1", "SECOND": "a b"}
    server = Launched("a", command, tmp_path / "log")
    assert {name: server._env[name] for name in command.env} == command.env


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no command"),
        ("A=1", "no command"),
        ("--model-path 'x", "quotes"),
        ("--enable-radix-tier", "--model-path"),
        (f"{MODEL} --port 1", "--port is chosen here"),
        (f"{MODEL} --host=::1", "--host is chosen here"),
        (f"{MODEL} --port {{port}}", "--port is chosen here"),
        ("no-such-program --x", "no program"),
        (f"{sys.executable} --port 1", "--port is chosen here"),
    ],
)
def test_what_is_no_command(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        parse(text)
    assert "\n" not in str(error.value)
