"""``radixtier top`` as a command: one picture, the raw figures, and a terminal that is left as it was."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import cli_fakes as fakes
import pytest

from radixtier.cli.main import main
from radixtier.control.arguments import ENVIRONMENT

PATIENCE_S = 60.0

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    with fakes.endpoint(fakes.Script.well(), tmp_path / "c.sock") as found:
        yield found


def test_once(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--control", address]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 100
    for part in ("251k of 262k", "4.5 requests/s", "hottest", "coldest", "user-8/chat-248", "events"):
        assert part in text
    assert "quit" not in text


def test_what_is_no_terminal_gets_it_once(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--control", address]) == 0
    assert "251k of 262k" in capsys.readouterr().out


def test_the_raw_figures(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--json", "--control", address]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == fakes.state() and found["history"] == fakes.history()
    assert found["events"] == fakes.events() and found["tree"] == fakes.tree()
    assert found["missing"] == {} and found["taken"] > 0


def test_a_server_that_has_less(capsys: pytest.CaptureFixture[str]) -> None:
    script = fakes.Script({"/radix_tier/state": (200, fakes.state())})
    script.answers["/radix_tier/history"] = (503, {"error": "no monitor"})
    with fakes.endpoint(script) as address:
        assert main(["top", "--once", "--json", "--control", address]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["history"] is None and found["missing"]["history"] == "no monitor"
        assert main(["top", "--once", "--control", address]) == 0
        assert "no history: no monitor" in capsys.readouterr().out


def test_the_key_goes_along(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    script = fakes.Script.well()
    with fakes.endpoint(script) as address:
        assert main(["top", "--once", "--control", address, "--key-file", str(tmp_path / "key")]) == 0
    assert {authorization for *_, authorization in script.seen} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["--once", "--control", "unix:/nowhere.sock"], 1, "no answer from unix:/nowhere.sock"),
        (["--once"], 2, "Give --control ADDRESS or set RADIXTIER_CONTROL"),
        (["--once", "--control", "here"], 2, "here: not an address"),
    ],
)
def test_what_goes_wrong_is_one_line(
    argv: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert main(["top", *argv]) == status
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "0.1", "nan", "never", "4000"])
def test_an_interval_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["top", "--interval", value])
    assert end.value.code == 2 and "give seconds from 0.2 to 3600" in capsys.readouterr().err


# ---- on a terminal ------------------------------------------------------------------------------------------------


class Terminal:
    """The command on a pseudo-terminal of 100 columns and 35 lines."""

    def __init__(self, address: str, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (35, 100))
        self.theirs = theirs
        self.before = termios.tcgetattr(theirs)
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            # Whoever runs the tests in the background may have Ctrl-C ignored.
            [
                "env",
                "--default-signal=INT",
                sys.executable,
                "-m",
                "radixtier.cli",
                "top",
                "--control",
                address,
                "--interval",
                "0.2",
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **env},
            start_new_session=True,
        )
        self.text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def until(self, pattern: str) -> str:
        """Read until something is there, colours aside; return what came since the last call."""
        until = time.monotonic() + PATIENCE_S
        start = len(self.text)
        while not re.search(pattern, seen := COLOUR.sub("", self.text[start:])):
            assert time.monotonic() < until, (pattern, seen)
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    got = os.read(self._ours, 65536)
                except OSError:
                    got = b""
                assert got, (pattern, seen)
                self.text += self._decode(got)
        return seen

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Wait for the end, check that the terminal is as it was, and return the status."""
        status = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self.theirs) == self.before
        return status

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)


@contextlib.contextmanager
def terminal(address: str, **env: str) -> Iterator[Terminal]:
    found = Terminal(address, **env)
    try:
        yield found
    finally:
        found.close()


def test_keys(address: str) -> None:
    with terminal(address) as window:
        window.until(r"\x1b\[\?1049h")
        window.until("hottest")
        window.type("s")
        window.until("coldest ─")
        window.type("\x1b[Ap")
        window.until("paused")
        window.type("q")
        window.until(r"\x1b\[\?1049l")
        assert window.end() == 0
        assert "\x1b[?25h" in window.text, "the cursor is back"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_the_terminal_as_it_was(address: str, number: signal.Signals) -> None:
    with terminal(address) as window:
        window.until("hottest")
        if number == signal.SIGINT:
            os.killpg(window.process.pid, number)
        else:
            window.process.send_signal(number)
        window.until(r"\x1b\[\?1049l")
        assert window.end() == 130
        assert "Traceback" not in window.text


def test_a_server_that_stops_is_told_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with fakes.endpoint(fakes.Script.well(), path) as address, terminal(address) as window:
        window.until("hottest")
        path.unlink()
        assert "251k of 262k" in window.until("(?s)silent since .*every 0.2 s"), "the old figures stay"
        with fakes.endpoint(fakes.Script({"/radix_tier/state": (200, fakes.state(model="Another"))}), path):
            window.until("Another")
            window.type("q")
            assert window.end() == 0


def test_a_server_whose_socket_moves_is_followed(tmp_path: Path) -> None:
    before, after = tmp_path / "before.sock", tmp_path / "after.sock"
    moving = fakes.Script.well()
    moving.answers["/radix_tier/state"] = (200, fakes.state(control=f"unix:{after}"))
    with fakes.endpoint(moving, before) as address, terminal(address) as window:
        window.until("hottest")
        before.unlink()
        with fakes.endpoint(fakes.Script({"/radix_tier/state": (200, fakes.state(model="Another"))}), after):
            window.until("Another")
            window.type("q")
            assert window.end() == 0


def test_colours_are_left_out(address: str) -> None:
    with terminal(address, NO_COLOR="1") as window:
        window.until("every 0.2 s")
        window.type("q")
        window.until(r"\x1b\[\?1049l")
    assert not re.search(r"\x1b\[(\d+;)*(3|4|9|10)\d(;\d+)*m", window.text)
    with terminal(address) as window:
        window.until("every 0.2 s")
        window.type("q")
        window.until(r"\x1b\[\?1049l")
    assert re.search(r"\x1b\[(\d+;)*9\dm", window.text)


def test_a_dumb_terminal_gets_it_once(address: str) -> None:
    with terminal(address, TERM="dumb") as window:
        window.until("events")
        assert window.end() == 0
    assert "\x1b" not in window.text


def test_a_window_that_changes(address: str) -> None:
    with terminal(address) as window:
        window.until("hottest")
        termios.tcsetwinsize(window.theirs, (30, 140))
        window.until("─ {2}events ─")
        window.type("q")
        assert window.end() == 0


def test_a_terminal_without_unicode(address: str) -> None:
    with terminal(address, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONIOENCODING="ascii") as window:
        window.until("#####")
        window.type("q")
        assert window.end() == 0
    assert window.text.isascii()
