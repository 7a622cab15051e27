"""``radixtier lab compare``: a recording against the lab, request by request.

Owns its flags and the text of its report; exit status 1 when more tokens differ than allowed. Main thread.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import Any

from radixtier.cli import lab_options as shared
from radixtier.cli.json_file import add_json, check_json, show, write_json
from radixtier.cli.lab_progress import Bar, guess
from radixtier.cli.lab_report import table
from radixtier.cli.lab_sizes import add_server, setup
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.retrace import LAW, Pair, retrace
from radixtier.lab.timed.run import CHUNK_TOKENS, make_cache
from radixtier.units import BadValue

EXPLANATION = """\
A recording (--radix-tier-record) says what the server found for each request. The cache of `radixtier lab timed` is
asked at the same moments. They may differ where the server held something before the recording began, or was flushed,
and where a read or a write ended within moments of a decision.
"""

SHOWN = 20


def add(commands: shared.Commands) -> None:
    """Add the subcommand."""
    summary = "check the lab against what a server recorded, request by request"
    command = shared.add_command(commands, "compare", summary, EXPLANATION)
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
    found = Comparison(keep_all=options.json is not None)
    bar = Bar(guess(options.traces[0]))
    try:
        for pair in retrace(trace.requests(), trace.nodes, cache, clock):
            found.add(pair)
            bar(found.requests)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        bar.clear()
    if not found.requests and not found.interrupted:
        raise BadValue(
            f"{options.traces[0]}: it does not say what a server found", "Record one with --radix-tier-record FILE"
        )
    write_json(options, found.as_dict())
    show(options, lines(found, trace.skipped))
    if found.interrupted:
        return 130
    return 0 if found.tokens_apart <= options.allow * max(1, found.tokens_found) else 1


@dataclass
class Comparison:
    """Sums over all requests, and the first that differ."""

    keep_all: bool = False
    """Keep every pair, for JSON."""
    requests: int = 0
    equal: int = 0
    equal_hbm: int = 0
    equal_total: int = 0
    refused: int = 0
    """For which the lab's HBM had no room."""
    tokens_found: int = 0
    """By the server."""
    tokens_apart: int = 0
    """Found on another tier in the lab, only by the server, or only in the lab."""
    differing: int = 0
    interrupted: bool = False
    pairs: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Count a request."""
        self.requests += 1
        self.equal += pair.server == pair.lab
        self.equal_hbm += pair.server.hbm == pair.lab.hbm
        self.equal_total += pair.server.total == pair.lab.total
        self.refused += not pair.admitted
        self.tokens_found += pair.server.total
        apart = [ours - theirs for ours, theirs in zip(pair.lab, pair.server, strict=True)]
        self.tokens_apart += max(sum(each for each in apart if each > 0), -sum(each for each in apart if each < 0))
        self.differing += pair.server != pair.lab
        if self.keep_all or (pair.server != pair.lab and len(self.pairs) < SHOWN):
            self.pairs.append(pair)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        sums = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("keep_all", "pairs")}
        return {**sums, "pairs": [_row(pair) for pair in self.pairs]}


def _row(pair: Pair) -> dict[str, Any]:
    return {**pair._asdict(), "server": pair.server._asdict(), "lab": pair.lab._asdict()}


def lines(found: Comparison, skipped: int) -> list[str]:
    """Tell what came of it."""
    told = [f"INTERRUPTED after {found.requests:,} requests: all figures are of these"] if found.interrupted else []
    told.append(
        f"{found.requests:,} requests: {found.equal:,} equal on every tier, {found.equal_hbm:,} in HBM,"
        f" {found.equal_total:,} in all"
    )
    told.append(f"{found.tokens_found:,} tokens found by the server; {found.tokens_apart:,} tokens apart")
    if found.refused:
        told.append(f"{found.refused:,} requests had no room in the lab's HBM: are the sizes those of the server?")
    if skipped:
        told.append(f"{skipped:,} lines of the recording left out")
    differing = [pair for pair in found.pairs if pair.server != pair.lab][:SHOWN]
    if differing:
        rows: list[tuple[str, ...]] = [("request", "tokens", "server HBM", "DRAM", "NVMe", "lab HBM", "DRAM", "NVMe")]
        for pair in differing:
            rows.append(tuple(map(str, (pair.number, pair.input_tokens, *pair.server, *pair.lab))))
        told += table(rows)
    if found.differing > len(differing):
        told.append(f"and {found.differing - len(differing):,} more")
    return told
