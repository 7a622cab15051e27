"""``radixtier hint``: tells a running server what is known about the future of a path.

Owns the arguments and the exit status: 0; 1 when the hint was rejected or did not arrive; 2 for one that cannot be
given. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from radixtier.cli.control_errors import status_of
from radixtier.cli.exits import FAILED, OK, with_statuses
from radixtier.control.arguments import add_path, add_server, client, path
from radixtier.control.client import ControlError
from radixtier.explain.render import outcome_text
from radixtier.policy.hints import LONGEST_S, TTL_S, Kind, Status
from radixtier.policy.pins import Tier
from radixtier.units import BadValue

_KINDS = {
    Kind.PREFETCH: "it is needed soon: bring it up to DRAM",
    Kind.DEMOTE: "it is not needed soon: give up its DRAM",
    Kind.PIN: "keep it in a tier for a while",
    Kind.RETAIN: "do not forget it for a while",
    Kind.SHARE: "many requests use it: keep it in DRAM for a while",
    Kind.RELEASE: "end pins, retains and shares",
}
_LASTING = (Kind.PIN, Kind.RETAIN, Kind.SHARE)


def main(argv: Sequence[str]) -> int:
    """Send one hint and print its outcome."""
    options = parser().parse_args(argv)
    kind = Kind(options.kind)
    try:
        outcome = client(options).give_hint(kind, path(options) | _fields(options))
    except (BadValue, ControlError, OSError) as error:
        print(f"radixtier hint: {error}", file=sys.stderr)
        return status_of(error)
    print(json.dumps(outcome, indent=2) if options.json else outcome_text(outcome))
    return FAILED if outcome.get("status") == Status.REJECTED.value else OK


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier hint", description="Tell a running server what is known about the future of a path."
    )
    kinds = made.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, summary in _KINDS.items():
        command = kinds.add_parser(kind.value, help=summary, description=summary)
        add_path(command, required=True)
        command.add_argument("--start-token", type=int, metavar="N", help="first token of the span (default: 0)")
        command.add_argument("--end-token", type=int, metavar="N", help="end of the span (default: that of the path)")
        if kind in _LASTING:
            ttl_help = f"seconds that it holds, at most {LONGEST_S:.0f} (default: {TTL_S:.0f})"
            command.add_argument("--ttl", type=float, metavar="SECONDS", help=ttl_help)
        if kind is Kind.PIN:
            command.add_argument("--tier", choices=[tier.value for tier in Tier], help="where (default: dram)")
        if kind is Kind.DEMOTE:
            command.add_argument("--hbm", action="store_true", default=None, help="leave HBM as well")
        if kind is Kind.PREFETCH:
            command.add_argument("--by", type=float, metavar="SECONDS", help="needed so long from now (default: now)")
        add_server(command)
    return with_statuses(made)


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    names = {
        "ttl": "ttl_s",
        "tier": "tier",
        "by": "by_s",
        "hbm": "hbm",
        "start_token": "start_token",
        "end_token": "end_token",
    }
    given = {field: getattr(options, name, None) for name, field in names.items()}
    return {field: value for field, value in given.items() if value is not None}
