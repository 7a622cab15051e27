"""G2, baseline: the profile's load where every context is computed.

Owns that run. Invariant: what is measured was never asked of that server before (or it was flushed), after a warm-up
apart, so no first prompt had a cached token but those that all conversations share; a level where one had is no
baseline, and fails. Without a stock server the tiered one computes prompts that are new to it. Main thread.
"""

from __future__ import annotations

import time
from typing import Any

from radixtier.gate import noreuse
from radixtier.gate.profiles import Plan, Returning, fit, returning
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Result, Verdict
from radixtier.gate.stand import Stand, check_alive
from radixtier.load.answer import Answer
from radixtier.load.figures import figures
from radixtier.load.paired import CHANCE
from radixtier.load.play import Played, play

KEY, TITLE = "G2", "Baseline: every context recomputed"


def run(stand: Stand, plan: Plan, say: Progress) -> Result:
    """Play every level; the figures have :func:`radixtier.load.figures.figures` for each."""
    began = time.monotonic()
    side = stand.stock or stand.tiered
    checks: list[Check] = []
    levels: dict[str, Any] = {}
    with side.awake() as target:
        plan, notes = fit(plan, stand.room())
        for note in notes:
            say.line(note, "warn")
        total = sum(sum(plan.level(level)) for level in plan.levels)
        say.total(expected_s(plan))
        done = 0
        for level in plan.levels:
            say.step(f"baseline, concurrency {level}")
            loads = returning(plan, target, plan.level(level), stand.number, f"baseline-{level}")
            if side is stand.stock:
                stand.flush(side)
            played = play(target, [each.conversation for each in loads], concurrency=level)
            check_alive(side)
            levels[str(level)] = figures(played)
            checks += judge(played, loads, level)
            done += sum(plan.level(level))
            say.at(share=done / total)
        if stand.stock is not None and not stand.beside:
            say.step("no-reuse load")
            noreuse.keep_stock(stand, side, plan)
    stand.notes["baseline"] = levels
    figures_ = {"levels": levels, "side": side.name, "notes": notes}
    return Result(KEY, TITLE, tuple(checks), figures_, time.monotonic() - began)


def judge(played: Played, loads: list[Returning], level: int) -> list[Check]:
    """Return the checks of one level: no request failed, and no first prompt was cached beyond what all share."""
    name = f"baseline requests, concurrency {level}"
    failed = [answer.error for answer in played.answers if not answer.ok]
    expected = sum(len(each.conversation.turns) for each in loads)
    if failed or len(played.answers) < expected:
        reason = f"{len(failed)} of {expected} failed" + (f": {failed[0]}" if failed else "")
        first = Check(name, Verdict.FAIL, reason, "Look at the server's log")
    else:
        first = Check(name, Verdict.PASS, f"all {expected} were answered")
    return [first, _computed(f"baseline is recompute, concurrency {level}", played, loads)]


def _computed(name: str, played: Played, loads: list[Returning]) -> Check:
    told = [each.answer for each in played.exchanges if each.turn == 0 and each.answer.ok]
    if cached := beyond_shared(played, loads):
        return Check(name, Verdict.FAIL, f"{cached:,} tokens of first prompts were cached")
    if not told:
        return Check(name, Verdict.FAIL, "no first prompt was answered")
    if silent := sum(answer.cached is None for answer in told):
        return Check(name, Verdict.SKIPPED, f"of {silent} first prompts the server does not tell what was cached")
    return Check(name, Verdict.PASS, "every first prompt was computed")


def beyond_shared(played: Played, loads: list[Returning]) -> int:
    """Return how many tokens of first prompts were cached, without what all conversations share."""
    shared = {each.conversation.name: each.shared for each in loads}
    beyond = [_cached(each.answer) - shared[each.conversation] for each in played.exchanges if each.turn == 0]
    return sum(tokens for tokens in beyond if tokens > CHANCE)


def _cached(answer: Answer) -> int:
    return answer.cached.total if answer.cached else 0


def expected_s(plan: Plan) -> float:
    """Guess how long a pass over all levels takes, seconds; only for the bar."""
    return sum(sum(plan.level(level)) for level in plan.levels) / prefill_rate(plan)


def prefill_rate(plan: Plan) -> float:
    """Guess how many tokens a second are computed; only for the bar."""
    return 250.0 if plan.tier is not None else 10000.0
