"""A bar on the terminal while a trace is replayed.

Owns one line of standard error. Nothing is shown where that is no terminal, and nothing in the first
:data:`PATIENCE_S`. How many requests a trace has is not known before its end; it is guessed from its first part. Main
thread.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TextIO

from radixtier.cli.terminal import rewrites

PATIENCE_S = 2.0
EVERY_S = 0.5
EVERY = 64
"""Requests between two looks at the clock."""

HEAD = 1 << 20
"""Bytes from which the number of requests is guessed."""

WIDTH = 30


def guess(file: Path) -> float | None:
    """Guess the number of requests in a trace; None where it is compressed."""
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    if head[:2] == b"\x1f\x8b":
        return None
    requests = head.count(b'"arrive"') or head.count(b"\n")
    return requests * file.stat().st_size / max(1, len(head)) or None


class Bar:
    """Shows how far a run is; call it with the number of requests served, and :meth:`clear` it in the end."""

    def __init__(self, total: float | None, stream: TextIO = sys.stderr) -> None:
        self._total = total
        self._stream = stream
        self._began = monotonic()
        self._next = self._began + PATIENCE_S if rewrites(stream) else float("inf")
        self._shown = False

    def __call__(self, served: int) -> None:
        """Show that so many requests were served."""
        if served % EVERY or monotonic() < self._next:
            return
        took = monotonic() - self._began
        self._next = self._began + took + EVERY_S
        text = f"{served:,} requests, {served / took:,.0f} a second"
        if self._total is not None:
            share = min(0.99, served / self._total)
            full = int(share * WIDTH)
            left = took / share - took
            text = f"[{'#' * full}{'.' * (WIDTH - full)}] about {share:.0%}, {left:,.0f} s left, {text}"
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
