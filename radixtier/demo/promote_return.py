"""Predicted returns: does a conversation that comes back when expected find its path in DRAM?

Owns the sessions, each with a thread that plays its turns with a regular think time. DRAM holds some of them only, so
that a session's path leaves it between two turns. Until the server has seen enough pauses it predicts nothing, so the
same load is measured without prediction first: each turn counts for the side on which the server itself said it was,
half a think time before. Threads of the sessions; everything else main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from radixtier.control.client import ControlError
from radixtier.demo.promote_rig import Explained, Rig, Sizes, Tiered, served, where
from radixtier.load.figures import percentile

TARGET = 0.90
"""Least share of the predicted returns that find nothing of their path on NVMe only."""

QUESTION_TOKENS, ANSWER_TOKENS = 16, 8


@dataclass(frozen=True)
class ReturnPlan:
    """How much is measured."""

    sessions: int
    prompt_tokens: int
    turns: int
    """Turns per session, the first one included; ``sessions * (turns - 1)`` pauses, the first 32 are not predicted."""
    think_s: float
    """Seconds from the end of a turn to the next one of its session."""

    @property
    def sizes(self) -> Sizes:
        """HBM for two sessions, DRAM for three."""
        longest = self.prompt_tokens + self.turns * (QUESTION_TOKENS + ANSWER_TOKENS)
        one = (longest * 9 // 8 + 64) // 64 * 64
        return Sizes(hbm=2 * one, dram=3 * one, nvme=3 * self.sessions * one)


@dataclass(kw_only=True)
class Return(Explained):
    """One turn that is not a session's first; time to first token in seconds."""

    predicted: bool
    ttft_s: float


def measure(rig: Rig, plan: ReturnPlan) -> dict[str, Any]:
    """Play the sessions.

    Returns
    -------
    dict
        ``predicted`` and ``unpredicted``, see :func:`summarise`; ``counters`` of the server: pages ``promoted_by``,
        ``ahead_used`` and ``ahead_wasted``, by trigger; ``policies`` in the end; ``target``, ``sizes``, ``plan``.
    """
    with rig.tiered("returns", plan.sizes, rig.store("returns")) as tier:
        prompts = [rig.tokens(plan.prompt_tokens) for _ in range(plan.sessions)]
        questions = [[rig.tokens(QUESTION_TOKENS) for _ in range(plan.turns)] for _ in prompts]
        over = threading.Event()
        with ThreadPoolExecutor(plan.sessions) as pool:
            play = partial(_play, tier, plan, over)
            played = pool.map(play, range(plan.sessions), prompts, questions)
            try:
                returns = [each for session in played for each in session]
            finally:
                over.set()
        tier.explain(returns)
        state = tier.state()
    result: dict[str, Any] = {
        "predicted": summarise([each for each in returns if each.predicted]),
        "unpredicted": summarise([each for each in returns if not each.predicted]),
        "counters": {
            name: state["counters"][name] for name in ("promoted_by", "ahead_used", "ahead_wasted", "demoted")
        },
        "policies": state["policies"],
        "target": TARGET,
        "sizes": asdict(plan.sizes),
        "plan": asdict(plan),
    }
    for name in ("unpredicted", "predicted"):
        rig.screen.line(line(name, result[name]))
    return result


def _play(
    tier: Tiered,
    plan: ReturnPlan,
    over: threading.Event,
    at: int,
    prompt: Sequence[int],
    questions: Sequence[Sequence[int]],
) -> list[Return]:
    """Play one session; ``over`` ends its pauses, when another one failed."""
    session, history, returns = f"session-{at}", list(prompt), []
    predicted = False
    over.wait(at * plan.think_s / plan.sessions)
    for turn, question in enumerate(questions):
        history += question
        rid = f"{session}-{turn}"
        reply = tier.client.generate(history, ANSWER_TOKENS, rid=rid, session_id=session)
        ended = time.monotonic()
        if turn:
            returns.append(Return(**served(rid, reply), predicted=predicted, ttft_s=reply.ttft_s))
        history += reply.output_ids
        if turn + 1 == len(questions) or over.wait(plan.think_s / 2):
            break
        predicted = _expected(tier, session)
        if over.wait(max(0.0, ended + plan.think_s - time.monotonic())):
            break
    return returns


def _expected(tier: Tiered, session: str) -> bool:
    """Whether the server expects the session back."""
    try:
        nodes = tier.control.explain_node({"session": session})["nodes"]
    except ControlError:
        return False
    return bool(nodes) and nodes[-1]["expected"] is not None


def summarise(returns: Sequence[Return]) -> dict[str, Any]:
    """Return the figures of some returns.

    Returns
    -------
    dict
        ``requests``; ``found``, the share of them that had nothing on NVMe only; ``where``, shares of the prompts'
        tokens; ``p50_s`` and ``p95_s`` to the first token; ``waited_max_s``; ``samples``.
    """
    times = [each.ttft_s for each in returns]
    return {
        "requests": len(returns),
        "found": sum(each.nvme == 0 for each in returns) / max(1, len(returns)),
        "where": where(returns),
        "p50_s": percentile(times, 0.5) or 0.0,
        "p95_s": percentile(times, 0.95) or 0.0,
        "waited_max_s": max((each.waited_s for each in returns), default=0.0),
        "samples": [asdict(each) for each in returns],
    }


HEAD = (
    f"{'returns':<12} {'requests':>8} {'none on NVMe':>12} {'HBM':>5} {'DRAM':>5} {'NVMe':>5} {'computed':>8} "
    f"{'p50':>7} {'p95':>7} {'waited':>7}"
)


def line(name: str, row: dict[str, Any]) -> str:
    """Return the figures as a line under :data:`HEAD`; shares in percent, seconds."""
    shares = row["where"]
    return (
        f"{name:<12} {row['requests']:>8} {row['found']:>12.0%} {shares['hbm']:>5.0%} {shares['dram']:>5.0%} "
        f"{shares['nvme']:>5.0%} {shares['recomputed']:>8.0%} {row['p50_s']:>7.3f} {row['p95_s']:>7.3f} "
        f"{row['waited_max_s']:>7.3f}" + ("  under" if name == "predicted" and row["found"] < TARGET else "")
    )
