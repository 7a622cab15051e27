"""``radixtier lab run``: replays one trace over tiers of given sizes and reports.

Owns its flags and the way from them to a run. Ctrl-C prints the report of what was replayed until then, exit status
130. Main thread.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from radixtier.cli import lab_options as shared
from radixtier.cli.json_file import add_json, check_json, show, write_json
from radixtier.cli.lab_progress import Bar, guess
from radixtier.cli.lab_report import lines
from radixtier.cli.lab_sizes import add_server, setup
from radixtier.lab.report import Report
from radixtier.lab.setup import run
from radixtier.policy.wear import Endurance
from radixtier.units import BadValue, Unit, parse_size

EXPLANATION = """\
HBM is SGLang's own LRU. A block in HBM takes no DRAM; with --mirror it does, as with stock write-through. Times to the
first token are those of a machine that prefills one prompt at a time; radixtier/lab/timing.py says where that is wrong.
A trace recorded by a server brings the sizes and policies of that server, which the flags override.
"""


def add(commands: shared.Commands) -> None:
    """Add the subcommand."""
    summary = "replay a trace: hits, bytes moved, wear, and times to the first token"
    command = shared.add_command(commands, "run", summary, EXPLANATION)
    add_server(command)
    drive = command.add_argument_group("drive, for its wear")
    drive.add_argument("--drive-bytes", metavar="SIZE", help="capacity, all drives together (default: that of --nvme)")
    drive.add_argument("--drive-dwpd", type=float, default=1.0, metavar="N", help="rating (default %(default)s)")
    drive.add_argument("--drive-years", type=float, default=5.0, metavar="N", help="warranty (default %(default)s)")
    report = command.add_argument_group("report")
    report.add_argument("--no-ceiling", action="store_true", help="leave out Belady's choice, which needs memory")
    add_json(report)
    command.set_defaults(command=main)


def main(options: argparse.Namespace) -> int:
    """Replay and report."""
    (trace,) = shared.traces(options)
    server = setup(options, trace, shared.geometry(options, trace))
    endurance = _endurance(options, server.nvme * trace.block_tokens * server.kv_bytes_per_token)
    rates = shared.rates(options)
    check_json(options)
    bar = Bar(guess(options.traces[0]))
    try:
        report = run(trace, server, rates=rates, ceiling=not options.no_ceiling, progress=bar)
    finally:
        bar.clear()
    about = {"trace": options.traces[0].name, "block_tokens": trace.block_tokens, "rates": asdict(rates)}
    write_json(options, {**about, **server.as_dict(), **report.as_dict(endurance)})
    show(options, lines(report, server, trace, endurance))
    return _status(report)


def _endurance(options: argparse.Namespace, nvme_bytes: int) -> Endurance | None:
    """Return what the drive is rated for, None without one."""
    for flag, value in (("--drive-dwpd", options.drive_dwpd), ("--drive-years", options.drive_years)):
        if not 0 < value < 1e6:
            raise BadValue(f"{flag} {value}: no rating", "Give a number above 0, such as 1")
    nbytes = nvme_bytes
    if options.drive_bytes is not None:
        try:
            size = parse_size(options.drive_bytes)
        except BadValue as error:
            raise BadValue(f"--drive-bytes {options.drive_bytes}: {error.why}", "Write 3.84TB or 2TiB") from None
        if size.unit is not Unit.BYTES or not size.amount:
            raise BadValue(f"--drive-bytes {options.drive_bytes}: no number of bytes", "Write 3.84TB or 2TiB")
        nbytes = size.amount
    return Endurance(nbytes, options.drive_dwpd, options.drive_years) if nvme_bytes else None


def _status(report: Report) -> int:
    if report.interrupted:
        print(f"radixtier lab: interrupted after {report.counts.requests} requests", file=sys.stderr)
        return 130
    return 0
