"""Replays requests over three tiers, and over the same server with fewer of them.

Owns the loop over a trace. What the server tells its policies they are told here at the same moments: a use at every
request, and after it when the session is expected back. What is in HBM does not depend on what lies below, nor what is
in DRAM on NVMe, so that one pass tells how the requests fare with one tier, two and three. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from radixtier.lab.belady import Needs
from radixtier.lab.report import NAMES, Fare
from radixtier.lab.tape import Tape
from radixtier.lab.tiers import Sizes, Tiers
from radixtier.lab.timing import Costs, Stack
from radixtier.lab.traces.trace import Nodes, Request
from radixtier.policy.eviction.order import EvictionOrder


class Predictor(Protocol):
    """When sessions come back: :class:`radixtier.policy.returns.Returns`."""

    def ended(self, session: int, now: float) -> None:
        """A turn ended."""

    def began(self, session: int, now: float) -> None:
        """The next turn arrived."""

    def expected(self, session: int, now: float) -> float | None:
        """Time of the next turn."""


@dataclass
class Outcome:
    """How the requests fared so far."""

    stacks: dict[str, Stack]
    input_tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    """Arrivals, seconds."""
    interrupted: bool = False


def replay(
    requests: Iterable[Request],
    tiers: Tiers,
    costs: Costs,
    *,
    returns: Predictor | None = None,
    tape: Tape | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Serve every request, one after the other; an interrupt (`KeyboardInterrupt`) ends it early.

    Parameters
    ----------
    requests
        In the order of time.
    tiers
        Where blocks are.
    costs
        What requests take.
    returns
        Says when a session is expected back; a turn ends where it begins.
    tape
        Gets every request, for the ceiling.
    progress
        Called after each request with the number of those served.
    """
    hbm, hbm_dram, three = (Stack(costs) for _ in NAMES[:3])
    outcome = Outcome(dict(zip(NAMES, (hbm, hbm_dram, three), strict=False)))
    counts, pages_of = tiers.counts, tiers.nodes.pages
    try:
        for request in requests:
            now, path = request.time, request.path
            if not counts.requests:
                outcome.first = now
            outcome.last = now
            tell = None
            if returns is not None:
                returns.began(request.session, now)
                returns.ended(request.session, now)
                if path or request.answer:
                    tell = partial(_expect, (*path, *request.answer)[-1], returns.expected(request.session, now))
            found = tiers.request(path, now, tell, request.answer)
            tokens = request.input_tokens or sum(map(pages_of.__getitem__, path)) * costs.block_tokens
            outcome.input_tokens += tokens
            hbm.serve(now, tokens, found.hbm, 0, 0)
            hbm_dram.serve(now, tokens, found.hbm, found.dram, 0)
            three.serve(now, tokens, *found)
            if tape is not None:
                tape.add(request, tokens)
            if progress is not None:
                progress(counts.requests)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


def ceiling(tape: Tape, nodes: Nodes, sizes: Sizes, costs: Costs) -> Fare:
    """Serve the requests on a tape by Belady's choice for HBM, for HBM and DRAM, and for all three together."""
    needs = Needs(tape, nodes)
    stack = Stack(costs)
    capacities = (sizes.hbm, sizes.hbm + sizes.dram, sizes.hbm + sizes.dram + sizes.nvme)
    hits = [needs.hits(blocks) for blocks in dict.fromkeys(capacities)]
    hits += hits[-1:] * (len(capacities) - len(hits))
    for now, tokens, one, two, three in zip(tape.times, tape.tokens, *hits, strict=True):
        stack.serve(now, tokens, one, two - one, three - two)
    return Fare.of(stack)


def _expect(node: int, when: float | None, order: EvictionOrder) -> None:
    order.expect(node, when)
