"""``radixtier lab plan``: the cheapest DRAM and NVMe with which a load reaches a hit ratio or a time to first token.

Owns the subcommand, its text and its exit status: 0; 1 when the target cannot be reached; 2 when the trace or a flag
cannot be used; 130 when interrupted, after what was found has been told. Main thread.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from radixtier.cli import lab_options
from radixtier.cli.json_file import check_json, show, write_json
from radixtier.cli.lab_jobs import (
    add_jobs,
    as_dict,
    jobs,
    picture_formats,
    save_picture,
    tell,
    tell_failures,
)
from radixtier.cli.lab_sweep import named
from radixtier.lab.plots.front import front_figure
from radixtier.lab.setup import Setup
from radixtier.lab.sweep.grid import Cell
from radixtier.lab.sweep.plan import LEAST_RUNS, RUNS, Plan, Verdict, pursue
from radixtier.lab.sweep.plan_text import front_rows, lines
from radixtier.lab.sweep.prices import Prices
from radixtier.lab.sweep.search import STEP
from radixtier.lab.sweep.table import as_markdown, as_text
from radixtier.lab.sweep.target import Target, hit_ratio, ttft
from radixtier.lab.sweep.workers import Workers
from radixtier.lab.traces.trace import Trace
from radixtier.units import BadValue

SUMMARY = "find the cheapest sizes of DRAM and NVMe that reach a target"

BUDGET = "1DWPD"
"""Write budget where none is given: what common data-centre drives are rated for."""

EXPLANATION = f"""\
A coarse grid of sizes is replayed first, then sizes around the cheapest that reach the target, in steps down to
{STEP - 1:.0%}. Every size that is named was replayed. The prices are assumptions of an order of magnitude, per GB of
KV and for nothing else: give yours. Without --write-budget the plan allows {BUDGET}, an assumption too: drives that are
written to without a bound wear out, and are no longer the cheapest.
"""


def add(commands: lab_options.Commands) -> None:
    """Add the parser."""
    parser = lab_options.add_command(commands, "plan", SUMMARY, EXPLANATION)
    lab_options.add_traces(parser)
    group = parser.add_argument_group("target and sizes")
    target = group.add_mutually_exclusive_group(required=True)
    target.add_argument("--target-hit-ratio", metavar="R", help="share of blocks to find in any tier, such as 0.4")
    target.add_argument("--target-ttft", metavar="S[@P]", help="seconds, of p95 or what is said: 2.5@p50, 3@mean")
    group.add_argument("--hbm", required=True, metavar="SIZE", help="in blocks, tokens (2Mtok) or bytes (40GB)")
    group.add_argument("--max-dram", metavar="SIZE", help="the most DRAM (default: all blocks of the trace)")
    group.add_argument("--max-nvme", metavar="SIZE", help="the most NVMe (default: all blocks of the trace)")
    group.add_argument("--runs", type=int, default=RUNS, metavar="N", help="replays at most (default %(default)s)")
    prices = parser.add_argument_group("prices, per GB (10^9 bytes)").add_argument
    default = Prices()
    why = "an assumption: give yours"
    prices("--price-dram", metavar="P", help=f"(default {default.dram:g}, {why})")
    prices("--price-nvme", metavar="P", help=f"(default {default.nvme:g}, {why})")
    prices("--price-hbm", metavar="P", help=f"(default {default.hbm:g}: the GPUs are there anyway)")
    prices("--currency", default="cost units", metavar="TEXT", help="what prices are in (default: %(default)s)")
    lab_options.add_policies(parser)
    lab_options.add_geometry(parser)
    lab_options.add_rates(parser)
    add_jobs(parser, "front.md and the picture")
    parser.set_defaults(command=plan)


def plan(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    n_jobs, formats, rates = jobs(options), picture_formats(options), lab_options.rates(options)
    found = Plan(_target(options), _prices(options))
    if options.runs < LEAST_RUNS:
        raise BadValue(f"--runs {options.runs}: too few", f"The coarse grid alone takes {LEAST_RUNS}")
    traces = named(options.traces, lab_options.traces(options))
    ((name, trace),) = traces.items()
    geometry = lab_options.geometry(options, trace)
    blocks = partial(lab_options.blocks, geometry=geometry, block_tokens=trace.block_tokens)
    most = (
        None if options.max_dram is None else blocks(options.max_dram, flag="--max-dram"),
        None if options.max_nvme is None else blocks(options.max_nvme, flag="--max-nvme", nvme=True),
    )
    setup = Setup(
        blocks(options.hbm, flag="--hbm"),
        kv_bytes_per_token=geometry.bytes_per_token,
        **_policies(options, trace),
    )
    check_json(options)
    interrupted = False
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with Workers(traces, rates, n_jobs) as workers:

        def replay(tasks: Sequence[tuple[Cell, bool]]) -> Any:
            for outcome in workers.replay(tasks):
                hbm, dram, nvme = outcome.cell.sizes
                value = "failed" if outcome.report is None else found.target.written(found.value(outcome))
                tell(f"replay {found.runs + 1} of at most {options.runs}: {hbm}/{dram}/{nvme}: {value}")
                yield outcome

        try:
            pursue(found, Cell(name, setup), most, replay, options.runs, n_jobs)
        except KeyboardInterrupt:
            interrupted = True
            tell(f"radixtier lab: interrupted after {found.runs} replays")
    _deliver(options, found, formats)
    tell_failures(found.failed)
    if interrupted:
        return 130
    return 0 if found.verdict in (Verdict.FOUND, Verdict.HBM_ALONE) else 1


def _policies(options: argparse.Namespace, trace: Trace) -> dict[str, Any]:
    found = lab_options.policies(options, trace)
    if options.write_budget is None and found["write_budget"] == "none":
        found["write_budget"] = BUDGET
    return found


def _target(options: argparse.Namespace) -> Target:
    flag, read, text = "--target-hit-ratio", hit_ratio, options.target_hit_ratio
    if text is None:
        flag, read, text = "--target-ttft", ttft, options.target_ttft
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{flag} {text}: {error}") from None


def _prices(options: argparse.Namespace) -> Prices:
    given = {}
    for tier in Prices._fields:
        text = getattr(options, f"price_{tier}")
        if text is None:
            continue
        try:
            given[tier] = float(text)
        except ValueError:
            given[tier] = math.nan
        if not 0 <= given[tier] < math.inf:
            raise BadValue(f"--price-{tier} {text}: no price", "Give a number per GB, such as 0.2")
    return Prices(**given)


# ---- what is told -----------------------------------------------------------------------------------


def _deliver(options: argparse.Namespace, found: Plan, formats: Sequence[str]) -> None:
    if found.alone is None:
        return
    write_json(options, _json(options, found))
    rows = front_rows(found, options.currency)
    front = ["", "Sizes that are clearly better than all that is cheaper:", as_text(rows)]
    show(options, [*lines(found, options.currency, _assumed(options)), *front])
    if options.out is None:
        return
    (options.out / "front.md").write_text(as_markdown(rows) + "\n", encoding="utf-8")
    if formats and len(found.found) > 1:
        save_picture(front_figure(found, options.currency), options, "front", formats)


def _assumed(options: argparse.Namespace) -> list[str]:
    """Return the flags that were not given and that decide much."""
    flags = [*(f"price_{tier}" for tier in Prices._fields), "write_budget"]
    return [f"--{flag.replace('_', '-')}" for flag in flags if getattr(options, flag) is None]


def _json(options: argparse.Namespace, found: Plan) -> dict[str, Any]:
    answer = found.answer
    return {
        "target": found.target._asdict(),
        "prices": {**found.prices._asdict(), "currency": options.currency},
        "verdict": None if found.verdict is None else found.verdict.name.lower(),
        "answer": None if answer is None else {"cost": found.cost(answer), **as_dict(answer)},
        "writes_per_day": found.writes_per_day,
        "alone": None if found.alone is None else as_dict(found.alone),
        "most": None if found.most is None else as_dict(found.most),
        "front": [{"cost": found.cost(each), **as_dict(each)} for each in found.front()],
        "runs": found.runs,
        "runs_used_up": found.limited,
        "failed": [as_dict(each) for each in found.failed],
    }
