"""Keys of a terminal, one at a time and without waiting.

Owns the terminal's mode from entry to exit. Invariant: it is restored however the block ends, also on Ctrl-C; keys that
nobody asked for are thrown away. Ctrl-Z is off meanwhile: it would leave the picture behind. Main thread.
"""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from types import TracebackType

_SEQUENCE = re.compile(rb"\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z]|.)?")
"""What arrow and function keys send; none of its letters is meant."""


class Keys:
    """Reads keys from the terminal at ``fd`` while the block runs."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> Keys:
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd, termios.TCSANOW)
        mode = termios.tcgetattr(self._fd)
        mode[6][termios.VSUSP] = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(self._fd, termios.TCSANOW, mode)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, self._before)

    def pressed(self, timeout_s: float) -> str:
        """Return what was typed within ``timeout_s``; "q" when the terminal is gone."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return ""
        try:
            typed = os.read(self._fd, 64)
        except OSError:
            typed = b""
        return _SEQUENCE.sub(b"", typed).decode("ascii", "ignore") if typed else "q"
