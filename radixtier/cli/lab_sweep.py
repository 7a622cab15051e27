"""``radixtier lab sweep``: a grid of sizes and policies over traces, in parallel, as a table and as pictures.

Owns the subcommand, its text and its exit status: 0; 1 when a cell failed; 2 when nothing could be replayed or a flag
cannot be used; 130 when interrupted, after what was done has been told and written. Main thread.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence, Sized
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
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
from radixtier.lab.plots.sweep import hit_ratios, ttfts, writes
from radixtier.lab.rates import Rates
from radixtier.lab.setup import ORACLE, Setup
from radixtier.lab.sweep.clock import TimeLeft, spoken
from radixtier.lab.sweep.grid import Cell, Outcome, Shape, ceiling_tasks, grid, scaled, share_ceiling, sizes
from radixtier.lab.sweep.results import NAME, Results
from radixtier.lab.sweep.table import as_csv, as_markdown, as_text, table
from radixtier.lab.sweep.workers import Workers
from radixtier.lab.traces.trace import Trace
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.policy.write_budget import parse_budget
from radixtier.units import BadValue

SUMMARY = "replay traces over a grid of sizes and policies, in parallel; a table and pictures"

EXPLANATION = f"""\
SIZES are one size or several with commas between them, in blocks (5000), tokens (2Mtok) or bytes (40GB), or A..B:N,
which are N sizes from A to B, each larger by the same factor. The grid is the product of all sizes and policies;
--scale multiplies the three sizes together, so that --hbm 1000 --dram 2000 --nvme 8000 --scale 1,2,4 are three stacks.
Results are written to DIR/{NAME} as they come; --resume goes on where a sweep was stopped.
"""

MOST_CELLS = 100_000


def add(commands: lab_options.Commands) -> None:
    """Add the parser."""
    parser = lab_options.add_command(commands, "sweep", SUMMARY, EXPLANATION)
    lab_options.add_traces(parser, many=True)
    group = parser.add_argument_group("grid").add_argument
    group("--hbm", required=True, metavar="SIZES", help="in HBM")
    group("--dram", default="0", metavar="SIZES", help="in DRAM (default %(default)s)")
    group("--nvme", default="0", metavar="SIZES", help="on NVMe (default %(default)s)")
    group("--scale", default="1", metavar="A,B,...", help="factors on all three (default %(default)s)")
    evictions = f"of {', '.join((*EVICTIONS, ORACLE))} (default %(default)s)"
    default = lab_options.DEFAULT_POLICIES
    group("--eviction", "--policy", dest="eviction", default=default["eviction"], metavar="A,B,...", help=evictions)
    admissions = f"of {', '.join(ADMISSIONS)} (default %(default)s)"
    group("--admission", default=default["admission"], metavar="A,B,...", help=admissions)
    budgets = "such as none,500GB/day,1.0DWPD (default %(default)s)"
    group("--write-budget", default=default["write_budget"], metavar="A,B,...", help=budgets)
    group("--mirror", action="store_true", help="every block in HBM takes a block of DRAM, as with stock write-through")
    group("--no-ceiling", action="store_true", help="do not replay the best that any policy could do")
    lab_options.add_geometry(parser)
    lab_options.add_rates(parser)
    work = add_jobs(parser, f"{NAME}, table.md, table.csv and the pictures")
    work.add_argument("--resume", action="store_true", help="go on with what is in --out")
    parser.set_defaults(command=sweep)


def sweep(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    n_jobs, formats, rates = jobs(options), picture_formats(options), lab_options.rates(options)
    if options.resume and options.out is None:
        raise BadValue("--resume: from where", "Give --out, the directory of the sweep that was stopped")
    traces = named(options.traces, lab_options.traces(options))
    cells = lay_out(options, traces)
    check_json(options)
    results = None
    if options.out is not None:
        results = Results(options.out, _about(options, traces, rates), resume=options.resume)
    done = {} if results is None else {cell: results.done[cell] for cell in cells if cell in results.done}
    if done:
        tell(f"{len(done)} of {len(cells)} replays were there")
    interrupted = False
    try:
        _replay(cells, done, traces, rates, n_jobs, results, ceiling=not options.no_ceiling)
    except KeyboardInterrupt:
        interrupted = True
        tell(f"radixtier lab: interrupted; {len(done)} of {len(cells)} replays are done")
    finally:
        if results is not None:
            results.close()
    outcomes = share_ceiling(done[cell] for cell in cells if cell in done)
    _deliver(options, outcomes, formats)
    failed = [each for each in outcomes if each.report is None]
    tell_failures(failed)
    if interrupted:
        return 130
    return 0 if not failed else 1 if len(failed) < len(outcomes) else 2


def named(files: Sequence[Path], traces: Sequence[Trace]) -> dict[str, Trace]:
    """Name traces by their files: without folder and suffixes where that tells them apart."""
    short = [file.name.removesuffix(".gz").removesuffix(".jsonl") for file in files]
    if len(set(short)) < len(short):
        short = [str(file) for file in files]
    if len(set(short)) < len(short):
        twice = next(name for name in short if short.count(name) > 1)
        raise BadValue(f"TRACE {twice}: given twice", "Give each trace once")
    return dict(zip(short, traces, strict=True))


def lay_out(options: argparse.Namespace, traces: dict[str, Trace]) -> list[Cell]:
    """Read the flags of the grid."""
    factors = [_factor(text) for text in options.scale.split(",")]
    evictions = _names(options.eviction, "--eviction", (*EVICTIONS, ORACLE))
    admissions = _names(options.admission, "--admission", ADMISSIONS)
    budgets = [text.strip() for text in options.write_budget.split(",")]
    for text in budgets:
        try:
            parse_budget(text, 1)
        except BadValue as error:
            raise BadValue(f"--write-budget {text}: {error.why}", error.fix) from None
    cells: list[Cell] = []
    for name, trace in traces.items():
        geometry = lab_options.geometry(options, trace)

        def parse(flag: str, nvme: bool, read: Callable[..., int] = lab_options.blocks) -> Callable[[str], int]:
            return partial(read, flag=flag, geometry=geometry, block_tokens=trace.block_tokens, nvme=nvme)  # noqa: B023

        each = [
            _sizes(text, flag, parse(flag, flag == "--nvme"))
            for text, flag in ((options.hbm, "--hbm"), (options.dram, "--dram"), (options.nvme, "--nvme"))
        ]
        axes: list[Sized] = [*each, factors, evictions, admissions, budgets]
        if math.prod(map(len, axes)) > MOST_CELLS:
            raise BadValue(f"a grid of more than {MOST_CELLS} replays", "Give fewer sizes or policies")
        shapes: list[Shape] = scaled(product(*each), factors)  # type: ignore[arg-type]
        base = Setup(1, kv_bytes_per_token=geometry.bytes_per_token, mirror=options.mirror)
        cells += grid({name: shapes}, base, evictions=evictions, admissions=admissions, budgets=budgets)
    return cells


def _sizes(text: str, flag: str, parse: Callable[[str], int]) -> list[int]:
    try:
        return sizes(text, parse)
    except BadValue:
        raise
    except ValueError as error:
        raise ValueError(f"{flag} {text}: {error}") from None


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor <= 1e9:
        raise BadValue(f"--scale {text}: no factor", "Give numbers above 0, such as 1,2,4")
    return factor


def _names(text: str, flag: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise BadValue(f"{flag} {name}: no such policy", f"Choose of {', '.join(known)}")
    return names


def _about(options: argparse.Namespace, traces: dict[str, Trace], rates: Rates) -> dict[str, Any]:
    """Return what two sweeps must have in common for one to go on from the other."""
    sizes_of = {name: file.stat().st_size for name, file in zip(traces, options.traces, strict=True)}
    return {
        "traces": sizes_of,
        "spread": options.spread,
        "seed": options.seed,
        "skip_bad": options.skip_bad,
        "ceiling": not options.no_ceiling,
        "rates": asdict(rates),
    }


def _replay(
    cells: Sequence[Cell],
    done: dict[Cell, Outcome],
    traces: dict[str, Trace],
    rates: Rates,
    n_jobs: int,
    results: Results | None,
    *,
    ceiling: bool,
) -> None:
    """Replay what is not done, and say how it goes."""
    left = [cell for cell in cells if cell not in done]
    clock = TimeLeft(left, n_jobs)
    tasks = ceiling_tasks(left, done.values()) if ceiling else [(cell, False) for cell in left]
    with Workers(traces, rates, n_jobs) as workers, closing(workers.replay(tasks)) as found:
        for outcome in found:
            done[outcome.cell] = outcome
            if results is not None:
                results.add(outcome)
            clock.done(outcome)
            hbm, dram, nvme = outcome.cell.sizes
            reached = "failed" if outcome.report is None else f"{outcome.report['hit_ratio']['total']:.3f}"
            what = f"{outcome.cell.trace} {hbm}/{dram}/{nvme} {outcome.cell.setup.eviction}: {reached}"
            remaining = f", {spoken(clock.seconds)} left" if clock.seconds and len(done) < len(cells) else ""
            tell(f"{len(done)}/{len(cells)}{remaining}: {what}, took {spoken(outcome.seconds)}")


def _deliver(options: argparse.Namespace, outcomes: Sequence[Outcome], formats: Sequence[str]) -> None:
    """Print the table, and write the files."""
    if not outcomes:
        return
    rows = table(outcomes)
    write_json(options, [as_dict(each) for each in outcomes])
    show(options, [as_text(rows)])
    if options.out is None:
        return
    (options.out / "table.md").write_text(as_markdown(rows) + "\n", encoding="utf-8")
    (options.out / "table.csv").write_text(as_csv(outcomes), encoding="utf-8")
    if formats and any(each.report is not None for each in outcomes):
        for name, draw in (("hit_ratio", hit_ratios), ("writes", writes), ("ttft", ttfts)):
            save_picture(draw(outcomes), options, name, formats)
