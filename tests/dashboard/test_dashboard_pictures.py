"""What takes the pictures of the documentation: of the page, and of a program in a terminal."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_server import FakeServer

from radixtier.demo.pictures import DENSITY, ROWS, find_chromium, in_terminal, last_screen, take_dashboard
from radixtier.demo.screenshots import PICTURES, main

DRAWER = """
import os, sys, tty
columns, rows = os.get_terminal_size()
tty.setcbreak(0)
for turn in ("first", "last"):
    lines = [f"\\x1b[32m{turn}\\x1b[0m {columns} {i}" for i in range(rows)]
    sys.stdout.write("\\x1b[?1049h\\x1b[H" + "\\n".join(lines))
    sys.stdout.flush()
assert os.read(0, 1) == b"q"
sys.stdout.write("\\x1b[?1049l")
"""


def test_the_last_screen_of_a_program_in_a_terminal() -> None:
    written = in_terminal([sys.executable, "-c", DRAWER], 1.0, b"q")
    lines = last_screen(written).splitlines()
    assert len(lines) == ROWS
    assert lines[0] == "\x1b[32mlast\x1b[0m 118 0"
    assert lines[-1].endswith(f"118 {ROWS - 1}")


def test_a_program_that_draws_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="it drew no screen: 'no such option"):
        last_screen(b"no such option\n")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_the_page(browser: Any, server: Callable[..., FakeServer], tmp_path: Path, scheme: str) -> None:
    target = tmp_path / "dashboard.png"
    take_dashboard(browser, server().url, scheme, target)
    content = target.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width == 1440 * DENSITY
    assert height > 900 * DENSITY


def test_a_chromium_that_is_named_is_the_only_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.touch()
    monkeypatch.setenv("RADIXTIER_CHROMIUM", str(tmp_path / "missing"))
    assert find_chromium(str(own)) is None
    monkeypatch.delenv("RADIXTIER_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium(str(own)) == str(own)
    there = tmp_path / "chromium-browser"
    there.touch(mode=0o755)
    assert find_chromium(str(own)) == str(there)


@pytest.mark.parametrize("flag", ["--out", "--store"])
def test_a_directory_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert main(["--out", str(tmp_path), flag, str(tmp_path / "no")]) == 1
    assert f"{flag} {tmp_path / 'no'}: not a directory; make it first" in capsys.readouterr().out


def test_a_picture_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "moon.png"])
    told = capsys.readouterr().err
    assert all(name in told for name in PICTURES)
