"""From names and sizes to a run: the policies are made as the server makes them.

Owns what a run is set up from. One thread.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radixtier.lab.future import Future, NextUseOracle
from radixtier.lab.replay import Report, replay
from radixtier.lab.tiers import Sizes, Tiers
from radixtier.lab.traces.opening import open_trace
from radixtier.policy.admission import Admission, make_admission
from radixtier.policy.eviction import EvictionOrder, make_order
from radixtier.policy.returns import Returns
from radixtier.policy.write_budget import Budgeted, WriteBudget, parse_budget

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
        """Make the admission, under its budget."""
        inner = make_admission(self.admission, self.nvme)
        budget = parse_budget(self.write_budget, self.nvme * block_bytes)
        return inner if budget is None else Budgeted(inner, WriteBudget(budget))


def run(file: Path, setup: Setup) -> Report:
    """Replay a trace.

    Raises
    ------
    BadTrace
        On the first line that cannot be used.
    OSError
        When the file cannot be read.
    """
    trace = open_trace(file)
    block_bytes = trace.block_tokens * setup.kv_bytes_per_token
    requests = trace.requests()
    dram_order: EvictionOrder
    nvme_order: EvictionOrder
    if setup.eviction == ORACLE:
        known = list(requests)
        future = Future(known)
        requests = future.served(known)
        dram_order, nvme_order = NextUseOracle(future, trace.nodes), NextUseOracle(future, trace.nodes)
    else:
        dram_order = make_order(setup.eviction, trace.nodes.shape, max(1, setup.dram))
        nvme_order = make_order(setup.eviction, trace.nodes.shape, max(1, setup.nvme))
    tiers = Tiers(
        trace.nodes,
        Sizes(setup.hbm, setup.dram, setup.nvme),
        dram_order,
        nvme_order,
        setup.make_admission(block_bytes),
        block_bytes=block_bytes,
        mirror=setup.mirror,
    )
    returns = Returns() if setup.eviction in PREDICTED else None
    return replay(requests, tiers, block_bytes=block_bytes, returns=returns)
