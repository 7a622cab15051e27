"""G3, the main gate: contexts whose KV is only on NVMe come back, against computing them.

Owns the order of its parts: the tiered server sees the contexts once, rounds at every level that alternate with the
baseline, TTFT by length and source, answers, a restart, and the load without reuse. Main thread.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from radixtier.gate import answers, lengths, noreuse
from radixtier.gate.baseline import expected_s, prefill_rate
from radixtier.gate.lengths import Samples, ask
from radixtier.gate.profiles import Plan, fit
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Result, Verdict, least
from radixtier.gate.rounds import Asked, Pool, judge, kept_in_memory, run_level
from radixtier.gate.sources import own_cached
from radixtier.gate.stand import Stand, Unavailable

KEY, TITLE = "G3", "Main gate: cold recovery from NVMe"


def run(stand: Stand, plan: Plan, say: Progress) -> Result:
    """Run every part; where prefixes cannot be brought down to NVMe, everything is skipped with the reason."""
    began = time.monotonic()
    try:
        checks, figures = _run(stand, plan, say)
    except Unavailable as reason:
        checks, figures = [Check("cold recovery", Verdict.SKIPPED, str(reason))], {}
    return Result(KEY, TITLE, tuple(checks), figures, time.monotonic() - began)


def _run(stand: Stand, plan: Plan, say: Progress) -> tuple[list[Check], dict[str, Any]]:
    figures: dict[str, Any] = {"levels": {}, "baseline_side": "stock" if stand.beside else "tiered, new prompts"}
    checks: list[Check] = []
    with stand.tiered.awake():
        wanted = plan.by_length
        plan, figures["notes"] = fit(plan, stand.room())
        cut = set(wanted) - set(plan.by_length)
        stand.chill([])  # what cannot be done is known before anything is computed
        say.total(_expected_s(plan))
        asked = Asked()
        pool, samples, extra = Pool(stand, plan, asked=asked), Samples(), Samples()
        for level in plan.levels:
            pool.take(plan.level(level))
        say.step("the server with the tier computes the contexts once")
        pool.seed(max(plan.levels))
    say.at(share=0.2)
    for number, level in enumerate(plan.levels, 1):
        found = run_level(stand, plan, level, pool, say, samples.add_control if level == 1 else None)
        figures["levels"][str(level)] = found.figures()
        checks += judge(found, plan)
        if level == 1:
            for loads, played in zip(found.baseline_loads, found.baseline, strict=True):
                samples.add_round(loads, played)
            for played in found.cold:
                samples.add_round(pool.take(plan.level(1)), played)
        say.at(share=0.2 + 0.4 * number / len(plan.levels))
    lengths.measure(stand, pool, plan.by_length, samples, say)
    figures["by_length"] = samples.figures()
    checks += lengths.judge(figures["by_length"], plan.limits, cut)
    say.at(share=0.7)
    others = Pool(stand, plan, "answers", asked)
    lengths.measure(stand, others, (plan.answers_tokens,) * plan.answers, extra, say, passes=1)
    check, figures["answers"] = answers.compare([samples, extra])
    checks.append(check)
    say.at(share=0.8)
    found_again, figures["restart"] = _restart(stand, plan, pool, samples, say)
    say.at(share=0.85)
    # On a server that has just started: what came before has scattered the free slots of HBM of one side only.
    check, figures["no_reuse"] = noreuse.measure(stand, plan, say)
    figures["requests"] = {"sent": asked.requests, "failed": len(asked.errors)}
    return [*checks, check, *found_again, asked.check()], figures


def _restart(
    stand: Stand, plan: Plan, pool: Pool, samples: Samples, say: Progress
) -> tuple[list[Check], dict[str, Any]]:
    """Restart the tiered server; what it had must come back from the drive."""
    name = "after a restart"
    loads = pool.take(plan.by_length)
    with stand.tiered.awake():
        say.step("restarting the server with the tier")
        written = stand.settle()
        try:
            started_s = stand.restart()
        except Unavailable as reason:
            return [Check(name, Verdict.SKIPPED, str(reason))], {}
        stand.drop_page_cache()  # what was read while it started, and before
        kept = kept_in_memory(stand)
        found = [ask(stand.tiered, pool, each) for each in loads]
    own = [own_cached(answer.cached, each.shared) for each, answer in zip(loads, found, strict=True) if answer.cached]
    # DRAM was empty when the process began: what is there was read ahead of the requests.
    share = sum(each.nvme + each.dram for each in own) / sum(each.tokens - each.shared for each in loads)
    shares = []
    for each, answer in zip(loads, found, strict=True):
        computed = [known.ttft_s for known in samples.of(each.tokens - each.shared, "recompute")]
        if computed and answer.ok:
            shares.append(answer.ttft_s / median(computed))
    ratio = median(shares) if shares else None
    figures = {
        "started_s": started_s,
        "written": written,
        "share": share,
        "page_cache_bytes": kept,
        "ttft_s": [answer.ttft_s for answer in found],
        "tokens": [each.tokens for each in loads],
        "ttft_ratio": ratio,
    }
    fix = "Look at the server's log for what it restored, and at --radix-tier-nvme-size"
    return [
        least(f"{name}, share from the store", share, plan.limits.cold_share, fix=fix),
        least(
            f"{name}, fall of TTFT", None if ratio is None else 1 - ratio, plan.limits.ttft_fall, fix=fix, needed=True
        ),
    ], figures


def _expected_s(plan: Plan) -> float:
    """Guess how long it takes, seconds; only for the bar."""
    one = expected_s(plan)
    load = plan.no_reuse
    turns = 2 * load.turns * load.prompts * load.prompt_tokens / prefill_rate(plan)
    return one * (plan.rounds + 1.5) + turns + 120.0
