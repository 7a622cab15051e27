"""Many requests at once: throughput of a load whose prefixes are in one tier, and of one that reuses nothing.

Owns what a round is, and when it counts: every side plays the same prompts, one side after the other; the tier that
prefixes came from is what the server says. Main thread, with the threads of `radixtier.load.play`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from radixtier.demo.peers_plan import Plan, Prompt
from radixtier.demo.peers_side import Side
from radixtier.demo.peers_walk import tokens
from radixtier.live.processes import cpu_seconds
from radixtier.load.figures import figures
from radixtier.load.play import Conversation, Turn, play

FRESH_PROMPTS, FRESH_TOKENS, FRESH_CONCURRENCY = 8, 512, 4

TIER = {"load": "nvme", "short": "nvme", "restart": "nvme", "dram": "dram", "hbm": "hbm", "hbm-short": "hbm"}
"""Kind of a round -> where its prefixes are to come from."""

BOUND = {"load": "hbm", "short": "hbm-short"}
"""Kind of a load from NVMe -> the same from HBM, which is what tiering can reach."""

SHARE_LEAST = 0.9
"""Least share of a round's prompt tokens from its tier; with less it does not count."""


@dataclass(frozen=True)
class Round:
    """One side's part of a round.

    Attributes
    ----------
    kind
        ``load``, ``short`` (the same with answers of one token), ``restart`` (the first load after one, short as well),
        ``hbm`` and ``hbm-short`` (as many requests, of the few prompts that HBM holds), ``dram`` (prompts that DRAM
        holds), ``warming`` (in front of these), or ``fresh`` (nothing is reused).
    number
        Of the round; equal for sides that are compared.
    prefix
        Length of the prefixes, tokens; 0 for ``fresh``.
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
    prefix: int
    tokens_per_s: float
    cpu_s: float
    figures: dict[str, Any]

    @property
    def share(self) -> float | None:
        """Of the tokens of its prompts, those that came from the tier it is about; None if it is about none."""
        if self.kind not in TIER:
            return None
        tokens = self.figures["tokens"]
        return float(tokens[TIER[self.kind]] / tokens["prompt"])

    @property
    def counts(self) -> bool:
        """Whether its prefixes came from where they were to come from."""
        return self.share is None or self.share >= SHARE_LEAST


def returning(side: Side, prompts: Sequence[Prompt], plan: Plan, kind: str, number: int, requests: int) -> Round:
    """Ask for visited prompts of one length in the order of their last visit, again and again if requests are more."""
    texts = list(islice(cycle([tokens(side, prompt) for prompt in prompts]), requests))
    answer = 1 if kind in ("short", "restart", "hbm-short") else plan.load_answer
    prefix = prompts[0].prefix
    return _round(side, texts, plan.at_once(prefix), answer, kind, number, prefix)


def fresh(side: Side, plan: Plan, number: int) -> Round:
    """Ask for prompts that nobody asked for before."""
    texts = [side.fresh(FRESH_TOKENS) for _ in range(FRESH_PROMPTS)]
    return _round(side, texts, FRESH_CONCURRENCY, plan.load_answer, "fresh", number, 0)


def _round(
    side: Side, texts: Sequence[tuple[int, ...]], concurrency: int, answer: int, kind: str, number: int, prefix: int
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
    return Round(side.name, kind, number, prefix, speed, cpu, found)
