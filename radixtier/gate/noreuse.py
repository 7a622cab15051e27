"""What the tier costs where it cannot help: prompts of which no two share a page.

Owns that measurement: turns that alternate between stock and tiered, who begins alternates too. Where only one of them
can run at a time, stock's turns are taken in G2 and kept in the stand's notes, and the medians are compared. Main
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixtier.gate.profiles import Plan
from radixtier.gate.progress import Progress
from radixtier.gate.ratios import bounds, enclosed
from radixtier.gate.result import Check, Verdict
from radixtier.gate.stand import Side, Stand
from radixtier.load.answer import Piece
from radixtier.load.figures import Ratio, median_ratio, ratio_of_medians
from radixtier.load.paired import Work, blocks, in_turns, work

NAME = "no-reuse throughput"
NOTE = "no-reuse turns of stock"
_FIX = "Look at the tier's share of CPU time (cpu_ratio) and at write-behind; set --radix-tier-write-budget"


def measure(stand: Stand, plan: Plan, say: Progress) -> tuple[Check, dict[str, Any]]:
    """Compare the load without reuse on both sides; return the check and the figures."""
    if stand.stock is None:
        return Check(NAME, Verdict.SKIPPED, "no stock server to compare with: --launch starts one"), {}
    limit = plan.limits.no_reuse
    if stand.beside:
        with stand.stock.awake():
            stand.flush(stand.stock)
        turns, ratio = _beside(stand, stand.stock, plan, say)
    elif stand.notes.get(NOTE):
        ours = [_turn(stand, stand.tiered, plan) for _ in range(plan.no_reuse.warm_turns + plan.no_reuse.turns)]
        turns = list(zip(ours[plan.no_reuse.warm_turns :], stand.notes[NOTE], strict=False))
        ratio = ratio_of_medians([a.tokens_per_s for a, _ in turns], [b.tokens_per_s for _, b in turns])
    else:
        return Check(NAME, Verdict.SKIPPED, "only one server fits at a time, and G2 did not measure stock"), {}
    pairs = [(ours.tokens_per_s, max(theirs.tokens_per_s, 1e-9)) for ours, theirs in turns]
    measured = blocks(pairs) if stand.beside else pairs
    ratio = enclosed(ratio, [ours / theirs for ours, theirs in measured])
    kind = bounds(len(measured), "pair of turns" if stand.beside else "turn")
    figures = {**_figures(turns, ratio, limit), "bounds": kind}
    if bad := _bad(turns):
        return Check(NAME, Verdict.FAIL, bad, "Look at the servers' logs"), figures
    good = ratio.value >= limit
    reason = f"{ratio.value:.3f} of stock ({kind} {ratio.low:.3f} to {ratio.high:.3f}), at least {limit:g}"
    if ratio.low < limit <= ratio.high:
        reason += "; the limit is between these, the estimate decides"
    return Check(NAME, Verdict.PASS if good else Verdict.FAIL, reason, "" if good else _FIX), figures


def keep_stock(stand: Stand, side: Side, plan: Plan) -> None:
    """Take stock's turns now, for a stand whose servers do not run beside each other."""
    turns = [_turn(stand, side, plan) for _ in range(plan.no_reuse.warm_turns + plan.no_reuse.turns)]
    stand.notes[NOTE] = turns[plan.no_reuse.warm_turns :]


def _beside(stand: Stand, stock: Side, plan: Plan, say: Progress) -> tuple[list[tuple[Work, Work]], Ratio]:
    turns: list[tuple[Work, Work]] = []

    def turn(number: int) -> tuple[float, float]:
        prompts = _prompts(stand, plan)
        sides = (stock, stand.tiered) if number % 2 else (stand.tiered, stock)
        done = {side.name: _turn(stand, side, plan, prompts) for side in sides}
        pair = done[stand.tiered.name], done[stock.name]
        turns.append(pair)
        say.step(f"no-reuse load, turn {number + 1}: {pair[0].tokens_per_s / max(pair[1].tokens_per_s, 1e-9):.3f}")
        return pair[0].tokens_per_s, max(pair[1].tokens_per_s, 1e-9)

    for number in range(plan.no_reuse.warm_turns):
        turn(number)
    turns.clear()
    _, ratio = in_turns(turn, plan.no_reuse.turns, plan.no_reuse.most_turns, plan.limits.no_reuse)
    return turns, ratio


def _turn(stand: Stand, side: Side, plan: Plan, prompts: Sequence[Piece] | None = None) -> Work:
    with side.awake() as target:
        server = side.server
        group = server.pid if server is not None and server.running() else None
        prompts = prompts or _prompts(stand, plan)
        target.ask(prompts[0][:1], 1)  # wakes an idle scheduler
        return work(target, prompts, plan.no_reuse.answer_tokens, plan.no_reuse.concurrency, group)


def _prompts(stand: Stand, plan: Plan) -> list[Piece]:
    load = plan.no_reuse
    return [stand.tiered.target.piece(load.prompt_tokens, stand.number()) for _ in range(load.prompts)]


def _bad(turns: Sequence[tuple[Work, Work]]) -> str:
    """What makes the turns no measurement; "" if nothing does."""
    failed = sum(each.failed for pair in turns for each in pair)
    cached = sum(each.cached for pair in turns for each in pair)
    if failed:
        return f"{failed} requests failed"
    return f"{cached} tokens of prompts that share none were reused: this is no measurement" if cached else ""


def _figures(turns: Sequence[tuple[Work, Work]], ratio: Ratio, limit: float) -> dict[str, Any]:
    ours, theirs = [a for a, _ in turns], [b for _, b in turns]
    cpu = [(a.tokens_per_cpu_s, b.tokens_per_cpu_s) for a, b in turns if a.tokens_per_cpu_s and b.tokens_per_cpu_s]
    return {
        "ratio": list(ratio),
        "cpu_ratio": list(median_ratio(blocks(cpu))) if len(cpu) > 1 else None,
        "tokens_per_s": [each.tokens_per_s for each in ours],
        "stock_tokens_per_s": [each.tokens_per_s for each in theirs],
        "turns": len(turns),
        "limit": limit,
    }
