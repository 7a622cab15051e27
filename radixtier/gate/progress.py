"""Shows how far a gate is: steps and lines that stay, and on a terminal a bar with the time left.

Owns one stream, standard error by default, so that standard output has the verdict alone. Invariant: what stays is the
same text everywhere; colour and bar exist only on a terminal, colour not with ``NO_COLOR``. Any thread; a thread of its
own redraws the bar.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from time import monotonic
from typing import TextIO

EVERY_S = 1.0
WIDTH = 24
MOST = 0.99
"""The most that a bar shows before its gate has ended."""

_TONES = {"title": "1", "good": "32", "bad": "31;1", "warn": "33", "dim": "2"}
_CLEAR = "\r\x1b[K"


class Progress:
    """Lines that stay, and on a terminal a bar below them.

    Parameters
    ----------
    stream
        None shows nothing, for tests.
    """

    def __init__(self, stream: TextIO | None = sys.stderr) -> None:
        self._stream = stream
        self._live = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._live and not os.environ.get("NO_COLOR")
        self._lock = threading.RLock()
        self._text = ""
        self._expected_s = 0.0
        self._began_s = self._marked_s = monotonic()
        self._done_s = 0.0
        self._shown = False
        self._end = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
        if self._live:
            self._ticker.start()

    def step(self, text: str) -> None:
        """Say what is done now: a line that stays, and the text beside the bar."""
        with self._lock:
            self._text = text
            self._write(text, "dim")
            self._draw()

    def line(self, text: str, tone: str = "") -> None:
        """Write a line that stays; ``tone`` is one of title, good, bad, warn, dim."""
        with self._lock:
            self._write(text, tone)
            self._draw()

    def total(self, seconds_expected: float) -> None:
        """Begin a bar: about so long it will take, all told; 0 takes the bar away."""
        with self._lock:
            self._expected_s, self._done_s = seconds_expected, 0.0
            self._began_s = self._marked_s = monotonic()
            self._text = ""
            self._draw()

    def at(self, seconds_done: float | None = None, *, share: float | None = None) -> None:
        """Say how much is done: seconds of those expected, or a share from 0 to 1."""
        with self._lock:
            done_s = share * self._expected_s if share is not None else (seconds_done or 0.0)
            self._done_s, self._marked_s = min(max(done_s, 0.0), self._expected_s), monotonic()
            self._draw()

    def close(self) -> None:
        """Take the bar away for good."""
        with self._lock:
            self._expected_s = 0.0
            self._wipe()
        self._end.set()
        if self._ticker.is_alive():
            self._ticker.join(2 * EVERY_S)

    def _tick(self) -> None:
        while not self._end.wait(EVERY_S):
            with self._lock:
                self._draw()

    def _write(self, text: str, tone: str) -> None:
        self._wipe()
        if self._stream is not None:
            styled = f"\x1b[{_TONES[tone]}m{text}\x1b[0m" if tone in _TONES and self._colour else text
            print(styled, file=self._stream, flush=True)

    def _wipe(self) -> None:
        if self._shown and self._stream is not None:
            print(_CLEAR, end="", file=self._stream, flush=True)
        self._shown = False

    def _draw(self) -> None:
        if not self._live or self._stream is None or not self._expected_s or self._end.is_set():
            return
        now = monotonic()
        text = bar(self._expected_s, self._done_s, self._marked_s - self._began_s, now - self._marked_s, self._text)
        room = max(1, shutil.get_terminal_size().columns - 1)
        print(f"{_CLEAR}{text[:room]}", end="", file=self._stream, flush=True)
        self._shown = True


def bar(expected_s: float, done_s: float, took_s: float, since_s: float, text: str) -> str:
    """Return a bar with the time left.

    Parameters
    ----------
    expected_s, done_s
        What was expected to take so long in all, and what of it was done when last told.
    took_s, since_s
        How long that took in truth, and how long ago it was told; what is under way is taken to go at the same pace.
    text
        What is done now.
    """
    pace = took_s / done_s if done_s else 1.0
    share = min(MOST, (done_s + since_s / max(pace, 1e-9)) / expected_s)
    full = int(share * WIDTH)
    left = clock((1 - share) * expected_s * pace)
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:.0%}, about {left} left  {text}".rstrip()


def clock(seconds: float) -> str:
    """Write a duration for a reader: ``40 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
