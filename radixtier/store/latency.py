"""How long the last transfers took, for whoever makes figures of it.

Owns a bounded number of observations; the oldest go first when nobody takes them. Any thread: adding is one append, and
nothing here waits.
"""

from __future__ import annotations

from collections import deque

MOST = 16384
"""Observations kept: some seconds of transfers of a few MiB on the fastest drives."""

Observed = tuple[str, float, int]
"""Kind (``read``, ``write`` or ``verify``), seconds with the checksums, and bytes of one transfer that went well."""


class Latencies:
    """The observations that nobody has taken yet."""

    def __init__(self, most: int = MOST) -> None:
        self._observed: deque[Observed] = deque(maxlen=most)

    def add(self, kind: str, seconds: float, nbytes: int) -> None:
        """Keep an observation."""
        self._observed.append((kind, seconds, nbytes))

    def take(self) -> list[Observed]:
        """Return what was added since the last call, oldest first."""
        return [self._observed.popleft() for _ in range(len(self._observed))]
