"""A client of the control endpoint, for the command line and for scripts.

Owns one connection per call, and follows a server whose drain gives up the socket that it was asked at. Needs neither
SGLang nor torch. One thread at a time.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from radixtier.control.address import Address, parse_address
from radixtier.control.requests import ROOT
from radixtier.policy.hints import Kind

TIMEOUT_S = 30.0
ANSWER_BYTES = 64 << 20


class ControlError(Exception):
    """The server cannot be reached, or says no.

    Attributes
    ----------
    status : int
        HTTP status, 0 when there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ControlClient:
    """Talks to the server at ``address``, with ``key`` if one is given."""

    def __init__(self, address: Address, key: str | None = None, timeout: float = TIMEOUT_S) -> None:
        self._address = address
        self._later: Address | None = None
        """Where the server goes on after a drain, if it said so."""
        self._headers = {} if key is None else {"Authorization": b"Bearer " + key.encode()}
        self._timeout = timeout

    def give_hint(self, kind: Kind, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a hint; return its outcome. Raises `ControlError`, as all of these do."""
        return self.call("POST", f"{ROOT}/{kind.value}", fields)

    def explain(self, rid: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return the record of a request, or those of the last ``limit``."""
        return self.call("GET", f"{ROOT}/explain{_query(limit=limit, request=rid)}")

    def explain_node(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the path or node that ``target`` names is, and what was decided about it."""
        return self.call("POST", f"{ROOT}/explain/node", target)

    def state(self) -> dict[str, Any]:
        """Return the figures of the tiers."""
        return self.call("GET", f"{ROOT}/state")

    def nodes(self, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return some nodes of the tree with numbers above ``after``, and what to give as that for the next ones."""
        return self.call("GET", f"{ROOT}/nodes{_query(after=after, limit=limit)}")

    def tree(self, root: int | None = None, most: int | None = None) -> dict[str, Any]:
        """Return the tree, or what is below the node ``root``, in at most ``most`` items."""
        return self.call("GET", f"{ROOT}/tree{_query(root=root, most=most)}")

    def history(self, seconds: int | None = None) -> dict[str, Any]:
        """Return the figures of the last ``seconds``."""
        return self.call("GET", f"{ROOT}/history{_query(seconds=seconds)}")

    def events(self, limit: int | None = None) -> dict[str, Any]:
        """Return the last lines of the server's log, newest first."""
        return self.call("GET", f"{ROOT}/events{_query(limit=limit)}")

    def drain(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Have the server give its directories on NVMe up; call it again until the answer's status is "drained"."""
        return self.call("POST", f"{ROOT}/drain", {} if timeout_s is None else {"timeout_s": timeout_s})

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make one request and return the answer's JSON object."""
        answer = self._call(method, path, body)
        if path == f"{ROOT}/drain" and isinstance(answer.get("control"), str):
            # A socket beside the store is given up with it; the server says where it goes on.
            self._later = parse_address(answer["control"], key=True)
        return answer

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            return self._ask(self._address, method, path, body)
        except ControlError as error:
            if error.status or self._later in (None, self._address):
                raise
        assert self._later is not None
        self._address, self._later = self._later, None
        return self._ask(self._address, method, path, body)

    def _ask(self, address: Address, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": b"application/json"})
        connection = _connection(address, self._timeout)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(0, f"no answer from {address}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        return _object(status, text, address)


def _query(**fields: object) -> str:
    given = {name: str(value) for name, value in fields.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _object(status: int, text: bytes, address: Address) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ControlError(status, f"{address} answered {status} without JSON; is it radixtier's control endpoint?")
    if status != 200:
        raise ControlError(status, str(answer.get("error", f"status {status}")))
    return answer


def _connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.path:
        return _UnixConnection(address.path, timeout)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
