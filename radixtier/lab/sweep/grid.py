"""What a sweep replays: the product of traces, sizes and policies, one cell each.

Owns the form of a cell and of what came of it, and the order of a grid: traces, sizes, policies, as they were given.
Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from radixtier.lab.setup import Setup

MOST_SIZES = 1000
"""Of one range."""

Shape = tuple[int, int, int]
"""Blocks of HBM, DRAM and NVMe."""


class Cell(NamedTuple):
    """One replay."""

    trace: str
    """Its name in the sweep."""
    setup: Setup

    @property
    def sizes(self) -> Shape:
        """Blocks of the three tiers."""
        return self.setup.hbm, self.setup.dram, self.setup.nvme

    def as_dict(self) -> dict[str, Any]:
        """Return what tells this cell from others, for JSON."""
        return {"trace": self.trace, **self.setup.as_dict()}


class Outcome(NamedTuple):
    """What came of a cell: a report (:meth:`radixtier.lab.report.Report.as_dict`) or the reason why there is none."""

    cell: Cell
    report: dict[str, Any] | None = None
    error: str | None = None
    seconds: float = 0.0
    """That it took, for the reading of the trace as well where that came first."""
    distinct: int = 0
    """Blocks that the trace has; what is larger than that never fills."""


def sizes(text: str, parse: Callable[[str], int]) -> list[int]:
    """Read ``A,B,C`` or ``A..B:N``: N sizes from A to B, each larger than the one before by the same factor.

    Parameters
    ----------
    text
        Sizes and ranges, with commas between them.
    parse
        Reads one size; returns blocks.

    Raises
    ------
    ValueError
        When a range cannot be; the text says why. What ``parse`` raises passes through.
    """
    found: list[int] = []
    for part in text.split(","):
        ends, colon, number = part.partition(":")
        low, dots, high = ends.partition("..")
        if not dots and not colon:
            found.append(parse(part))
            continue
        if not (dots and number.strip().isdecimal() and 2 <= int(number) <= MOST_SIZES):
            raise ValueError(f"{part!r} is no range: write A..B:N, with N from 2 to {MOST_SIZES}")
        first, last, steps = parse(low), parse(high), int(number) - 1
        if not 0 < first < last:
            raise ValueError(f"{part!r} does not go from a size of a block or more to a larger one")
        found += [round(first * (last / first) ** (step / steps)) for step in range(steps + 1)]
    return list(dict.fromkeys(found))


def scaled(shapes: Iterable[Shape], factors: Sequence[float]) -> list[Shape]:
    """Multiply all three sizes by each factor, rounding down to whole blocks; HBM keeps one at least."""
    return list(
        dict.fromkeys(
            (max(1, int(hbm * factor)), int(dram * factor), int(nvme * factor))
            for hbm, dram, nvme in shapes
            for factor in factors
        )
    )


def grid(
    shapes: dict[str, list[Shape]],
    base: Setup,
    *,
    evictions: Sequence[str],
    admissions: Sequence[str],
    budgets: Sequence[str],
) -> list[Cell]:
    """Lay out the product.

    Parameters
    ----------
    shapes
        Sizes in blocks by the name of the trace.
    base
        What all cells have in common.
    evictions, admissions, budgets
        Policies; write budgets as :func:`radixtier.policy.write_budget.parse_budget` reads them.
    """
    policies = list(product(evictions, admissions, budgets))
    cells = (
        Cell(trace, sized(replace(base, eviction=eviction, admission=admission, write_budget=budget), shape))
        for trace, each in shapes.items()
        for shape in each
        for eviction, admission, budget in policies
    )
    return list(dict.fromkeys(cells))


def sized(setup: Setup, shape: Shape) -> Setup:
    """Return the setup with these sizes; without NVMe all write budgets are one."""
    hbm, dram, nvme = shape
    return replace(setup, hbm=hbm, dram=dram, nvme=nvme, write_budget=setup.write_budget if nvme else "none")


def share_ceiling(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Give each outcome the ceiling of its trace and sizes, which is replayed once: it has no policy."""
    found = list(outcomes)
    ceilings = {
        (each.cell.trace, each.cell.sizes): each.report["stacks"]["ceiling"]
        for each in found
        if each.report is not None and "ceiling" in each.report["stacks"]
    }
    shared = []
    for each in found:
        ceiling = ceilings.get((each.cell.trace, each.cell.sizes))
        if each.report is not None and ceiling is not None and "ceiling" not in each.report["stacks"]:
            report = {**each.report, "stacks": {**each.report["stacks"], "ceiling": ceiling}}
            each = each._replace(report=report)
        shared.append(each)
    return shared


def ceiling_tasks(cells: Iterable[Cell], done: Iterable[Outcome]) -> list[tuple[Cell, bool]]:
    """Say of each cell whether it is the one to replay the ceiling of its trace and sizes."""
    known = {
        (each.cell.trace, each.cell.sizes)
        for each in done
        if each.report is not None and "ceiling" in each.report["stacks"]
    }
    tasks = []
    for cell in cells:
        key = cell.trace, cell.sizes
        tasks.append((cell, key not in known))
        known.add(key)
    return tasks
