"""Watches the prefill batches of this server, for the estimate of what recomputing costs.

Owns the batches on their way. A batch begins when its loads are started, and is over when the last of its requests
makes its first insertion into the tree. Scheduler thread only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from radixtier.policy.prefill import PrefillCost
from radixtier.ranks import Ranks

BATCHES_REMEMBERED = 4096
"""Requests whose first insertion may be outstanding; more than that only after errors."""


@dataclass(slots=True)
class _Batch:
    requests: set[Any] = field(default_factory=set)
    started: float = 0.0
    parts: list[tuple[int, int]] = field(default_factory=list)
    """New tokens and those in front of them, of each request that is over."""


class PrefillWatch:
    """Feeds :class:`PrefillCost`."""

    def __init__(self, ranks: Ranks) -> None:
        self.cost = PrefillCost()
        self._ranks = ranks
        self._next = _Batch()
        self._running: dict[Any, _Batch] = {}

    def admitted(self, request: Any) -> None:
        """A request joins the next batch."""
        self._next.requests.add(request)

    def begin(self) -> None:
        """The requests admitted since the last call start their prefill as one batch."""
        batch, self._next = self._next, _Batch()
        batch.started = time.monotonic()
        if len(self._running) > BATCHES_REMEMBERED:
            self._running.clear()
        self._running.update(dict.fromkeys(batch.requests, batch))

    def inserted(self, request: Any, start: int, end: int) -> None:
        """A request inserts tokens ``start .. end - 1``; the first time it does so, its part of the batch is over."""
        batch = self._running.pop(request, None)
        if batch is None:
            return
        batch.requests.discard(request)
        batch.parts.append((end - start, start))
        if not batch.requests:
            took = time.monotonic() - batch.started
            self._ranks.measured(took, lambda seconds: self.cost.observe(batch.parts, seconds))

    def dropped(self, request: Any) -> None:
        """A request is gone without an insertion: its batch tells nothing any more."""
        batch = self._running.pop(request, None)
        if batch is not None:
            batch.requests.add(None)
