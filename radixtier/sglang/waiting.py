"""What the cache keeps of a request between arrival and admission, and of a path that it matched.

Owns nothing. Scheduler thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchResult

from radixtier.explain import RequestRecord
from radixtier.mover import Promotion
from radixtier.policy.promotion import Plan
from radixtier.tree.residency import Pages


@dataclass(frozen=True, slots=True)
class Path:
    """The part of a matched path that is not in HBM, root-side first, as of one epoch of the residency table."""

    epoch: int
    pages: Pages
    known: int
    """Leading pages that exist on some tier."""
    loadable: int
    """Leading pages that are in DRAM."""


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

    def covers(self, result: MatchResult, page_size: int) -> bool:
        """Whether all that a match found below HBM is held in DRAM for this request."""
        held = self.promotion
        if held is None or not held.whole or result.best_match_node != self.node:
            return False
        return bool(result.host_hit_length <= len(held.pages) * page_size)


@dataclass(slots=True)
class Request:
    """A request from arrival to its end."""

    record: RequestRecord
    arrived: float
    """Seconds of the monotonic clock."""
    hints: Any = None
    """SGLang's ``kv_hints`` envelope."""
    node: int = -1
    """Where its path ended when it was last matched."""
    admitted: bool = False
