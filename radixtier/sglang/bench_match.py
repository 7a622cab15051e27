"""``radixtier bench match``: what a prefix match costs per tier, against stock SGLang, and what handles cost.

Owns the plan, the pairing of samples and the report. Invariant: stock and tiered cache are timed in the same process,
in turns, and only ratios within a turn are compared, so that a slow or drifting machine hits both sides alike. Main
thread; importable without SGLang, which is loaded when a measurement starts.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from radixtier import SGLANG_VERSION
from radixtier.sglang.bench_handles import measure_handles
from radixtier.sglang.bench_rig import Rig

TURN_CALLS = 15
"""Calls of one side before it is the other's turn: enough to be back in its own caches."""

TARGET_HBM, TARGET_BELOW = 1.10, 1.50
"""Highest ratio to stock that a match may cost, in HBM only and below."""

NOISY = 0.10
"""Interquartile range of a ratio from which the machine counts as noisy."""

EXPLANATION = """\
Builds SGLang's own HiCache and radixtier's cache in one process, on CPU tensors, with the Rust tree core and the same
path in both, and times match_prefix() as the scheduler calls it, the two sides in turns. Tiers (where the whole prefix
is on the tiered side; stock has it in HBM or in its host pool):

  hbm              in HBM
  dram, nvme       in DRAM, on NVMe; nothing has moved since the last match of this path
  dram-changed,    the same when some page moved between the tiers before every match: what the first match of an
  nvme-changed     arriving request costs on a busy server
  dram-admission   the match before admission, of a request that arrived, while pages move

ratio is the median over turns of radixtier / stock. Nothing is pinned to a core; results need no quiet machine, but a
warning tells when it was a loud one. Page size 1 writes about 600 MB of scratch to the directory for temporary files
(set TMPDIR to move it).
"""


@dataclass(frozen=True)
class Plan:
    """What to measure: tokens per page, tokens of prefix, turns per row, handles."""

    page_sizes: Sequence[int] = (1, 16, 64)
    prefixes: Sequence[int] = (2048, 32768, 131072)
    turns: int = 200
    handles: int = 1_000_000


QUICK = Plan(prefixes=(2048, 32768), turns=60, handles=100_000)


@dataclass(frozen=True)
class Timing:
    """One comparison: microseconds per call, their ratio and its interquartile range, over turns."""

    stock_us: float
    radixtier_us: float
    ratio: float
    spread: float


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    page_size: int
    prefix_tokens: int
    tier: str
    stock_us: float
    radixtier_us: float
    ratio: float
    spread: float
    target: float
    """Highest ratio that the tier may cost there."""


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON; always 0, a benchmark judges nobody."""
    made = parser()
    arguments = made.parse_args(argv)
    if importlib.util.find_spec("sglang") is None:
        made.error(f"SGLang is not installed: pip install sglang=={SGLANG_VERSION}")
    logging.getLogger("sglang").setLevel(logging.ERROR)
    report = measure(QUICK if arguments.quick else Plan(), _say)
    _say("")
    print(render(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier bench match",
        description=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    made.add_argument("--quick", action="store_true", help="shorter prefixes, fewer turns, 100,000 handles")
    return made


def measure(plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run a plan.

    Returns
    -------
    dict
        ``rows`` of :class:`Row`, ``handles`` as :func:`radixtier.sglang.bench_handles.measure_handles` gives them,
        ``noisy`` and ``sglang_version``.
    """
    rows: list[Row] = []
    for page_size in plan.page_sizes:
        progress(f"page size {page_size}: building both caches")
        with Rig(page_size, plan.prefixes) as rig:
            for row in _rows(rig, plan):
                progress(f"page size {page_size}: {row.tier}, {row.prefix_tokens} tokens: ratio {row.ratio:.2f}")
                rows.append(row)
    progress(f"{plan.handles} handles")
    return {
        "sglang_version": SGLANG_VERSION,
        "rows": [asdict(row) for row in rows],
        "noisy": statistics.median(row.spread for row in rows) > NOISY,
        "handles": measure_handles(plan.handles),
    }


