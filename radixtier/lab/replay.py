"""Replays a trace over three tiers with the policies that serve, and reports what came of it.

Owns the way from names and sizes to a run and its report. What the server tells its policies they are told here at
the same moments: a use at every request, and after it when the session is expected back. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from radixtier.lab.tiers import Counts, Tiers
from radixtier.lab.traces.trace import Request
from radixtier.policy.eviction.order import EvictionOrder


class Predictor(Protocol):
    """When sessions come back: :class:`radixtier.policy.returns.Returns`."""

    def ended(self, session: int, now: float) -> None:
        """A turn ended."""

    def began(self, session: int, now: float) -> None:
        """The next turn arrived."""

    def expected(self, session: int, now: float) -> float | None:
        """Time of the next turn."""


@dataclass(frozen=True)
class Report:
    """What came of a run."""

    counts: Counts
    block_bytes: int
    seconds: float
    """Between the first and the last request."""

    def ratio(self, hits: int) -> float:
        """Share of all blocks."""
        return hits / self.counts.blocks if self.counts.blocks else 0.0

    @property
    def hbm_ratio(self) -> float:
        """Share found in HBM."""
        return self.ratio(self.counts.hbm_hits)

    @property
    def dram_ratio(self) -> float:
        """Share found in HBM or DRAM."""
        return self.ratio(self.counts.hbm_hits + self.counts.dram_hits)

    @property
    def hit_ratio(self) -> float:
        """Share found in any tier."""
        return self.ratio(self.counts.hits)

    @property
    def bytes_written(self) -> int:
        """Bytes written to NVMe."""
        return self.counts.written * self.block_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return every figure, for JSON."""
        ratios = {"hbm": self.hbm_ratio, "hbm_dram": self.dram_ratio, "total": self.hit_ratio}
        days = self.seconds / 86_400
        return {
            **asdict(self.counts),
            "hits": self.counts.hits,
            "hit_ratio": {name: round(ratio, 6) for name, ratio in ratios.items()},
            "block_bytes": self.block_bytes,
            "bytes_written": self.bytes_written,
            "bytes_written_per_day": round(self.bytes_written / days) if days else None,
            "seconds": self.seconds,
        }


def replay(
    requests: Iterable[Request],
    tiers: Tiers,
    *,
    block_bytes: int = 1,
    returns: Predictor | None = None,
    progress: Callable[[Counts], None] | None = None,
) -> Report:
    """Serve every request, one after the other.

    Parameters
    ----------
    requests
        In the order of time.
    tiers
        Where blocks are.
    block_bytes
        Bytes of a block.
    returns
        Says when a session is expected back; a turn ends where it begins.
    progress
        Called after each request.
    """
    first = last = None
    for request in requests:
        time, session, path = request.time, request.session, request.path
        first = time if first is None else first
        last = time
        tell = None
        if returns is not None:
            returns.began(session, time)
            returns.ended(session, time)
            tell = partial(_expect, path[-1], returns.expected(session, time))
        tiers.request(path, time, tell)
        if progress is not None:
            progress(tiers.counts)
    return Report(tiers.counts, block_bytes, (last or 0.0) - (first or 0.0))


def _expect(node: int, when: float | None, order: EvictionOrder) -> None:
    order.expect(node, when)
