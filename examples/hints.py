"""Tells the tier what is known about the future: hints over radixtier's control endpoint. Shared by the examples.

Owns the connection, a new one per hint. The endpoint is a Unix socket beside the store unless the server was started
with another ``--radix-tier-control``; docs/control.md has every hint and every answer. Any thread. Standard library
only; in Python code that may depend on radixtier, ``radixtier.control.client`` does the same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import time
from typing import Any

from ask import Failed

TIMEOUT_S = 30.0
PATIENCE_S = 3.0
"""How long a hint is repeated when the server does not know the path yet: it files a turn a moment after its answer."""

AGAIN_S = 0.2


class Hints:
    """Gives hints and remembers what became of them.

    Parameters
    ----------
    address
        ``unix:PATH``, ``127.0.0.1:PORT`` or ``[::1]:PORT``.
    key
        What the server was started with as ``--api-key``; None for none.
    """

    def __init__(self, address: str, key: str | None = None) -> None:
        self.address = address
        self._reasons: dict[str, list[str]] = {}
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._call("GET", "/radix_tier/state")  # ends the example at once if nobody listens there

    def give(self, kind: str, **fields: Any) -> str:
        """Give a hint and return what became of it; a hint that fails does no harm, so this never raises."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                outcome = self._call("POST", f"/radix_tier/{kind}", fields)
                status, reason = str(outcome.get("status")), str(outcome.get("reason") or "")
            except Failed as failed:
                status, reason = "failed", str(failed)
            # Releasing what holds nothing is no reason to wait.
            if status not in ("failed", "rejected") or kind == "release" or time.monotonic() >= end:
                self._reasons.setdefault(f"{kind} {status}", []).append(reason)
                return f"{kind} {status}" + (f": {reason}" if reason else "")
            time.sleep(AGAIN_S)

    def report(self) -> str:
        """Tell what became of all hints, with the latest reason: a line per kind and answer."""
        answers = sorted(self._reasons.items())
        return "\n".join(
            f"{what} {len(reasons)}" + (f" ({reasons[-1]})" if reasons[-1] else "") for what, reasons in answers
        )

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        connection = self._connection()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failed(f"no control endpoint answers at {self.address}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if status != 200 or not isinstance(answer, dict):
            why = answer.get("error") if isinstance(answer, dict) else None
            raise Failed(f"{self.address} answered {status}: {why}", status)
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return _UnixConnection(self.address.removeprefix("unix:"))
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise Failed(f"--control {self.address}: not an address. Write unix:PATH or 127.0.0.1:PORT")
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def add_hints(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where hints go, and whether."""
    where = "where hints are taken: unix:PATH or 127.0.0.1:PORT (default: $RADIXTIER_CONTROL)"
    parser.add_argument("--control", metavar="ADDRESS", default=os.environ.get("RADIXTIER_CONTROL"), help=where)
    parser.add_argument("--no-hints", action="store_true", help="tell the tier nothing, to compare")


def open_hints(options: argparse.Namespace, key: str | None) -> Hints | None:
    """Return where hints go, None with ``--no-hints``. Raises `Failed`."""
    if options.no_hints:
        return None
    if not options.control:
        raise Failed(
            "--control is not given: say where the server takes hints (unix:STORE/radixtier.sock, as its log says), "
            "or run with --no-hints"
        )
    return Hints(options.control, key)