def _rows(rig: Rig, plan: Plan) -> Iterator[Row]:
    """Time every tier of one page size; the path only goes down, so this takes one rig."""

    def timed(tier: str, before: Callable[[], None], prefix: int) -> Row:
        rig.check(prefix, in_hbm=tier == "hbm")
        question = rig.question(prefix)
        stock, tiered = partial(rig.stock.match_prefix, question), partial(rig.tiered.match_prefix, question)
        timing = compare(stock, tiered, before, plan.turns)
        target = TARGET_HBM if tier == "hbm" else TARGET_BELOW
        return Row(rig.page_size, prefix, tier, **asdict(timing), target=target)

    def rows(tier: str, before: Callable[[], None]) -> Iterator[Row]:
        return (timed(tier, before, prefix) for prefix in plan.prefixes)

    yield from rows("hbm", _nothing)
    rig.evict()
    yield from rows("dram", _nothing)
    yield from rows("dram-changed", rig.change)
    for prefix in plan.prefixes:
        rig.admit(prefix)
        yield timed("dram-admission", rig.change, prefix)
        rig.leave()
    rig.demote()
    yield from rows("nvme", _nothing)
    yield from rows("nvme-changed", rig.change)


def _nothing() -> None:
    pass


def compare(stock: Callable[[], Any], tiered: Callable[[], Any], before: Callable[[], None], turns: int) -> Timing:
    """Time two calls in turns.

    Parameters
    ----------
    stock, tiered
        What is timed.
    before
        Called before every call of either, outside the timed part.
    turns
        Pairs of blocks of :data:`TURN_CALLS` calls; who begins alternates.
    """
    of_stock: list[float] = []
    of_tiered: list[float] = []
    sides = [(stock, of_stock), (tiered, of_tiered)]
    for call, _ in sides:
        _block(call, before)
    gc.collect()
    gc.disable()
    try:
        for _ in range(turns):
            sides.reverse()
            for call, times in sides:
                times.append(_block(call, before))
    finally:
        gc.enable()
    low, middle, high = statistics.quantiles([b / a for a, b in zip(of_stock, of_tiered, strict=True)], n=4)
    return Timing(statistics.median(of_stock), statistics.median(of_tiered), middle, high - low)


def _block(call: Callable[[], Any], before: Callable[[], None]) -> float:
    """Median time of some calls, microseconds: an interrupt spoils a call, not the block."""
    times = []
    for _ in range(TURN_CALLS):
        before()
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1000


# ---- report -------------------------------------------------------------------------------------------


def render(report: dict[str, Any]) -> str:
    """Lay the report out as text."""
    heads = ("page", "prefix", "tier", "stock us", "radixtier us", "ratio", "target")
    lines = ["{:>4} {:>7}  {:<14} {:>9} {:>13} {:>6} {:>7}".format(*heads)]
    for row in report["rows"]:
        lines.append(
            "{page_size:>4} {prefix_tokens:>7}  {tier:<14} {stock_us:>9.1f} {radixtier_us:>13.1f} {ratio:>6.2f} "
            "{target:>7.2f}".format(**row)
            + ("  over" if row["ratio"] > row["target"] else "")
        )
    handles = report["handles"]
    lines += [
        "",
        f"{handles['handles']:,} handles: {handles['bytes_per_handle']:.1f} bytes each in the table, "
        f"{handles['tree_bytes_per_handle']:.1f} in the tier tree",
        "ns per page: " + ", ".join(f"{step} {ns:.0f}" for step, ns in handles["ns_per_page"].items()),
    ]
    if report["noisy"]:
        lines.append("warning: ratios spread widely, other work disturbs this machine; run it again when it is quiet")
    return "\n".join(lines)


def _say(text: str) -> None:
    """Show progress: one changing line on a terminal that can, plain lines elsewhere; an empty text ends it."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"):
        print(f"\r\x1b[2K{text[:100]}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
