"""Lines are written over on terminals that can do it, and nowhere else."""

from __future__ import annotations

import io

import pytest

from radixtier.cli.lab_progress import Bar
from radixtier.cli.terminal import rewrites


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "term", "can"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_where_lines_are_written_over(terminal: bool, term: str, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("radixtier.cli.lab_progress.PATIENCE_S", 0.0)
    stream = Stream(terminal)
    assert rewrites(stream) is can
    bar = Bar(100.0, stream)
    bar(64)
    bar.clear()
    assert ("\x1b" in stream.getvalue()) is can
