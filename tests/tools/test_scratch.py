"""Scratch directories go, whatever happens; only ours, and only those that nobody uses."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from radixtier.tools.scratch import PREFIX, abandoned, scratch


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("stays")
    with scratch(tmp_path) as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file").write_text("x")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    def measure() -> None:
        with scratch(tmp_path) as directory:
            (directory / "file").write_text("x")
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(number) is before


def test_what_a_killed_run_left_is_told_from_what_is_in_use(tmp_path: Path) -> None:
    dead = tmp_path / f"{PREFIX}dead"
    dead.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(dead)
    (tmp_path / f"{PREFIX}file").write_text("no directory of ours")
    (tmp_path / "other").mkdir()
    with scratch(tmp_path):
        assert abandoned(tmp_path) == [dead]
