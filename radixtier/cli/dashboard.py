"""``radixtier dashboard``: the dashboard of a running server, on this machine, for this user.

Owns the run and the exit status: 130 after Ctrl-C, which is how it ends; 1 when the server does not answer at the start
or the port cannot be had. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from radixtier.cli.control_errors import status_of
from radixtier.cli.dashboard_proxy import DashboardServer
from radixtier.cli.exits import FAILED, INTERRUPTED, with_statuses
from radixtier.cli.kinds import port
from radixtier.control.arguments import add_server, client
from radixtier.control.client import ControlError
from radixtier.live.ending import end_like_ctrl_c
from radixtier.units import BadValue

PROG = "radixtier dashboard"

DESCRIPTION = """\
Serve the dashboard of a running server on this machine's loopback address, and print where it is. The URL holds a
random key: who has it can see what the server holds and give it hints, until this command ends. From another machine:
ssh -L PORT:127.0.0.1:PORT to this one, with the PORT that is printed or given.
"""


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted."""
    options = parser().parse_args(argv)
    end_like_ctrl_c()
    try:
        asked = client(options)
        asked.state()
    except (BadValue, ControlError, OSError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return status_of(error)
    try:
        server = DashboardServer(asked.endpoint, options.port)
    except OSError as error:
        print(f"{PROG}: --port {options.port}: {error.strerror}. Choose another, or leave it out.", file=sys.stderr)
        return FAILED
    with server:
        print(json.dumps({"url": server.url}) if options.json else server.url, flush=True)
        if not options.json:
            print(f"the dashboard of {asked.endpoint.address}; Ctrl-C ends it", file=sys.stderr)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return INTERRUPTED
    return FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION)
    made.add_argument("--port", type=port, default=0, metavar="PORT", help="of 127.0.0.1 (default: a free one)")
    add_server(made)
    return with_statuses(made)
