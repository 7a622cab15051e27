"""Shows on a terminal how far a load is, and how long it will take.

Owns one line of standard error; nothing is shown where that is no terminal. Called by one thread at a time.
"""

from __future__ import annotations

import sys
import time

from radixtier.live.screen import Screen
from radixtier.load.play import Exchange

EVERY_S = 0.25
WIDTH = 24


class Progress:
    """Counts the requests of a run.

    Parameters
    ----------
    total
        Requests of all loads of the run, at most.
    screen
        Standard error by default.
    """

    def __init__(self, total: int, screen: Screen | None = None) -> None:
        self._total = max(1, total)
        self._screen = screen or Screen(sys.stderr)
        self._began = time.monotonic()
        self._next_s = 0.0
        self._done = self._failed = 0
        self._what = ""

    def begin(self, what: str) -> None:
        """Say what comes next: a level, a round, a start of a server."""
        self._what = what
        self._show(time.monotonic())

    def wait(self, passed_s: float) -> None:
        """Show that a server is being waited for."""
        self._screen.status(f"{self._what}, {passed_s:.0f} s")

    def __call__(self, exchange: Exchange) -> None:
        """Count one request."""
        self._done += 1
        self._failed += bool(exchange.answer.error)
        now = time.monotonic()
        if now >= self._next_s:
            self._show(now)

    def clear(self) -> None:
        """Take the line away."""
        self._screen.status("")

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line that stays."""
        self._screen.line(text, style)

    def _show(self, now: float) -> None:
        self._next_s = now + EVERY_S
        share = min(1.0, self._done / self._total)
        full = int(share * WIDTH)
        left = f"{remaining(now - self._began, share)} left, " if self._done else ""
        failed = f", {self._failed:,} failed" if self._failed else ""
        bar = "#" * full + "." * (WIDTH - full)
        self._screen.status(f"[{bar}] {self._what}: {left}{self._done:,} of {self._total:,} requests{failed}")


def remaining(passed_s: float, share: float) -> str:
    """Say how long the rest takes if it goes on like this."""
    seconds = passed_s / share - passed_s
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
