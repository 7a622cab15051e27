"""Keeps a trace in memory, so that it is read once for many replays.

Owns the requests that it read. A trace of more than :data:`MOST_BLOCKS` references is not kept but read from its file
each time. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy

from radixtier.lab.traces.trace import Request, Trace

MOST_BLOCKS = 20_000_000
"""Nodes on the paths of all requests, 8 bytes each."""


class Held:
    """A trace in memory; its requests can be had any number of times."""

    def __init__(self, trace: Trace, requests: list[Request]) -> None:
        self.nodes = trace.nodes
        self.block_tokens = trace.block_tokens
        self.skipped = trace.skipped
        self.first_bad = trace.first_bad
        self._requests = requests

    def requests(self) -> Iterator[Request]:
        """Yield the requests."""
        return iter(self._requests)


class Shelf:
    """The trace that was asked for last.

    Parameters
    ----------
    traces
        Opened and not read yet, by name. They stay so: copies are read.
    most
        References to keep.
    """

    def __init__(self, traces: Mapping[str, Trace], most: int = MOST_BLOCKS) -> None:
        self._traces = traces
        self._most = most
        self._name: str | None = None
        self._found: Held | Exception | None = None

    def get(self, name: str) -> Trace:
        """Return a trace whose requests have not been taken.

        Raises
        ------
        BadTrace, OSError
            What reading it raises, also when it is asked for again.
        """
        if name != self._name:
            self._name, self._found = name, None
            try:
                self._found = self._read(deepcopy(self._traces[name]))
            except (ValueError, OSError) as error:
                self._found = error
        if isinstance(self._found, Exception):
            raise self._found
        return self._found if self._found is not None else deepcopy(self._traces[name])

    def _read(self, trace: Trace) -> Held | None:
        requests: list[Request] = []
        blocks = 0
        for request in trace.requests():
            blocks += len(request.path)
            if blocks > self._most:
                return None
            requests.append(request)
        return Held(trace, requests)
