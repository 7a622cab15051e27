"""A sweep as a table: for the screen, as Markdown, and with every figure as CSV.

Owns the columns. Trace, admission and budget are left out of the first two where they are the same in all rows. Pure;
any thread.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from radixtier.lab.sweep.grid import Outcome
from radixtier.units import format_bytes

_GIVEN = ("trace", "HBM", "DRAM", "NVMe", "eviction", "admission", "budget")
"""Columns that say which cell it is."""

_ALWAYS = ("HBM", "DRAM", "NVMe", "eviction")

TEXT = frozenset(("trace", "eviction", "admission", "budget"))
"""Columns of words."""


def table(outcomes: Iterable[Outcome]) -> list[list[str]]:
    """Lay out a header and a row for each outcome; what failed has its reason in place of the figures."""
    rows = [_row(each) for each in outcomes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    given = [name for name in _GIVEN if len({row[name] for row in rows}) > 1 or name in _ALWAYS]
    names = given + [name for name in names if name not in _GIVEN]
    return [names, *([row.get(name, "") for name in names] for row in rows)]


def _row(outcome: Outcome) -> dict[str, str]:
    setup, report = outcome.cell.setup, outcome.report
    row = {"trace": outcome.cell.trace}
    for name, blocks in (("HBM", setup.hbm), ("DRAM", setup.dram), ("NVMe", setup.nvme)):
        row[name] = str(blocks) if report is None else format_bytes(blocks * report["block_bytes"])
    row |= {"eviction": setup.eviction, "admission": setup.admission, "budget": setup.write_budget}
    if report is None:
        return {**row, "in HBM": f"failed: {outcome.error}"}
    ratios, stacks = report["hit_ratio"], report["stacks"]
    row |= {"in HBM": f"{ratios['hbm']:.3f}", "+ DRAM": f"{ratios['hbm_dram']:.3f}", "+ NVMe": f"{ratios['total']:.3f}"}
    if "ceiling" in stacks:
        row["ceiling"] = f"{stacks['ceiling']['hit_ratio']:.3f}"
    per_day = report["bytes_written_per_day"]
    row["written/day"] = "" if per_day is None else format_bytes(per_day)
    alone, tiers = stacks["hbm"]["ttft_s"], stacks["tiers"]["ttft_s"]
    for percentile in ("p50", "p95", "p99"):
        row[f"TTFT {percentile}"] = f"{tiers[percentile]:.2f} s"
    row["p95, HBM alone"] = f"{alone['p95']:.2f} s"
    for name, stack in (("busy", "tiers"), ("busy, HBM alone", "hbm")):
        busy = stacks[stack].get("utilisation")
        row[name] = "" if busy is None else f"{busy:.2f}"
    return row


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Line up the columns: words to the left, figures to the right."""
    failed = {number for number, row in enumerate(rows) if any(cell.startswith("failed: ") for cell in row)}
    widths = [
        max(len(row[column]) for number, row in enumerate(rows) if number not in failed or not number)
        for column in range(len(rows[0]))
    ]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if name in TEXT else cell.rjust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    rule = ["---" if name in TEXT else "---:" for name in rows[0]]
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (rows[0], rule, *rows[1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def as_csv(outcomes: Iterable[Outcome]) -> str:
    """Write every figure of every cell, a column each; nested names are joined with dots."""
    rows = [{**_flat(each.cell.as_dict()), "error": each.error or "", **_flat(each.report or {})} for each in outcomes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(values: dict[str, Any], front: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{front}{name}.") if isinstance(value, dict) else {f"{front}{name}": value}
    return found
