"""Shows progress on a terminal, and plain lines anywhere else.

Owns standard output of the demo. Invariant: what is written with :meth:`Screen.line` is there for good and is
the same text everywhere; colour and the status line exist only on a terminal, and not with ``NO_COLOR``. Main
thread.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_STYLES = {"title": "1", "good": "32", "bad": "31;1", "dim": "2"}


class Screen:
    """Lines that stay, and on a terminal one line that changes."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._live and not os.environ.get("NO_COLOR")
        self._status = False

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line; `style` is one of title, good, bad, dim."""
        self._clear()
        if style and self._colour:
            text = f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
        print(text, file=self._stream, flush=True)

    def title(self, text: str) -> None:
        """Start a section."""
        self.line()
        self.line(text, "title")

    def status(self, text: str) -> None:
        """Show what is being waited for; nothing where lines cannot be rewritten."""
        if self._live:
            self._clear()
            width = shutil.get_terminal_size().columns - 1
            print(text[:width], end="\r", file=self._stream, flush=True)
            self._status = True

    def _clear(self) -> None:
        if self._status:
            print("\x1b[2K", end="\r", file=self._stream, flush=True)
            self._status = False
