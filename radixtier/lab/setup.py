"""From names and sizes to a run: the policies are made as the server makes them.

Owns what a run is set up from. One thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from radixtier.lab.future import Future, NextUseOracle
from radixtier.lab.rates import Rates
from radixtier.lab.replay import ceiling as best
from radixtier.lab.replay import replay
from radixtier.lab.report import NAMES, Fare, Report
from radixtier.lab.tape import Tape
from radixtier.lab.tiers import Sizes, Tiers
from radixtier.lab.timing import Costs
from radixtier.lab.traces.trace import Nodes, Request, Trace
from radixtier.policy.admission import Admission, make_admission
from radixtier.policy.eviction import EvictionOrder, Shape, ShapeOf, make_order
from radixtier.policy.returns import Returns
from radixtier.policy.write_budget import Budgeted, WriteBudget, parse_budget

DEFAULT_RATES = Rates()

SINGLE = 4096
"""Depth up to which shapes of nodes of one block are kept."""

PREDICTED = ("next_use", "auto")
"""Eviction policies that go by predicted returns."""

ORACLE = NextUseOracle.name
"""In the place of an eviction policy: who knows the next use. It takes the trace into memory."""


@dataclass(frozen=True)
class Setup:
    """Sizes (blocks), policies and what a block weighs.

    Raises
    ------
    ValueError
        On a size, a name or a budget that cannot be; the text says which.
    """

    hbm: int
    dram: int = 0
    nvme: int = 0
    eviction: str = "lru"
    admission: str = "auto"
    write_budget: str = "none"
    kv_bytes_per_token: int = 128 << 10
    mirror: bool = False

    def __post_init__(self) -> None:
        Sizes(self.hbm, self.dram, self.nvme)
        if self.kv_bytes_per_token < 1:
            raise ValueError(f"--kv-bytes-per-token {self.kv_bytes_per_token}: give 1 at least")
        parse_budget(self.write_budget, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return every value, for JSON."""
        return asdict(self)

    def make_admission(self, block_bytes: int) -> Admission:
        """Make the admission, under its budget if there is NVMe."""
        inner = make_admission(self.admission, self.nvme)
        budget = parse_budget(self.write_budget, self.nvme * block_bytes) if self.nvme else None
        return inner if budget is None else Budgeted(inner, WriteBudget(budget))


def run(
    trace: Trace,
    setup: Setup,
    *,
    rates: Rates = DEFAULT_RATES,
    ceiling: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Replay a trace.

    Without the ceiling a trace is streamed; with it, a few bytes of every reference are kept
    (:mod:`radixtier.lab.tape`). An interrupt (`KeyboardInterrupt`) ends the run, and the report is of what was replayed
    until then, without the ceiling.

    Parameters
    ----------
    trace
        Opened, its requests not taken yet.
    setup
        Sizes and policies.
    rates
        Of the machine.
    ceiling
        Whether Belady's choice is wanted besides.
    progress
        Called after each request with the number of those served.

    Raises
    ------
    BadTrace
        On the first line that cannot be used.
    OSError
        When the file cannot be read.
    """
    block_bytes = trace.block_tokens * setup.kv_bytes_per_token
    requests, dram_order, nvme_order = _orders(trace, setup)
    sizes = Sizes(setup.hbm, setup.dram, setup.nvme)
    tiers = Tiers(
        trace.nodes,
        sizes,
        dram_order,
        nvme_order,
        setup.make_admission(block_bytes),
        block_bytes=block_bytes,
        mirror=setup.mirror,
    )
    returns = Returns() if setup.eviction in PREDICTED else None
    costs, tape = Costs(rates, trace.block_tokens, block_bytes), Tape() if ceiling else None
    with _no_cycles():
        outcome = replay(requests, tiers, costs, returns=returns, tape=tape, progress=progress)
    stacks = {name: Fare.of(stack) for name, stack in outcome.stacks.items()}
    if tape is not None and not tape.too_long and not outcome.interrupted:
        stacks[NAMES[3]] = best(tape, trace.nodes, sizes, costs)
    return Report(
        tiers.counts,
        stacks,
        outcome.input_tokens,
        block_bytes,
        setup.nvme,
        outcome.last - outcome.first,
        mirror=setup.mirror,
        skipped=trace.skipped,
        interrupted=outcome.interrupted,
        ceiling_skipped=tape is not None and tape.too_long,
    )


def _orders(trace: Trace, setup: Setup) -> tuple[Iterable[Request], EvictionOrder, EvictionOrder]:
    """Make the eviction orders of DRAM and NVMe, and say where the requests come from then."""
    nodes, requests = trace.nodes, trace.requests()
    if setup.eviction == ORACLE:
        known = list(requests)
        future = Future(known)
        return future.served(known), NextUseOracle(future, nodes), NextUseOracle(future, nodes)
    dram, nvme = (make_order(setup.eviction, _shape_of(nodes), max(1, size)) for size in (setup.dram, setup.nvme))
    return requests, dram, nvme


def _shape_of(nodes: Nodes) -> ShapeOf:
    """Return what `Nodes.shape` does, in half the time: it is asked for every node that enters a tier."""
    pages_of, depth_of, new = nodes.pages, nodes.depth, tuple.__new__
    single = [Shape(1, depth) for depth in range(SINGLE)]

    def shape(node: int) -> Shape:
        pages, depth = pages_of[node], depth_of[node]
        return single[depth] if pages == 1 and depth < SINGLE else new(Shape, (pages, depth))

    return shape


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Leave the search for cycles out: millions of nodes live to the end of a run and none is in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
