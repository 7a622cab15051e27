"""The picture of a plan: what each size costs and what it reaches, the Pareto front, the target and the answer.

Invariant: draws what is in the plan and nothing else.
"""

from __future__ import annotations

from typing import Any

from radixtier.lab.plots.style import ALONE, CEILING, GREY, STYLES, figure, legend, log_axis, number, plot
from radixtier.lab.sweep.grid import Outcome
from radixtier.lab.sweep.plan import Plan
from radixtier.units import format_bytes


def _title(plan: Plan) -> str:
    if plan.alone is None or plan.alone.report is None:
        return ""
    hbm = format_bytes(plan.alone.cell.setup.hbm * plan.alone.report["block_bytes"])
    return f"{plan.alone.cell.trace}, HBM of {hbm}"


def front_figure(plan: Plan, currency: str) -> Any:
    """Draw a plan; HBM alone, which may cost nothing, is a line across."""
    made, ((axes,),) = figure(1)
    target = plan.target
    tiers = [each for each in plan.found if any(each.cell.sizes[1:])]
    best = [each for each in plan.front() if any(each.cell.sizes[1:])]

    def points(chosen: list[Outcome]) -> tuple[list[float], list[float]]:
        return [plan.cost(each) for each in chosen], [plan.value(each) for each in chosen]

    axes.plot(*points(tiers), "o", color=GREY, markersize=4, alpha=0.5, linestyle="", label="replayed")
    plot(axes, *points(best), STYLES[0], "better than all that is cheaper", drawstyle="steps-post")
    axes.axhline(target.value, color=STYLES[1].colour, linestyle=STYLES[1].line, label=f"target: {target}")
    if plan.alone is not None:
        axes.axhline(plan.value(plan.alone), color=ALONE.colour, linestyle=":", label="HBM alone")
    if plan.most is not None and plan.most.report is not None and "ceiling" in plan.most.report["stacks"]:
        ceiling = target.of(plan.most.report, "ceiling")
        axes.axhline(ceiling, color=CEILING.colour, linestyle=CEILING.line, label="ceiling, largest sizes")
    if plan.answer is not None:
        x, y = plan.cost(plan.answer), plan.value(plan.answer)
        axes.plot([x], [y], "*", color=STYLES[1].colour, markersize=15, label=f"cheapest: {number(x)}", zorder=5)
    costs = [cost for cost in points(tiers)[0] if cost > 0]
    if costs and max(costs) > 10 * min(costs):
        log_axis(axes.xaxis, costs)
    if target.percentile is None:
        axes.set(ylabel="hit ratio, share of all blocks", ylim=(0, None))
    else:
        axes.set_ylabel(f"time to first token, {target.percentile}, s")
        values = [plan.value(each) for each in plan.found]
        if values and min(values) > 0 and max(values) > 5 * min(values):
            log_axis(axes.yaxis, values)
    axes.set(xlabel=f"cost, {currency}", title=_title(plan))
    axes.grid(alpha=0.3)
    legend(made)
    return made
