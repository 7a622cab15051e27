"""What is kept of the soak's requests, however long it lasts.

Owns the records and their counts. Law: every request is counted; of the right and cut ones an even sample is kept, of
the wrong and failed ones the first. Any thread.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal

MOST = 20_000
"""Records of good requests that are kept, and of bad ones."""

RECENT = 2_000
"""Records between two calls of :meth:`Records.recent` that are kept, the latest."""

Outcome = Literal["right", "wrong", "failed", "cut"]


@dataclass(frozen=True)
class Record:
    """One request of the load; times on the clock of ``time.perf_counter``."""

    began_s: float
    ended_s: float
    outcome: Outcome
    source: str
    ttft_s: float
    error: str = ""


class Records:
    """A bounded memory of requests.

    Attributes
    ----------
    counts
        All requests by outcome.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._good: list[Record] = []
        self._bad: list[Record] = []
        self._recent: deque[Record] = deque(maxlen=RECENT)
        self._seen = 0
        self._every = 1
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Count a request, and keep it as the law says."""
        with self._lock:
            self.counts[record.outcome] += 1
            self._recent.append(record)
            if record.outcome in ("wrong", "failed"):
                if len(self._bad) < self._most:
                    self._bad.append(record)
                return
            if self._seen % self._every == 0:
                self._good.append(record)
            self._seen += 1
            if len(self._good) > self._most:
                self._good = self._good[::2]
                self._every *= 2

    def __len__(self) -> int:
        """Return how many requests there were."""
        with self._lock:
            return self.counts.total()

    def kept(self) -> list[Record]:
        """Return what is kept, in the order in which it began."""
        with self._lock:
            return sorted([*self._good, *self._bad], key=lambda record: record.began_s)

    def recent(self) -> list[Record]:
        """Return what came since the last call; for one caller."""
        with self._lock:
            found = list(self._recent)
            self._recent.clear()
            return found
