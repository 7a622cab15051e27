"""The report of ``radixtier lab run``, to be read on a terminal.

Owns its words and tables. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixtier.lab.report import Report, Spread
from radixtier.lab.setup import Setup
from radixtier.lab.traces.trace import Trace
from radixtier.policy.wear import Endurance
from radixtier.units import format_bytes

NAMES = {"hbm": "HBM alone", "hbm_dram": "HBM, DRAM", "tiers": "HBM, DRAM, NVMe", "ceiling": "ceiling (Belady)"}
DIRECTIONS = {
    "hbm_to_dram": "HBM to DRAM",
    "dram_to_hbm": "DRAM to HBM",
    "dram_to_nvme": "DRAM to NVMe",
    "nvme_to_dram": "NVMe to DRAM",
}


def lines(report: Report, setup: Setup, trace: Trace, endurance: Endurance | None = None) -> list[str]:
    """Tell a report.

    Parameters
    ----------
    report, setup, trace
        What came of it, of what, on which trace.
    endurance
        Of the drive; None where there is no NVMe.
    """
    found = []
    if report.interrupted:
        found.append(f"INTERRUPTED after {report.counts.requests:,} requests: all figures are of these")
    counts, tokens = report.counts, report.tokens
    found.append(
        f"{counts.requests:,} requests in {duration(report.seconds)}: {counts.blocks:,} blocks of {trace.block_tokens}"
        f" tokens ({format_bytes(report.block_bytes)}), {tokens['input']:,} prompt tokens"
    )
    if report.skipped:
        found.append(f"{report.skipped:,} lines left out, the first: {trace.first_bad}")
    mirror = ", DRAM mirrors HBM" if setup.mirror else ""
    found.append(f"eviction {setup.eviction}, admission {setup.admission}, write budget {setup.write_budget}{mirror}")
    return [*found, "", *_tiers(report, setup), "", *_moved(report, endurance), "", *_stacks(report)]


def duration(seconds: float) -> str:
    """Write a time with three digits, and a unit that fits it."""
    if not seconds:
        return "0 s"
    for unit, most, factor in (("ms", 1.0, 1e3), ("s", 600.0, 1.0), ("min", 36_000.0, 1 / 60)):
        if seconds < most:
            value = seconds * factor
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{seconds / 3600:,.1f} h"


def _tiers(report: Report, setup: Setup) -> list[str]:
    counts, tokens = report.counts, report.tokens
    rows = [("", "size", "blocks found", "tokens found", "share", "with those above")]
    above = 0
    for name, tier, size, hits in (
        ("HBM", "hbm", setup.hbm, counts.hbm_hits),
        ("DRAM", "dram", setup.dram, counts.dram_hits),
        ("NVMe", "nvme", setup.nvme, counts.nvme_hits),
    ):
        above += hits
        held = f"{size:,} ({format_bytes(size * report.block_bytes)})"
        shares = (f"{report.ratio(hits):.4f}", f"{report.ratio(above):.4f}")
        rows.append((name, held, f"{hits:,}", f"{tokens[tier]:,}", *shares))
    missed = counts.blocks - counts.hits
    left = tokens["input"] - tokens["hbm"] - tokens["dram"] - tokens["nvme"]
    rows.append(("nowhere", "", f"{missed:,}", f"{left:,}", f"{report.ratio(missed):.4f}", ""))
    return table(rows)


def _moved(report: Report, endurance: Endurance | None) -> list[str]:
    counts, moved = report.counts, report.bytes_moved
    rows = [tuple(DIRECTIONS.values()), tuple(format_bytes(moved[name]) for name in DIRECTIONS)]
    found = table([("moved", *rows[0]), ("", *rows[1])])
    found.append(f"forgotten: {counts.lost:,} blocks; dropped from DRAM, on NVMe still: {counts.dropped:,}")
    if endurance is None or report.written_per_day is None:
        return found
    full = f", {counts.written_full:,} of them since NVMe was full" if counts.written_full else ""
    found.append(f"written to NVMe: {counts.written:,} blocks{full}; {format_bytes(int(report.written_per_day))} a day")
    wear = report.wear(endurance)
    rated = f"{format_bytes(endurance.drive_bytes)} at {endurance.dwpd:g} DWPD for {endurance.warranty_years:g} years"
    if wear.bytes_per_day is None:
        found.append("too short a trace to tell when a drive is worn out")
    elif wear.worn_out is None:
        found.append(f"a drive of {rated} is not worn out in a hundred years")
    else:
        found.append(
            f"at this rate from today on, a drive of {rated} is worn out on {wear.worn_out.date().isoformat()}"
        )
    return found


def _stacks(report: Report) -> list[str]:
    rows = [("", "hit ratio", "busy", "prefill p50", "p95", "TTFT p50", "p95", "p99", "queue p50", "p95", "p99")]
    for name, fare in report.stacks.items():
        busy = report.utilisation(name)
        shown = "-" if busy is None else f"{busy:.0%}"
        times = (*_three(fare.work)[:2], *_three(fare.ttft), *_three(fare.queue))
        rows.append((NAMES[name], f"{report.ratio(fare.hits):.4f}", shown, *times))
    found = table(rows)
    if passed := report.stacks["tiers"].passed:
        found.append(f"of what NVMe had, {passed:,} tokens were computed again: that took less time than to read them")
    if any((report.utilisation(name) or 0) >= 1 for name in report.stacks):
        found.append(
            "busy 100% or more: more work than time, so queues grow as long as the load lasts, and the times to"
        )
        found.append(
            "the first token tell how long that is. Is it the load of many servers? Give the speed of them all:"
        )
        found.append("--prefill-rate, --copy-rate, --read-rate")
    if report.ceiling_skipped:
        found.append("no ceiling: the trace is too long for it")
    return found


def _three(spread: Spread) -> tuple[str, str, str]:
    return duration(spread.p50), duration(spread.p95), duration(spread.p99)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip() for first, *others in rows
    ]
