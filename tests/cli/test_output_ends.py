"""Output that cannot be written: whoever reads has gone, or the disk is full; no command says more than it must."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cli_fakes as fakes
import pytest

from radixtier.control.arguments import ENVIRONMENT

PATIENCE_S = 120.0

COMMANDS = [
    ["--version"],
    ["config", "print", "--json"],
    ["config", "schema"],
    ["config", "check", "--form", "settings.yaml"],
    ["completion", "zsh"],
    ["top", "--once"],
    ["top", "--json"],
    ["drain", "--json"],
    ["explain", "--json"],
    ["store", "gc", "--yes", "store"],
    ["store", "clear", "--yes", "--json", "store"],
]
HELPS = [["--help"], ["bench", "--help"], ["store", "verify", "--help"], ["top", "--help"]]
"""Written by argparse, which does not mind when it cannot."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Make a directory with what the commands read, and a server that they may ask."""
    directory = tmp_path_factory.mktemp("ends")
    (directory / "settings.yaml").write_text("version: 1\n")
    (directory / "store").mkdir(mode=0o700)
    script = fakes.Script.well()
    script.answers["/radix_tier/explain"] = (200, {"requests": []})
    script.answers["/radix_tier/drain"] = (200, {"status": "drained", "unwritten_pages": 0, "directories": []})
    with fakes.endpoint(script) as address:
        yield directory, address


def run(place: tuple[Path, str], words: list[str], buffered: bool, out: int) -> subprocess.CompletedProcess[str]:
    directory, address = place
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RADIXTIER_", "PYTHON"))}
    env |= {ENVIRONMENT: address} | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    command = [sys.executable, "-m", "radixtier.cli", *words]
    return subprocess.run(
        command, stdout=out, stderr=subprocess.PIPE, text=True, env=env, cwd=directory, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [*COMMANDS, *HELPS], ids=" ".join)
def test_who_has_read_enough_hears_nothing(place: tuple[Path, str], words: list[str], buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(place, words, buffered, writing)
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1 or (words in HELPS and not buffered and done.returncode == 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [["--version"], ["config", "schema"], ["top", "--once"]], ids=" ".join)
def test_a_full_disk_is_told_in_one_line(place: tuple[Path, str], words: list[str], buffered: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run(place, words, buffered, full)
    finally:
        os.close(full)
    assert (done.returncode, done.stderr) == (1, "radixtier: [Errno 28] No space left on device\n")
