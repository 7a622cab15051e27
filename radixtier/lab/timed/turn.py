"""A request in virtual time, from arrival to the end of its answer.

Owns nothing. Pages are numbers that stand for a prefix. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from radixtier.lab.timed.radix import Node
from radixtier.lab.traces.trace import Nodes, Request
from radixtier.tree.residency import NO_PAGES, Pages


@dataclass(eq=False)
class Turn:
    """One request."""

    number: int
    """Place in the trace."""
    session: int
    path: Pages
    """Whole pages of prompt and answer."""
    input_tokens: int
    output_tokens: int
    page_tokens: int
    arrived: float
    """Seconds, as everything here."""
    think_s: float | None = None
    """See :attr:`radixtier.lab.traces.trace.Request.think_s`."""
    refused: bool = False
    """HBM is too small for it."""
    node: Node | None = None
    """Where its path ended when it was last matched."""
    matched: int = 0
    """Pages that matched when it asked for its path."""
    expired: bool = False
    """It takes what is there and asks for no more."""
    locked: Node | None = None
    loading: Pages = field(default_factory=lambda: NO_PAGES)
    computed: int = 0
    """Tokens of the prompt that need not be computed any more."""
    inserted: int = 0
    """Pages of its path that the tree keeps in HBM for it."""
    held: int = 0
    """Pages of HBM that it has and the tree does not."""
    answered: int = 0
    """Tokens of the answer."""
    hbm: int = 0
    dram: int = 0
    nvme: int = 0
    """Tokens found in each tier at admission."""
    waited_s: float = 0.0
    """For pages from NVMe."""
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0

    @property
    def matchable(self) -> Pages:
        """Pages that a match may find: the last token of a prompt is always computed."""
        return self.path[: (self.input_tokens - 1) // self.page_tokens]

    def pages_for(self, tokens: int) -> int:
        """Return the pages that hold so many tokens, a part of one included."""
        return -(-tokens // self.page_tokens)

    @classmethod
    def of(cls, number: int, request: Request, nodes: Nodes, page_tokens: int) -> Turn:
        """Make a turn of a request of a trace.

        A block that is not whole is no page: SGLang keeps whole ones only. Where a format does not tell the tokens of
        the prompt, its blocks are taken for whole, and one token is behind them.
        """
        spans = [(nodes.first[node], nodes.pages[node]) for node in (*request.path, *request.answer)]
        path = np.concatenate([np.arange(at, at + n) for at, n in spans]) if spans else NO_PAGES
        blocks = sum(nodes.pages[node] for node in request.path)
        tokens = request.input_tokens or blocks * page_tokens + 1
        whole = (tokens + max(1, request.output_tokens) - 1) // page_tokens
        return cls(
            number, request.session, path[:whole], tokens, max(1, request.output_tokens), page_tokens, request.time,
            request.think_s,
        )  # fmt: skip
