"""What every trace reader delivers: requests as paths of nodes of one prefix tree.

Owns :class:`Nodes`, the tree that a trace spells out, and the errors of readers. Invariant: a node has one parent,
and its pages (here: the blocks of the trace) are numbered once, so that equal numbers mean equal prefixes up to
there. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from radixtier.policy.admission import FANOUT, Keys
from radixtier.policy.draw import mixed
from radixtier.policy.eviction.order import Shape

ROOT = -1
"""Parent of the nodes that start a path."""


class BadTrace(ValueError):
    """A line that cannot be replayed; the text names file, line and reason."""

    def __init__(self, file: Path, line: int, why: str) -> None:
        super().__init__(f"{file}:{line}: {why}")


class Nodes:
    """Nodes by number: parent, pages, pages in front, and number of the first page."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.pages: list[int] = []
        self.depth: list[int] = []
        self.first: list[int] = []
        self.lead: list[int] = []
        """See :attr:`radixtier.policy.admission.Candidate.lead`."""
        self.n_pages = 0
        self._children: list[int] = []
        self._keys: Keys = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self.parent)

    def add(self, parent: int, pages: int) -> int:
        """Hang a node of ``pages`` pages below ``parent``; returns its number."""
        lead = self.n_pages
        if parent != ROOT:
            lead = self.lead[parent] if self._children[parent] < FANOUT else lead
            self._children[parent] += 1
        self.lead.append(lead)
        self._children.append(0)
        self.depth.append(0 if parent == ROOT else self.depth[parent] + self.pages[parent])
        self.parent.append(parent)
        self.pages.append(pages)
        self.first.append(self.n_pages)
        self.n_pages += pages
        return len(self.parent) - 1

    def shape(self, node: int) -> Shape:
        """Look up what an eviction policy may want to know."""
        return Shape(self.pages[node], self.depth[node])

    def keys(self, node: int, lo: int, hi: int) -> Keys:
        """Return the keys of pages ``lo .. hi - 1`` of a node."""
        first = self.first[node]
        if first + hi > len(self._keys):
            self._keys = mixed(np.arange(2 * (first + hi), dtype=np.uint64))
        return self._keys[first + lo : first + hi]


class Served(NamedTuple):
    """What a server did with a request."""

    hbm: int
    dram: int
    nvme: int
    """Tokens of the prompt found in each tier."""
    admitted: float
    """When its prefill could begin, seconds since the start of the trace."""
    ended: float | None
    """When its answer was complete, None when the recording ends before."""


class Request(NamedTuple):
    """One request: all blocks of its prompt, the partial one at the end included where the format has it."""

    time: float
    """Arrival, seconds since the start of the trace, never less than that of the request before."""
    session: int
    """Who comes back: a conversation, an agent."""
    path: Sequence[int]
    """Nodes of the prompt, root-side first."""
    input_tokens: int = 0
    """Of the prompt, 0 when the format does not tell."""
    output_tokens: int = 0
    think_s: float | None = None
    """From the end of the session's turn before to this arrival, None when the format does not tell."""
    answer: Sequence[int] = ()
    """Nodes that the answer adds behind the path, for formats that tell."""
    served: Served | None = None
    """What the server that recorded the trace did."""


class Trace(Protocol):
    """A trace file, opened."""

    nodes: Nodes
    """Filled while the requests are read."""
    block_tokens: int
    """Tokens of a block."""

    def requests(self) -> Iterator[Request]:
        """Read the requests, once. Raises `BadTrace` on the first line that cannot be used."""
