"""``radixtier lab compare``: a recording against the lab, request by request.

Owns its flags and the text of its report; exit status 1 when more tokens differ than allowed. Main thread.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from radixtier.cli import lab_options as shared
from radixtier.cli.lab_json import add_json, check_json, show, write_json
from radixtier.cli.lab_report import table
from radixtier.cli.lab_sizes import add_server, setup
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.retrace import LAW, Pair, retrace
from radixtier.lab.timed.run import CHUNK_TOKENS, make_cache
from radixtier.units import BadValue

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EXPLANATION = """\
A recording (--radix-tier-record) says what the server found for each request. The cache of `radixtier lab timed` is
asked at the same moments. They may differ where the server held something before the recording began, or was flushed,
and where a read or a write ended within moments of a decision.
"""

SHOWN = 20


def add(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "check the lab against what a server recorded, request by request"
    command = commands.add_parser(
        "compare",
        help=summary,
        description=summary,
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server(command)
    allowed = "share of the tokens found that may differ (default %(default)s)"
    command.add_argument("--allow", type=float, default=0.05, metavar="SHARE", help=allowed)
    add_json(command, "all pairs")
    command.set_defaults(command=main)


def main(options: argparse.Namespace) -> int:
    """Compare and report."""
    if not 0 <= options.allow <= 1:
        raise BadValue(f"--allow {options.allow}: no share", "Give a number from 0 to 1")
    (trace,) = shared.traces(options)
    server = setup(options, trace, shared.geometry(options, trace))
    check_json(options)
    clock = Clock()
    cache = make_cache(server, trace.block_tokens, CHUNK_TOKENS, shared.rates(options), clock, LAW)
    pairs = list(retrace(trace.requests(), trace.nodes, cache, clock))
    if not pairs:
        raise BadValue(
            f"{options.traces[0]}: it does not say what a server found", "Record one with --radix-tier-record FILE"
        )
    summary = summed(pairs)
    write_json(options, {**summary, "pairs": [_row(pair) for pair in pairs]})
    show(options, lines(pairs, summary))
    return 0 if summary["tokens_apart"] <= options.allow * max(1, summary["tokens_found"]) else 1


def summed(pairs: list[Pair]) -> dict[str, Any]:
    """Sum up."""
    apart = sum(max(sum(max(0, s - b) for s, b in zip(p.server, p.lab, strict=True)),
                    sum(max(0, b - s) for s, b in zip(p.server, p.lab, strict=True))) for p in pairs)  # fmt: skip
    return {
        "requests": len(pairs),
        "equal": sum(pair.server == pair.lab for pair in pairs),
        "equal_hbm": sum(pair.server.hbm == pair.lab.hbm for pair in pairs),
        "equal_total": sum(pair.server.total == pair.lab.total for pair in pairs),
        "tokens_found": sum(pair.server.total for pair in pairs),
        "tokens_apart": apart,
    }


def _row(pair: Pair) -> dict[str, Any]:
    return {**pair._asdict(), "server": pair.server._asdict(), "lab": pair.lab._asdict()}


def lines(pairs: list[Pair], summary: dict[str, Any]) -> list[str]:
    """Tell what came of it."""
    found = [
        f"{summary['requests']:,} requests: {summary['equal']:,} equal on every tier, {summary['equal_hbm']:,} in HBM,"
        f" {summary['equal_total']:,} in all",
        f"{summary['tokens_found']:,} tokens found by the server, {summary['tokens_apart']:,} of them elsewhere or not"
        " at all in the lab, or only there",
    ]
    differing = [pair for pair in pairs if pair.server != pair.lab]
    if differing:
        rows: list[tuple[str, ...]] = [("request", "tokens", "server HBM", "DRAM", "NVMe", "lab HBM", "DRAM", "NVMe")]
        for pair in differing[:SHOWN]:
            rows.append(tuple(map(str, (pair.number, pair.input_tokens, *pair.server, *pair.lab))))
        found += table(rows)
    if len(differing) > SHOWN:
        found.append(f"and {len(differing) - SHOWN:,} more")
    return found
