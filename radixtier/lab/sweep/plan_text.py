"""A plan in words, and its Pareto front as a table.

Owns the words. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixtier.lab.sweep.grid import Outcome
from radixtier.lab.sweep.plan import Plan, Verdict
from radixtier.lab.sweep.search import STEP
from radixtier.units import format_bytes


def lines(plan: Plan, currency: str, assumed: Sequence[str]) -> list[str]:
    """Tell a plan in words.

    Parameters
    ----------
    plan
        With HBM alone replayed at least.
    currency
        What prices are in.
    assumed
        Flags that the user did not give.
    """
    return [*_bounds(plan), *_verdict(plan, currency, assumed), _effort(plan), _prices(plan, currency, assumed)]


def _bounds(plan: Plan) -> list[str]:
    target, alone, most = plan.target, plan.alone, plan.most
    assert alone is not None
    text = [
        f"target: {target}{', found in any tier' if target.percentile is None else ''}",
        f"HBM alone ({_amount(alone, 0)}): {target.written(plan.value(alone))}{_overload(alone, 'hbm')}",
    ]
    if most is not None and most.report is not None:
        line = f"largest sizes ({_tiers(most)}): {target.written(plan.value(most))}{_overload(most, 'tiers')}"
        if "ceiling" in most.report["stacks"]:
            line += f"; a policy that knows the future: {target.written(target.of(most.report, 'ceiling'))}"
        text.append(line)
    return text


def _overload(outcome: Outcome, stack: str) -> str:
    """Say so where the server cannot keep up: then its times say how long the trace is."""
    assert outcome.report is not None
    busy = outcome.report["stacks"][stack].get("utilisation")
    return "" if busy is None or busy < 1 else f" (it cannot keep up: {busy:.1f} s of work a second)"


def _verdict(plan: Plan, currency: str, assumed: Sequence[str]) -> list[str]:
    if plan.verdict is Verdict.FOUND:
        return _answer(plan, currency, assumed)
    if plan.verdict is Verdict.HBM_ALONE:
        return ["HBM alone reaches the target: neither DRAM nor NVMe is needed for it."]
    if plan.verdict is Verdict.BEYOND_CEILING:
        return [
            "The target is out of reach: with the largest sizes not even a policy that knows the future reaches it.",
            "Give more HBM (or --max-dram, --max-nvme, where they are set), or a lower target.",
        ]
    if plan.verdict is Verdict.OUT_OF_REACH:
        return [
            "The target is out of reach for this policy up to the largest sizes; one that knows the future reaches it.",
            "Try another --eviction, --admission or --write-budget, or a lower target.",
        ]
    reached = (each for each in plan.found if plan.target.reached(plan.value(each)))
    best = min(reached, key=plan.cost, default=None)
    so_far = "nothing reached the target yet" if best is None else f"the cheapest so far: {_tiers(best)}"
    return [f"stopped before the search was done; {so_far}"]


def _answer(plan: Plan, currency: str, assumed: Sequence[str]) -> list[str]:
    answer, target = plan.answer, plan.target
    assert answer is not None and answer.report is not None
    report = answer.report
    times = ", ".join(f"{p} {report['stacks']['tiers']['ttft_s'][p]:.2f} s" for p in ("p50", "p95", "p99"))
    text = [
        f"cheapest that reach it: {_tiers(answer)}: {plan.cost(answer):,.2f} {currency}",
        f"  hit ratio {report['hit_ratio']['total']:.3f}, TTFT {times}",
    ]
    if target.percentile == "mean":
        text[-1] += f", mean {target.written(plan.value(answer))}"
    if plan.writes_per_day is not None:
        text += _wear(answer, plan.writes_per_day, assumed)
    return text


def _wear(answer: Outcome, writes_per_day: float, assumed: Sequence[str]) -> list[str]:
    assert answer.report is not None
    written, budget = format_bytes(answer.report["bytes_written_per_day"]), answer.cell.setup.write_budget
    if budget == "none":
        text = [
            f"  NVMe: {written} written a day, {writes_per_day:.2f} DWPD for a drive of these {_amount(answer, 2)}."
        ]
        if writes_per_day > 1:
            text.append(f"  At 1 DWPD that takes {written} of drives; plan with a --write-budget instead.")
        return text
    note = " (an assumption, give yours: --write-budget)" if "--write-budget" in assumed else ""
    hours = answer.report.get("seconds", 0) / 3600
    burst = f"; in a trace of {hours:.1f} h the budget's first burst counts much" if 0 < hours < 24 else ""
    return [
        f"  NVMe: {written} written a day under a budget of {budget}{note}{burst}.",
        f"  The server needs --radix-tier-write-budget {budget} for that.",
    ]


def _effort(plan: Plan) -> str:
    text = f"{plan.runs} replays, sizes in steps down to {STEP - 1:.0%}"
    return f"{text}; the replays were used up before the search was done (--runs)" if plan.limited else text


def _prices(plan: Plan, currency: str, assumed: Sequence[str]) -> str:
    each = []
    for label, tier in (("DRAM", "dram"), ("NVMe", "nvme"), ("HBM", "hbm")):
        note = f" ({'there anyway' if tier == 'hbm' else 'an assumption'}, give yours: --price-{tier})"
        note = note if f"--price-{tier}" in assumed else ""
        each.append(f"{label} {getattr(plan.prices, tier):g}{note}")
    return f"prices, {currency} per GB: {', '.join(each)}"


def front_rows(plan: Plan, currency: str) -> list[list[str]]:
    """Lay out the Pareto front."""
    rows = [["HBM", "DRAM", "NVMe", "hit ratio", "TTFT p50", "TTFT p95", "written/day", currency, "target"]]
    for each in plan.front():
        assert each.report is not None
        per_day, times = each.report["bytes_written_per_day"], each.report["stacks"]["tiers"]["ttft_s"]
        rows.append(
            [
                *(_amount(each, tier) for tier in range(3)),
                f"{each.report['hit_ratio']['total']:.3f}",
                f"{times['p50']:.2f} s",
                f"{times['p95']:.2f} s",
                "" if per_day is None else format_bytes(per_day),
                f"{plan.cost(each):,.2f}",
                "reached" if plan.target.reached(plan.value(each)) else "",
            ]
        )
    return rows


def _amount(outcome: Outcome, tier: int) -> str:
    assert outcome.report is not None
    return format_bytes(outcome.cell.sizes[tier] * outcome.report["block_bytes"])


def _tiers(outcome: Outcome) -> str:
    _, dram, nvme = outcome.cell.sizes
    return f"DRAM {_amount(outcome, 1)} ({dram} blocks), NVMe {_amount(outcome, 2)} ({nvme} blocks)"
