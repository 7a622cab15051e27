"""Keeps of the requests that were replayed what the ceiling needs to know, in a few bytes each.

Owns the record: 4 bytes per block reference (per node on a path, that is) and 20 per request, and nothing any more
once there are more than :data:`MOST` references. One thread.
"""

from __future__ import annotations

from array import array

from radixtier.lab.traces.trace import Request

MOST = 50_000_000
"""References from which on a trace is too long; computing the ceiling of so many takes some 2 GB for a moment."""


class Tape:
    """Requests, a column each."""

    def __init__(self, most: int = MOST) -> None:
        self.times = array("d")
        self.tokens = array("q")
        """Of the prompt."""
        self.nodes = array("i")
        """Nodes of the path of each request, and behind them those of its answer."""
        self.paths = array("i")
        """Nodes on the path of each request."""
        self.answers = array("i")
        self.too_long = False
        """There were too many, so it is empty."""
        self._most = most

    def __len__(self) -> int:
        return len(self.times)

    def add(self, request: Request, tokens: int) -> None:
        """Note a request; ``tokens`` of its prompt."""
        if self.too_long:
            return
        if len(self.nodes) + len(request.path) + len(request.answer) > self._most:
            for column in (self.times, self.tokens, self.nodes, self.paths, self.answers):
                del column[:]
            self.too_long = True
            return
        self.times.append(request.time)
        self.tokens.append(tokens)
        self.nodes.extend(request.path)
        self.nodes.extend(request.answer)
        self.paths.append(len(request.path))
        self.answers.append(len(request.answer))
