"""A running estimate of bandwidth from transfers that overlap.

Owns the estimate. Law: bytes moved over wall time during which at least one transfer was active, both halved
with every `HALF_LIFE` bytes, so that parallel threads count once and idle time not at all. Unit: bytes per
second. The caller serialises.
"""

from __future__ import annotations

HALF_LIFE = 256 << 20
"""Bytes after which a transfer counts half: a long prefix or two, some tenths of a second on most drives."""


class BandwidthMeter:
    """Fed at the start and end of every transfer with the time in seconds."""

    def __init__(self) -> None:
        self._active = 0
        self._since = 0.0
        self._fresh = 0.0  # seconds with transfers active since the last one ended
        self._bytes = 0.0
        self._seconds = 0.0

    def begin(self, now: float) -> None:
        """Count a transfer that starts."""
        self._pass(now)
        self._active += 1

    def end(self, now: float, nbytes: int) -> None:
        """Count a transfer that ends, having moved ``nbytes``."""
        self._pass(now)
        self._active -= 1
        decay = 0.5 ** (nbytes / HALF_LIFE)
        self._bytes = self._bytes * decay + nbytes
        self._seconds = self._seconds * decay + self._fresh
        self._fresh = 0.0

    def _pass(self, now: float) -> None:
        if self._active:
            self._fresh += max(0.0, now - self._since)
        self._since = now

    @property
    def rate(self) -> float:
        """Bytes per second; 0.0 as long as nothing was measured."""
        return self._bytes / self._seconds if self._seconds > 0 else 0.0
