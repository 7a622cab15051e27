"""Virtual time.

Owns the present. One thread.
"""

from __future__ import annotations


class Clock:
    """Seconds since the start of the trace; called, it tells them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
