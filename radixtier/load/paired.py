"""The same work on two servers in turns: what one turn yields, and when enough turns were taken.

Owns the law of stopping: at least so many turns; more while the confidence interval of the ratio has the limit inside,
up to a cap; then the estimate decides. Who begins alternates, and two turns that follow each other count as one, so
that what going first is worth cancels. A turn that reused tokens is no measurement of a load without reuse, and says
so. The thread that calls, and ``concurrency`` more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from radixtier.live.processes import cpu_seconds
from radixtier.load.answer import Piece
from radixtier.load.figures import Ratio, median_ratio
from radixtier.load.target import Target

CHANCE = 4
"""Tokens by which two prompts of random words may agree at their beginning, where a page is one token."""


@dataclass(frozen=True)
class Work:
    """One turn of one side; tokens are those of prompts and answers."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    """Per second of CPU time of the server's processes: neighbours on the machine hardly change that. 0 where the
    processes cannot be seen."""
    cached: int = 0
    """Tokens that were not computed, in prompts that had more than :data:`CHANCE` of them."""
    failed: int = 0


def work(
    target: Target, prompts: Sequence[Piece], answer_tokens: int, concurrency: int, group: int | None = None
) -> Work:
    """Send prompts, ``concurrency`` at a time, and return what came of it.

    Parameters
    ----------
    group
        Process group of the server, for its CPU time.
    """
    answers, seconds, cpu = timed(lambda prompt: target.ask(prompt, answer_tokens), prompts, concurrency, group)
    tokens = sum(answer.prompt_tokens + answer.output_tokens for answer in answers if answer.ok)
    return Work(
        tokens_per_s=tokens / seconds,
        tokens_per_cpu_s=tokens / cpu if cpu > 0 else 0.0,
        cached=sum(a.cached.total for a in answers if a.cached and a.cached.total > CHANCE),
        failed=sum(not answer.ok for answer in answers),
    )


Prompt = TypeVar("Prompt")
Reply = TypeVar("Reply")


def timed(
    ask: Callable[[Prompt], Reply], prompts: Sequence[Prompt], concurrency: int, group: int | None
) -> tuple[list[Reply], float, float]:
    """Ask everything, ``concurrency`` at a time; return the answers, the seconds, and the CPU seconds of a group."""
    with ThreadPoolExecutor(concurrency) as pool:
        began, cpu = time.perf_counter(), 0.0 if group is None else cpu_seconds(group)
        replies = list(pool.map(ask, prompts))
        seconds = time.perf_counter() - began
        return replies, seconds, 0.0 if group is None else cpu_seconds(group) - cpu


def in_turns(
    turn: Callable[[int], tuple[float, float]], fewest: int, most: int, limit: float
) -> tuple[list[tuple[float, float]], Ratio]:
    """Take turns, each of which measures ours and theirs, until the ratio is known well enough.

    Parameters
    ----------
    turn
        Takes the number of the turn, from 0, and returns ours and theirs.
    fewest, most
        Turns.
    limit
        What the ratio is held against.
    """
    pairs: list[tuple[float, float]] = []
    while True:
        pairs.append(turn(len(pairs)))
        if len(pairs) < fewest or len(pairs) % 2:
            continue
        ratio = median_ratio(blocks(pairs))
        if len(pairs) >= most or not ratio.low < limit <= ratio.high:
            return pairs, ratio


def blocks(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join each turn with the next, in which the other one began, by geometric means; a last one alone is left out."""
    return [
        (math.sqrt(ours * ours_next), math.sqrt(theirs * theirs_next))
        for (ours, theirs), (ours_next, theirs_next) in zip(pairs[::2], pairs[1::2], strict=False)
    ]
