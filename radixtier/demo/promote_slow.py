"""A drive that is slow, or becomes it: are returning conversations as fast as without the tier?

Owns the conversations, which two servers are told word by word, one after the other: stock SGLang, whose HBM has
forgotten each conversation when it returns, and the tiered one, which has it on NVMe only. Three phases per factor: at
full speed, after the drive collapsed to 1/factor under the running server, and on a server that finds the drive slow
when it starts. Invariant: while one server works nobody asks the other; it sleeps, but for what its drive still has to
do. Main thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from radixtier.demo.promote_rig import Explained, Rig, Sizes, Tiered, served, where
from radixtier.live.client import Client
from radixtier.load.figures import percentile

TARGET = 1.10
"""Most that p95 of the time to first token may be, over that without the tier."""

QUESTION_TOKENS, ANSWER_TOKENS = 16, 8


@dataclass(frozen=True)
class SlowPlan:
    """How much is measured."""

    factors: tuple[int, ...]
    """How many times slower the drive gets; each is measured by itself, on a store of its own."""
    conversations: int
    prompt_tokens: int
    """Of a conversation's first turn."""
    fast_rounds: int
    slow_rounds: int
    """Rounds of each slow phase; in a round every conversation returns once."""

    @property
    def sizes(self) -> Sizes:
        """Tiers in which a conversation that returns after all others is on NVMe only."""
        rounds = 1 + self.fast_rounds + 2 * self.slow_rounds
        longest = self.prompt_tokens + rounds * (QUESTION_TOKENS + ANSWER_TOKENS)
        one = (longest * 5 // 4 + 64) // 64 * 64
        return Sizes(hbm=one, dram=one, nvme=4 * self.conversations * one)


@dataclass(kw_only=True)
class Sample(Explained):
    """One turn, on both sides; times to first token in seconds."""

    stock_s: float
    tier_s: float
    same_output: bool


class Talk:
    """Conversations with both servers."""

    def __init__(self, rig: Rig, plan: SlowPlan, stock: Client) -> None:
        self._rig = rig
        self._stock = stock
        self._histories = [rig.tokens(plan.prompt_tokens) for _ in range(plan.conversations)]
        self._turns = 0

    def rounds(self, name: str, count: int, tier: Tiered) -> list[Sample]:
        """Let every conversation return ``count`` times."""
        samples = [self._turn(name, at, tier) for _ in range(count) for at in range(len(self._histories))]
        tier.explain(samples)
        return samples

    def _turn(self, name: str, at: int, tier: Tiered) -> Sample:
        self._turns += 1
        rid = f"{name}-{self._turns}"
        prompt = self._histories[at] + self._rig.tokens(QUESTION_TOKENS)
        replies = {}
        # Who is first alternates, so that the machine's mood hits both alike.
        for client in (self._stock, tier.client)[:: 1 if self._turns % 2 else -1]:
            replies[client] = client.generate(prompt, ANSWER_TOKENS, rid=rid)
        stock, tiered = replies[self._stock], replies[tier.client]
        self._histories[at] = [*prompt, *stock.output_ids]
        same = stock.output_ids == tiered.output_ids
        return Sample(**served(rid, tiered), stock_s=stock.ttft_s, tier_s=tiered.ttft_s, same_output=same)


def measure(rig: Rig, plan: SlowPlan) -> dict[str, Any]:
    """Return ``target``, ``sizes`` and a row per factor and phase; see :func:`summarise`."""
    rows = []
    with rig.stock(plan.sizes.hbm) as stock:
        for factor in plan.factors:
            rows += _measure(rig, plan, stock.client, factor)
    return {"target": TARGET, "sizes": asdict(plan.sizes), "plan": asdict(plan), "rows": rows}


def _measure(rig: Rig, plan: SlowPlan, stock: Client, factor: int) -> list[dict[str, Any]]:
    talk, store, slow = Talk(rig, plan, stock), rig.store(f"slow-{factor}"), f"slow={factor}"
    rows = []

    def phase(name: str, samples: Sequence[Sample]) -> None:
        rows.append({"factor": factor, "phase": name, **summarise(samples)})
        rig.screen.line(line(rows[-1]))

    with rig.tiered(f"collapse-{factor}", plan.sizes, store) as tier:
        talk.rounds(f"{factor}-opening", 1, tier)
        tier.settle()
        phase("full speed", talk.rounds(f"{factor}-fast", plan.fast_rounds, tier))
        tier.settle()
        tier.misbehave(slow)
        phase("collapsed", talk.rounds(f"{factor}-collapsed", plan.slow_rounds, tier))
        tier.misbehave("")
        tier.settle()
    with rig.tiered(f"start-{factor}", plan.sizes, store, faults=slow) as tier:
        phase("slow from the start", talk.rounds(f"{factor}-start", plan.slow_rounds, tier))
        # Else the server's end would wait for all that it has not stored yet.
        tier.misbehave("")
    return rows


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the figures of a phase.

    Returns
    -------
    dict
        Seconds to the first token: ``stock_p50_s``, ``stock_p95_s``, ``tier_p50_s``, ``tier_p95_s``, ``tier_max_s``;
        ``p50_ratio`` and ``p95_ratio`` of these, ``paired_ratio`` (median over turns); ``waited_p95_s``,
        ``waited_max_s``: how long admission waited for NVMe; ``where``, shares of the prompts' tokens; ``requests``;
        ``other_outputs``, which should be 0; ``samples``.
    """
    stock, tier = [sample.stock_s for sample in samples], [sample.tier_s for sample in samples]
    waited = [sample.waited_s for sample in samples]
    p50, p95 = ((percentile(stock, share) or 0.0, percentile(tier, share) or 0.0) for share in (0.5, 0.95))
    return {
        "requests": len(samples),
        "stock_p50_s": p50[0],
        "stock_p95_s": p95[0],
        "tier_p50_s": p50[1],
        "tier_p95_s": p95[1],
        "tier_max_s": max(tier),
        "p50_ratio": p50[1] / p50[0],
        "p95_ratio": p95[1] / p95[0],
        "paired_ratio": statistics.median(b / a for a, b in zip(stock, tier, strict=True)),
        "waited_p95_s": percentile(waited, 0.95) or 0.0,
        "waited_max_s": max(waited),
        "where": where(samples),
        "other_outputs": sum(not sample.same_output for sample in samples),
        "samples": [asdict(sample) for sample in samples],
    }


HEAD = (
    f"{'drive':<26} {'requests':>8} {'p50':>7} {'stock':>7} {'ratio':>6} {'p95':>7} {'stock':>7} {'ratio':>6} "
    f"{'waited':>7} {'DRAM':>5} {'NVMe':>5} {'computed':>8}"
)


def line(row: dict[str, Any]) -> str:
    """Return a row as a line under :data:`HEAD`; seconds, and shares of tokens in percent."""
    speed = "full speed" if row["phase"] == "full speed" else f"1/{row['factor']}, {row['phase']}"
    shares = row["where"]
    return (
        f"{speed:<26} {row['requests']:>8} {row['tier_p50_s']:>7.3f} {row['stock_p50_s']:>7.3f} "
        f"{row['p50_ratio']:>6.2f} {row['tier_p95_s']:>7.3f} {row['stock_p95_s']:>7.3f} {row['p95_ratio']:>6.2f} "
        f"{row['waited_max_s']:>7.3f} "
        f"{shares['dram']:>5.0%} {shares['nvme']:>5.0%} {shares['recomputed']:>8.0%}"
        + ("  OTHER OUTPUT" if row["other_outputs"] else "")
        + ("  over" if row["phase"] != "full speed" and row["p95_ratio"] > TARGET else "")
    )
