"""What every trace reader delivers: requests as paths of nodes of one prefix tree.

Owns :class:`Nodes`, the tree that a trace spells out, and the forms of a request and of a reader. Invariant: a node
has one parent, and its pages (here: the blocks of the trace) are numbered once, so that equal numbers mean equal
prefixes up to there. One thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from radixtier.lab.traces.lines import BadTrace
from radixtier.policy.admission import FANOUT, Keys
from radixtier.policy.draw import mixed
from radixtier.policy.eviction.order import Shape

__all__ = ["ROOT", "BadTrace", "Nodes", "Request", "Served", "Trace"]

ROOT = -1
"""Parent of the nodes that start a path."""


class Nodes:
    """Nodes by number: parent, pages, pages in front, and number of the first page.

    Takes 33 bytes a node, and 8 to 16 bytes a page once :meth:`keys` has been asked for.
    """

    def __init__(self) -> None:
        self.parent: MutableSequence[int] = array("i")
        self.pages: MutableSequence[int] = array("i")
        self.depth: MutableSequence[int] = array("q")
        self.first: MutableSequence[int] = array("q")
        self.lead: MutableSequence[int] = array("q")
        """See :attr:`radixtier.policy.admission.Candidate.lead`."""
        self.n_pages = 0
        self._children = array("B")
        """Counted up to :data:`FANOUT`."""
        self._keys: Keys = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self.parent)

    def add(self, parent: int, pages: int) -> int:
        """Hang a node of ``pages`` pages below ``parent``; returns its number."""
        lead, depth, first = self.n_pages, 0, self.n_pages
        if parent != ROOT:
            if (children := self._children[parent]) < FANOUT:
                lead = self.lead[parent]
                self._children[parent] = children + 1
            depth = self.depth[parent] + self.pages[parent]
        self.lead.append(lead)
        self._children.append(0)
        self.depth.append(depth)
        self.parent.append(parent)
        self.pages.append(pages)
        self.first.append(first)
        self.n_pages = first + pages
        return len(self.parent) - 1

    def add_chain(self, parent: int, count: int) -> range:
        """Hang ``count`` nodes of one page each below ``parent``, one behind the other; returns their numbers."""
        if count == 0:
            return range(0)
        start = self.add(parent, 1)
        more, depth = count - 1, self.depth[start]
        self.lead.extend(array("q", [self.lead[start]]) * more)
        self._children[start:] = array("B", [1]) * more
        self._children.append(0)
        self.depth.extend(range(depth + 1, depth + count))
        self.parent.extend(range(start, start + more))
        self.pages.extend(array("i", [1]) * more)
        self.first.extend(range(self.n_pages, self.n_pages + more))
        self.n_pages += more
        return range(start, start + count)

    def up(self, node: int) -> list[int]:
        """Return the path that ends in a node, root-side first; none for :data:`ROOT`."""
        parent, path = self.parent, []
        while node != ROOT:
            path.append(node)
            node = parent[node]
        path.reverse()
        return path

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
    """When its answer was complete, None when it was aborted or the recording ends before."""


class Request(NamedTuple):
    """One request: the blocks of its prompt that a server can look up.

    Public traces list the partial block at the end of a prompt as well, and every request has a block. A recorded
    trace lists whole pages of all but the prompt's last token, which SGLang always computes, so that the path of a
    prompt of at most one page **is empty**: whoever replays counts such a request and finds nothing for it.
    """

    time: float
    """Arrival, seconds since the start of the trace, never less than that of the request before."""
    session: int
    """Who comes back: a conversation, an agent."""
    path: Sequence[int]
    """Nodes of the prompt, root-side first; may be empty."""
    input_tokens: int = 0
    """Of the prompt, 0 when the format does not tell."""
    output_tokens: int = 0
    """Of the answer, 0 when the format does not tell."""
    think_s: float | None = None
    """From the end of the session's turn before to this arrival; None when the format does not tell, when there was no
    such turn, or when it had not ended."""
    answer: Sequence[int] = ()
    """Nodes behind the path that are there once the answer is: its own, and the one of the prompt's last page where
    that is whole but cannot be looked up. For formats that tell."""
    served: Served | None = None
    """What the server that recorded the trace did."""


class Trace(Protocol):
    """A trace file, opened."""

    nodes: Nodes
    """Filled while the requests are read."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""

    @property
    def skipped(self) -> int:
        """Lines left out so far because they cannot be used; 0 unless that was asked for."""

    @property
    def first_bad(self) -> str | None:
        """File, line and reason of the first of them."""

    def requests(self) -> Iterator[Request]:
        """Read the requests, once.

        Raises
        ------
        BadTrace
            On the first line that cannot be used, unless such lines are to be skipped.
        OSError
            When the file cannot be read.
        """
