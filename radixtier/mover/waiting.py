"""What is kept of a request between arrival and admission, and of a path that it matched.

Owns nothing. Scheduler thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from radixtier.mover.promotion import Promotion
from radixtier.policy.promotion import Plan
from radixtier.tree.residency import Flags, Pages, ResidencyTable


@dataclass(frozen=True, slots=True)
class Path:
    """The part of a matched path that is not in HBM, root-side first, as of one epoch of the residency table."""

    epoch: int
    pages: Pages
    known: int
    """Leading pages that exist on some tier."""
    loadable: int
    """Leading pages that are in DRAM."""

    @classmethod
    def of(cls, pages: Pages, table: ResidencyTable) -> Path:
        """Look up where pages are now."""
        in_dram = table.in_dram(pages)
        return cls(table.epoch, pages, _leading(in_dram | table.is_cold(pages)), _leading(in_dram))


class Cut(NamedTuple):
    """Where a match ends, since what is behind cannot be delivered."""

    pages: int
    """Of the path below HBM that are delivered."""
    final: bool
    """More will not come for this request."""


@dataclass(slots=True)
class Waiting:
    """A request between arrival and admission."""

    cold: Pages
    """Every page that was on NVMe only when the request asked for it."""
    promotion: Promotion | None = None
    node: int = -1
    """Where the path of the promotion ends in SGLang's tree."""
    hbm_tokens: int = 0
    """Tokens of its path that were in HBM when it asked."""
    prompt_tokens: int = 0
    plan: Plan | None = None
    """For what it waits, and for how long."""
    admissible: bool = False
    """The scheduler may admit it: from now on only what is in DRAM counts."""
    expired: bool = False
    """Its deadline passed: it takes what has arrived and asks for no more."""
    known: int = 0
    """Pages of its path below HBM that existed on some tier when it asked."""
    blocked_at: float | None = None
    """When the scheduler first wanted to admit it and could not, seconds."""
    waited_s: float = 0.0
    """How long it could not."""

    def covers(self, node: int, tokens: int, page_tokens: int) -> bool:
        """Whether the ``tokens`` that a match found below HBM, up to ``node``, are held in DRAM for this request."""
        held = self.promotion
        if held is None or not held.whole or node != self.node:
            return False
        return tokens <= len(held.pages) * page_tokens


def _leading(flags: Flags) -> int:
    """Number of leading true values."""
    first = int(flags.argmin()) if len(flags) else 0
    return first if len(flags) and not flags[first] else len(flags)
