"""How long a request may wait for its pages to come up: never longer than recomputing them would take.

The law: ``deadline = cold tokens / prefill rate`` seconds, at most :data:`LONGEST_S`, counted from the moment the
scheduler would have admitted the request. The rate (tokens/s) is a running mean over prefill batches seen on this
server, weighted by tokens over the last :data:`WINDOW_TOKENS`; until the first one is seen, :data:`ASSUMED_RATE`
holds. Batches of less than :data:`LEAST_TOKENS` tell more about overhead than about the rate and do not count.

Where it loses: the rate ignores that prefill slows down with context length, so on long contexts it gives up
early rather than late.
"""

from __future__ import annotations

ASSUMED_RATE = 5000.0
"""Tokens per second assumed before the first prefill was seen."""

LEAST_TOKENS = 256
"""New tokens from which a batch counts."""

LONGEST_S = 30.0
"""Longest wait, whatever the rate: a drive that hangs must not hold a request for ever."""

WINDOW_TOKENS = 16384.0
"""Tokens after which an observation has lost 63 % of its weight."""


class PrefillRate:
    """Running estimate of the prefill rate, tokens/s."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Add one prefill batch of ``tokens`` new tokens that took ``seconds``."""
        if tokens < LEAST_TOKENS or seconds <= 0:
            return
        keep = max(0.0, 1.0 - tokens / WINDOW_TOKENS)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._tokens / self._seconds if self._seconds else ASSUMED_RATE

    def deadline(self, tokens: int) -> float:
        """Seconds a request may wait for ``tokens`` cold tokens."""
        return min(LONGEST_S, tokens / self.rate)
