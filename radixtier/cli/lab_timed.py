"""``radixtier lab timed``: serves one trace in virtual time, with the server's own promoter, and reports.

Owns its flags and the text of its report. Ctrl-C prints the report of what was served until then, exit status 130.
Main thread.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from radixtier.cli import lab_options as shared
from radixtier.cli.json_file import add_json, check_json, show, write_json
from radixtier.cli.lab_progress import Bar, guess
from radixtier.cli.lab_report import DIRECTIONS, duration, table
from radixtier.cli.lab_sizes import add_server, setup
from radixtier.lab.setup import Setup
from radixtier.lab.timed.run import CHUNK_TOKENS, TimedReport, run_timed
from radixtier.units import BadValue, format_bytes

EXPLANATION = """\
Below HBM this runs what the server runs: mover, promotions, waiting room, predicted returns, write-behind. SGLang's
tree and scheduler are modelled; radixtier/lab/timed/server.py says how. Hits are below those of `radixtier lab run`:
running requests take room in HBM, whole nodes leave it, blocks that are not whole are no pages, and a request that has
waited in the queue finds what is left then.
"""


def add(commands: shared.Commands) -> None:
    """Add the subcommand."""
    summary = "serve a trace in virtual time: waits, promotions, predicted returns, times to the first token"
    command = shared.add_command(commands, "timed", summary, EXPLANATION)
    add_server(command)
    load = command.add_argument_group("load")
    load.add_argument(
        "--closed-loop", action="store_true", help="sessions ask again when they have thought, not when the trace says"
    )
    stretch = "arrivals are so many times as far apart (default %(default)s)"
    load.add_argument("--stretch", type=float, default=1.0, metavar="X", help=stretch)
    load.add_argument(
        "--chunk", type=int, default=CHUNK_TOKENS, metavar="TOKENS", help="batch of prefill (default %(default)s)"
    )
    add_json(command)
    command.set_defaults(command=main)


def main(options: argparse.Namespace) -> int:
    """Serve and report."""
    if not 0 < options.stretch < 1e6:
        raise BadValue(f"--stretch {options.stretch}: no factor", "Give a number above 0, such as 10")
    if options.chunk < 1:
        raise BadValue(f"--chunk {options.chunk}: no batch", "Give 1 token at least, such as 8192")
    (trace,) = shared.traces(options)
    server = setup(options, trace, shared.geometry(options, trace))
    rates = shared.rates(options)
    check_json(options)
    bar = Bar(guess(options.traces[0]))
    try:
        report = run_timed(
            trace, server, rates, chunk_tokens=options.chunk, closed_loop=options.closed_loop,
            stretch=options.stretch, progress=bar,
        )  # fmt: skip
    finally:
        bar.clear()
    about = {"trace": options.traces[0].name, "block_tokens": trace.block_tokens, "rates": asdict(rates)}
    write_json(options, {**about, **server.as_dict(), **report.as_dict()})
    show(options, lines(report, server))
    if report.interrupted:
        print(f"radixtier lab: interrupted after {report.requests} requests", file=sys.stderr)
        return 130
    return 0


def lines(report: TimedReport, server: Setup) -> list[str]:
    """Tell a report of a server."""
    found = [f"eviction {server.eviction}, admission {server.admission}, write budget {server.write_budget}"]
    found[0] += f"; {server.hbm:,} / {server.dram:,} / {server.nvme:,} blocks in HBM / DRAM / NVMe"
    if report.skipped:
        found.append(f"{report.skipped:,} lines left out")
    if report.interrupted:
        found.append(f"INTERRUPTED after {report.requests:,} requests: all figures are of these")
    prompts = report.input_tokens
    found.append(
        f"{report.requests:,} requests in {duration(report.seconds)}, server busy {report.busy_s / report.seconds:.0%},"
        f" drive {report.drive_busy_s / report.seconds:.0%}"
        if report.seconds
        else f"{report.requests:,} requests"
    )
    if report.refused:
        found.append(f"{report.refused:,} of them refused: HBM is too small for them")
    rows: list[tuple[str, ...]] = [("tokens found", "HBM", "DRAM", "NVMe", "nowhere")]
    tiers = (report.hbm, report.dram, report.nvme, prompts - report.hbm - report.dram - report.nvme)
    rows.append(("", *(f"{tokens:,}" for tokens in tiers)))
    rows.append(("share", *(f"{tokens / max(1, prompts):.4f}" for tokens in tiers)))
    found += table(rows)
    rows = [("", "mean", "p50", "p95", "p99")]
    for name, spread in (("TTFT", report.ttft), ("queue", report.queue)):
        rows.append((name, *map(duration, spread)))
    found += table(rows)
    found.append(f"waited for NVMe: {report.waited:,} requests, {duration(report.waited_s)} in all")
    moved = ", ".join(f"{DIRECTIONS[name]} {format_bytes(nbytes)}" for name, nbytes in report.bytes.items())
    found.append(f"moved: {moved}")
    for trigger, pages in sorted(report.promoted.items()):
        used, wasted = report.ahead_used.get(trigger, 0), report.ahead_wasted.get(trigger, 0)
        ahead = "" if trigger == "arrival" else f", {used:,} used, {wasted:,} left again unused"
        found.append(f"promoted by {trigger}: {pages:,} pages{ahead}")
    return found
