"""``radixtier lab``: what three tiers of given sizes would have done for a recorded load.

Owns the subcommands, their text and their exit status: 0; 2 when the trace or a size cannot be used; 130 when
interrupted. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from radixtier.lab.replay import Report
from radixtier.lab.setup import ORACLE, Setup, run
from radixtier.lab.traces.trace import BadTrace
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.tools.breakeven import DEFAULT_KV_BYTES
from radixtier.units import BadValue, format_bytes

EXPLANATION = """\
TRACE is a trace of Mooncake's (JSON lines with timestamp and hash_ids) or one of sessions (JSON lists), as it is or
compressed with gzip (.gz). Sizes are in blocks of the trace: 512 tokens in Mooncake's, 64 in those of sessions.
HBM is SGLang's own LRU. A block in HBM takes no DRAM; with --mirror it does, as with stock write-through.
"""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(prog="radixtier lab", description="Replay a recorded load over three tiers.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    summary = "replay a trace and report hits and writes"
    command = commands.add_parser(
        "run",
        help=summary,
        description=summary,
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("trace", type=Path, metavar="TRACE")
    command.add_argument("--hbm", type=int, required=True, metavar="N", help="blocks in HBM, at least 1")
    command.add_argument("--dram", type=int, default=0, metavar="N", help="blocks in DRAM (default %(default)s)")
    command.add_argument("--nvme", type=int, default=0, metavar="N", help="blocks on NVMe (default %(default)s)")
    eviction = f"of DRAM and NVMe (default %(default)s); {ORACLE} knows the future, as a ceiling"
    command.add_argument("--eviction", choices=(*EVICTIONS, ORACLE), default="lru", help=eviction)
    command.add_argument("--admission", choices=ADMISSIONS, default="auto", help="to NVMe (default %(default)s)")
    command.add_argument(
        "--write-budget", default="none", metavar="B", help="500GB/day, 1.0DWPD or none (default %(default)s)"
    )
    command.add_argument(
        "--kv-bytes-per-token",
        type=int,
        default=DEFAULT_KV_BYTES,
        metavar="N",
        help="for bytes and the budget (default %(default)s)",
    )
    command.add_argument("--mirror", action="store_true", help="every block in HBM takes a block of DRAM")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the report here, or to - for the screen")
    options = parser.parse_args(argv)
    try:
        setup = Setup(
            options.hbm,
            options.dram,
            options.nvme,
            eviction=options.eviction,
            admission=options.admission,
            write_budget=options.write_budget,
            kv_bytes_per_token=options.kv_bytes_per_token,
            mirror=options.mirror,
        )
        report = run(options.trace, setup)
        if options.json is not None:
            _write(options.json, json.dumps({**setup.as_dict(), **report.as_dict()}, indent=2))
    except BadValue as error:
        return _refuse(f"--write-budget {options.write_budget}: {error}")
    except (BadTrace, ValueError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        print("radixtier lab: interrupted", file=sys.stderr)
        return 130
    if options.json != Path("-"):
        print("\n".join(lines(report)))
    return 0


def lines(report: Report) -> list[str]:
    """Tell a report in words."""
    counts = report.counts
    rows = [
        ("HBM", counts.hbm_hits, report.hbm_ratio),
        ("DRAM", counts.dram_hits, report.dram_ratio),
        ("NVMe", counts.nvme_hits, report.hit_ratio),
    ]
    found = [f"{counts.requests} requests, {counts.blocks} blocks", f"{'':<6}{'hits':>12}  with those above"]
    found += [f"{name:<6}{hits:>12}  {ratio:>16.4f}" for name, hits, ratio in rows]
    written = f"{counts.written} blocks ({format_bytes(report.bytes_written)})"
    full = f", {counts.written_full} of them since NVMe was full" if counts.written_full else ""
    found.append(f"written to NVMe: {written}{full}")
    found.append(f"demoted from HBM to DRAM: {counts.demoted} blocks; from DRAM to NVMe: {counts.dropped}")
    found.append(f"forgotten: {counts.lost} blocks")
    return found


def _write(file: Path, text: str) -> None:
    if file == Path("-"):
        print(text)
    else:
        file.write_text(text + "\n", encoding="utf-8")


def _refuse(why: str) -> int:
    print(f"radixtier lab: {why}", file=sys.stderr)
    return 2
