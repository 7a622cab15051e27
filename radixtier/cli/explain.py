"""``radixtier explain``: where a running server took a request from, where a path is now, and why.

Owns the choice of question and the exit status: 0; 1 when there is no answer; 2 for a question that cannot be asked.
Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from radixtier.cli.control_errors import status_of
from radixtier.cli.exits import OK, with_statuses
from radixtier.control.arguments import add_path, add_server, client, path
from radixtier.control.client import ControlError
from radixtier.explain.render import REQUEST_HEAD, node_text, request_line, request_text
from radixtier.units import BadValue


def main(argv: Sequence[str]) -> int:
    """Ask one question and print the answer."""
    options = parser().parse_args(argv)
    try:
        answer = _ask(options)
    except (BadValue, ControlError, OSError) as error:
        print(f"radixtier explain: {error}", file=sys.stderr)
        return status_of(error)
    print(json.dumps(answer, indent=2) if options.json else _text(answer, options.request is not None))
    return OK


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier explain",
        description="Tell what a request was served from and why the rest was computed, or where a path is now. "
        "Without arguments, list the last requests.",
    )
    made.add_argument("request", nargs="?", metavar="RID", help="explain the request with this id")
    made.add_argument("--limit", type=int, default=20, metavar="N", help="list the last N requests (default: 20)")
    which = add_path(made, required=False)
    which.add_argument("--node", type=int, metavar="N", help="the node with this number")
    add_server(made)
    return with_statuses(made)


def _ask(options: argparse.Namespace) -> dict[str, Any]:
    target = path(options) | ({} if options.node is None else {"node": options.node})
    if target and options.request is not None:
        raise BadValue("a request and a path are given", "Ask for one of them")
    server = client(options)
    if target:
        return server.explain_node(target)
    if options.request is not None:
        return server.explain(options.request)
    return server.explain(limit=options.limit)


def _text(answer: dict[str, Any], whole: bool) -> str:
    if "nodes" in answer:
        return "\n".join(node_text(node) for node in answer["nodes"]) or "nothing of this path is known"
    requests = answer.get("requests", [])
    if whole:
        return "\n".join(request_text(request) for request in requests)
    return "\n".join([REQUEST_HEAD, *(request_line(request) for request in requests)])
