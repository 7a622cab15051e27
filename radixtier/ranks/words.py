"""What the first rank tells the others: bytes that it alone has, as a part of the reduction.

Owns what was said and not heard yet. A message is announced with its length in one reduction and comes with the next,
so that all ranks know how long the vector is; the others offer the largest number, and the minimum is what the first
rank said. Messages are heard in order, at the same point on every rank, the first one included. Scheduler thread only.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from radixtier.ranks.agreement import Longs

_ANYTHING = np.iinfo(np.int64).max


class Words:
    """A section of the reduction; ``first`` says whether this rank is the one that speaks."""

    def __init__(self, first: bool) -> None:
        self._first = first
        self._to_say: deque[bytes] = deque()
        self._said = b""
        self._announced = 0
        self._heard: list[bytes] = []

    @property
    def coming(self) -> bool:
        """Whether a message was announced that did not come yet; all ranks say the same."""
        return self._announced > 0

    @property
    def waiting(self) -> int:
        """Messages of this rank that were not announced yet."""
        return len(self._to_say)

    def say(self, message: bytes) -> None:
        """Tell all ranks; of the first rank only, and never empty."""
        assert self._first and message
        self._to_say.append(message)

    def drop(self) -> int:
        """Forget what was not announced yet; returns how many messages that were."""
        n = len(self._to_say)
        self._to_say.clear()
        return n

    def hear(self) -> list[bytes]:
        """Return the messages that came since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def offer(self) -> Longs:
        """Return the length of the next message in bytes, and the one that was announced, eight bytes to a number."""
        n = -(-self._announced // 8)
        if not self._first:
            return np.full(1 + n, _ANYTHING, np.int64)
        said = np.frombuffer(self._said.ljust(8 * n, b"\0"), "<i8")
        return np.concatenate([[len(self._to_say[0]) if self._to_say else 0], said]).astype(np.int64)

    def learn(self, agreed: Longs) -> None:
        """Take the message that came, and the length of the next one."""
        if self._announced:
            self._heard.append(agreed[1:].astype("<i8").tobytes()[: self._announced])
        self._announced = int(agreed[0])
        self._said = self._to_say.popleft() if self._first and self._announced else b""
