"""Pictures of a sweep: hit ratio and time to first token against capacity, and hit ratio against bytes written.

Owns what is drawn against what. Invariant: draws what is in the outcomes and nothing else. Capacity is that of HBM,
DRAM and NVMe together. Where a sweep has several cells of one policy and capacity, or cells that do not grow in every
tier, a line joins those that nothing of that policy and no larger capacity beats; the others are points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from radixtier.lab.plots.style import (
    ALONE,
    CEILING,
    STYLES,
    Style,
    byte_unit,
    figure,
    legend,
    log_axis,
    plot,
    top_axis,
)
from radixtier.lab.sweep.front import front
from radixtier.lab.sweep.grid import Outcome, Shape

PERCENTILES = ("p50", "p95", "p99")

SHARE = "hit ratio, share of all blocks"

STACKS = ("hbm", "tiers", "ceiling")
LEFT_OUT = "Sizes at which the server cannot keep up with the load are left out: the wait grows for ever."
NEVER = "cannot keep up\nat any of these sizes"


def hit_ratios(outcomes: Iterable[Outcome]) -> Any:
    """Draw hit ratio against capacity: a panel per trace, a line per policy, the ceiling, HBM alone."""
    found = _reported(outcomes)
    traces = _traces(found)
    made, (panels,) = figure(len(traces))
    for axes, (trace, cells) in zip(panels, traces.items(), strict=True):
        _against_capacity(axes, cells, ("hit_ratio",), more=True)
        axes.set(title=trace, ylim=(0, None))
    panels[0].set_ylabel(SHARE)
    legend(made)
    return made


def writes(outcomes: Iterable[Outcome]) -> Any:
    """Draw hit ratio against bytes written to NVMe per day: a panel per trace, a line per policy, sizes along it."""
    traces = _traces(each for each in _reported(outcomes) if _written(each))
    made, (panels,) = figure(max(1, len(traces)))
    for axes, (trace, cells) in zip(panels, traces.items(), strict=False):
        unit, name = byte_unit(max(map(_written, cells)))
        for label, style, group in _series(cells):
            group = sorted(group, key=_capacity)
            xs, ys = [_written(each) / unit for each in group], [_hit_ratio(each) for each in group]
            plot(axes, xs, ys, style, label)
            axes.plot(xs[-1:], ys[-1:], style.marker, color=style.colour, markersize=6)
        log_axis(axes.xaxis, [_written(each) / unit for each in cells])
        axes.set(title=trace, xlabel=f"written to NVMe, {name} per day", ylim=(0, None))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(SHARE)
    legend(made, "Sizes grow along a line; the filled marker is the largest.")
    return made


def ttfts(outcomes: Iterable[Outcome]) -> Any:
    """Draw time to first token against capacity: a row per trace, a panel per percentile.

    A server that is busy all the time has queues that grow for as long as the trace lasts: such times are left out.
    """
    traces = _traces(_reported(outcomes))
    made, columns = figure(len(traces), len(PERCENTILES))
    for percentile, panels in zip(PERCENTILES, columns, strict=True):
        for axes, (trace, cells) in zip(panels, traces.items(), strict=True):
            _against_capacity(axes, cells, ("ttft_s", percentile), more=False)
            drawn = [y for line in axes.get_lines() for y in line.get_ydata()]
            if drawn:
                log_axis(axes.yaxis, drawn)
            else:
                axes.set_yticks([])
                axes.text(0.5, 0.5, NEVER, transform=axes.transAxes, ha="center", va="center")
            axes.set_title(f"{trace}, {percentile}")
    for axes in columns[0]:
        axes.set_ylabel("time to first token, s")
    overloaded = any(_overloaded(each, stack) for cells in traces.values() for each in cells for stack in STACKS)
    legend(made, LEFT_OUT if overloaded else None)
    return made


# ---- what is read off an outcome --------------------------------------------------------------------


def _reported(outcomes: Iterable[Outcome]) -> list[Outcome]:
    found = [each for each in outcomes if each.report is not None]
    if not found:
        raise ValueError("nothing to draw: no cell has a report")
    return found


def _traces(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    traces: dict[str, list[Outcome]] = {}
    for each in outcomes:
        traces.setdefault(each.cell.trace, []).append(each)
    return traces


def _stack(outcome: Outcome, stack: str, *names: str) -> float | None:
    found = (outcome.report or {})["stacks"].get(stack)
    for name in names:
        found = None if found is None else found[name]
    return None if found is None else float(found)


def _overloaded(outcome: Outcome, stack: str) -> bool:
    found = (outcome.report or {})["stacks"].get(stack, {}).get("utilisation")
    return found is not None and found >= 1


def _hit_ratio(outcome: Outcome) -> float:
    return float((outcome.report or {})["hit_ratio"]["total"])


def _capacity(outcome: Outcome) -> float:
    return float(sum(outcome.cell.sizes) * (outcome.report or {})["block_bytes"])


def _written(outcome: Outcome) -> float:
    return float((outcome.report or {})["bytes_written_per_day"] or 0)


def _series(outcomes: Sequence[Outcome]) -> list[tuple[str, Style, list[Outcome]]]:
    """Group by policy; a label says only in what policies differ."""
    policies = [
        (each.cell.setup.eviction, each.cell.setup.admission, each.cell.setup.write_budget) for each in outcomes
    ]
    differ = [len(set(parts)) > 1 for parts in zip(*policies, strict=True)]
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for policy, outcome in zip(policies, outcomes, strict=True):
        groups.setdefault(policy, []).append(outcome)
    return [
        (
            ", ".join(part for part, named in zip(policy, differ, strict=True) if named) or policy[0],
            STYLES[number % len(STYLES)],
            group,
        )
        for number, (policy, group) in enumerate(groups.items())
    ]


# ---- drawing ----------------------------------------------------------------------------------------


def _against_capacity(axes: Any, cells: Sequence[Outcome], names: tuple[str, ...], *, more: bool) -> None:
    """Draw every policy, and for reference the ceiling and HBM alone; ``more`` is better, or less is."""
    for label, style, group in _series(cells):
        _draw(axes, group, ("tiers", *names), style, label, more)
    _draw(axes, cells, ("ceiling", *names), CEILING, "ceiling", more)
    _draw(axes, cells, ("hbm", *names), ALONE, "HBM alone", more)
    capacities = sorted(set(map(_capacity, cells)))
    unit, name = byte_unit(capacities[-1])
    values = [each / unit for each in capacities]
    log_axis(axes.xaxis, values, named=True)
    axes.set_xlabel(f"capacity of all tiers, {name}")
    top_axis(axes, "million tokens", unit / cells[0].cell.setup.kv_bytes_per_token / 1e6, values, named=True)
    axes.grid(alpha=0.3)


def _draw(axes: Any, cells: Sequence[Outcome], names: tuple[str, ...], style: Style, label: str, more: bool) -> None:
    unit, _ = byte_unit(max(map(_capacity, cells)))
    usable = [each for each in cells if names[1] != "ttft_s" or not _overloaded(each, names[0])]
    values = {(each.cell.sizes, _capacity(each) / unit, _stack(each, *names)) for each in usable}
    known = sorted((x, y) for _, x, y in values if y is not None)
    if not known:
        return
    line = known
    if not _chain([sizes for sizes, _, _ in values]):
        line = front(
            known, lambda each: each[0], lambda one, other: (one[1] > other[1]) if more else (one[1] < other[1])
        )
    points = [each for each in known if each not in line]
    plot(axes, [x for x, _ in line], [y for _, y in line], style, label)
    plot(axes, [x for x, _ in points], [y for _, y in points], style, label, linestyle="", alpha=0.4)


def _chain(shapes: Iterable[Shape]) -> bool:
    """Whether each of the sizes is at least as large as the one before in every tier."""
    return all(all(map(int.__le__, smaller, larger)) for smaller, larger in pairwise(sorted(shapes)))
