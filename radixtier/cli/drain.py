"""``radixtier drain``: has a running server let go of its NVMe directories, so that they can be unmounted.

Owns the waiting and the exit status: 0 when nothing of the server is open there any more, 1 when something still is.
Invariant: asking again changes nothing, so this may be interrupted and repeated. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from radixtier.cli.control_errors import status_of
from radixtier.cli.exits import FAILED, INTERRUPTED, OK, with_statuses
from radixtier.cli.kinds import seconds
from radixtier.control.address import parse_address
from radixtier.control.arguments import add_server, client
from radixtier.control.client import ControlClient, ControlError
from radixtier.live.screen import Screen
from radixtier.units import BadValue

PROG = "radixtier drain"

TIMEOUT_S = 30.0
LONGEST_S = 3600.0
EVERY_S = 1.0

GRACE_S = 10.0
"""Seconds beyond the timeout in which the server closes its files."""

DESCRIPTION = f"""\
Ask a running server to take no new pages to NVMe, write what is waiting, and close the journal and all files, so that
the file systems can be unmounted. The server goes on with HBM and DRAM; what is only on NVMe is computed meanwhile and
comes back at the next start. Waits until it is done, at most the timeout and {GRACE_S:.0f} s.
"""


def main(argv: Sequence[str]) -> int:
    """Ask, wait, and say what can be done now."""
    options = parser().parse_args(argv)
    screen = Screen(sys.stderr)
    answer: dict[str, Any] = {}
    try:
        server = client(options)
        answer = _drain(server, options.timeout, options.wait, screen)
    except (BadValue, ControlError, OSError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return status_of(error)
    except KeyboardInterrupt:
        screen.line(f"{PROG}: interrupted; the server goes on draining")
        return INTERRUPTED
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(_lines(answer, options.control)))
    return OK if answer.get("status") == "drained" and not answer.get("reason") else FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION)
    wait_help = f"time that the server has to write what is waiting (default: {TIMEOUT_S:.0f})"
    made.add_argument("--timeout", type=seconds(0.0, LONGEST_S), default=TIMEOUT_S, metavar="SECONDS", help=wait_help)
    made.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait for the end (default: --wait)"
    )
    add_server(made)
    return with_statuses(made)


def _drain(server: ControlClient, timeout_s: float, wait: bool, screen: Screen) -> dict[str, Any]:
    """Ask until it is done; return the last answer."""
    until = time.monotonic() + timeout_s + GRACE_S
    answer = server.drain(timeout_s)
    while wait and answer.get("status") == "draining" and time.monotonic() < until:
        screen.status(f"draining: {_pages(answer)} to write, {max(0.0, until - time.monotonic()):.0f} s left")
        time.sleep(EVERY_S)
        answer = server.drain(timeout_s)
    screen.status("")
    return answer


def _lines(answer: Mapping[str, Any], asked: str) -> list[str]:
    directories = ", ".join(map(str, answer.get("directories") or ())) or "no directory"
    left = int(answer.get("unwritten_pages") or 0)
    if answer.get("status") != "drained":
        reason = f" ({answer['reason']})" if answer.get("reason") else ""
        return [f"still draining{reason}: {_pages(answer)} to write; do not unmount {directories} yet"]
    if answer.get("reason"):
        found = [
            f"drained: the store in {directories} is closed",
            f"until the server ends, its file system cannot be unmounted because of {answer['reason']}",
        ]
    else:
        found = [f"drained: nothing of the server is open in {directories}; its file systems can be unmounted"]
    if left:
        found.append(f"{_pages(answer)} had not been written; what is in no other tier is computed when it is needed")
    if answer.get("control") not in (None, str(parse_address(asked, key=True))):
        found.append(f"questions are taken at {answer['control']} from now on")
    return [*found, "what was on NVMe comes back when the server is started again"]


def _pages(answer: Mapping[str, Any]) -> str:
    left = int(answer.get("unwritten_pages") or 0)
    return f"{left:,} page{'' if left == 1 else 's'}"
