"""Many requests at once: throughput of a load whose prefixes are on NVMe, and of one that reuses nothing.

Owns what a round is: every side plays the same prompts once, one side after the other. Main thread, with the threads
of `radixtier.load.play`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixtier.demo.peers_plan import Plan, Prompt
from radixtier.demo.peers_side import Side
from radixtier.demo.peers_walk import tokens
from radixtier.live.processes import cpu_seconds
from radixtier.load.figures import figures
from radixtier.load.play import Conversation, Turn, play

FRESH_PROMPTS, FRESH_TOKENS, FRESH_CONCURRENCY = 8, 512, 4


@dataclass(frozen=True)
class Round:
    """One side's part of a round.

    Attributes
    ----------
    kind
        ``load``, ``short`` (the same with answers of one token), ``restart`` (the first load after one, short as well),
        ``dram`` (after a round of ``warming``, prompts that DRAM holds), or ``fresh`` (nothing is reused).
    number
        Of the round; equal for sides that are compared.
    tokens_per_s
        Tokens of prompts and answers per second.
    cpu_s
        CPU time of the server's processes meanwhile, seconds.
    figures
        See :func:`radixtier.load.figures.figures`.
    """

    side: str
    kind: str
    number: int
    tokens_per_s: float
    cpu_s: float
    figures: dict[str, Any]


def returning(side: Side, prompts: Sequence[Prompt], plan: Plan, kind: str, number: int) -> Round:
    """Ask for visited prompts, in the order of their last visit."""
    texts = [tokens(side, prompt) for prompt in prompts]
    answer = 1 if kind in ("short", "restart") else plan.load_answer
    return _round(side, texts, plan.concurrency, answer, kind, number)


def fresh(side: Side, plan: Plan, number: int) -> Round:
    """Ask for prompts that nobody asked for before."""
    texts = [side.fresh(FRESH_TOKENS) for _ in range(FRESH_PROMPTS)]
    return _round(side, texts, FRESH_CONCURRENCY, plan.load_answer, "fresh", number)


def _round(
    side: Side, texts: Sequence[tuple[int, ...]], concurrency: int, answer: int, kind: str, number: int
) -> Round:
    conversations = [Conversation(f"{kind}-{number}-{at}", (Turn(text, answer),)) for at, text in enumerate(texts)]
    with side.awake():
        before = cpu_seconds(side.server.pid)
        played = play(side.target, conversations, concurrency=concurrency)
        cpu = cpu_seconds(side.server.pid) - before
    found = figures(played)
    if found["requests"] < len(texts):
        error = next(answer.error for answer in played.answers if not answer.ok)
        raise side.server.failure(f"failed {len(texts) - found['requests']} requests ({error})")
    speed = found["prompt_tokens_per_s"] + found["output_tokens_per_s"]
    return Round(side.name, kind, number, speed, cpu, found)
