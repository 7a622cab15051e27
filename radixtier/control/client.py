"""A client of the control endpoint, for the command line and for scripts.

Owns one connection per call. Needs neither SGLang nor torch. Any thread.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from radixtier.control.address import Address
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
        self._headers = {} if key is None else {"Authorization": b"Bearer " + key.encode()}
        self._timeout = timeout

    def give_hint(self, kind: Kind, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a hint; return its outcome. Raises `ControlError`, as all of these do."""
        return self.call("POST", f"{ROOT}/{kind.value}", fields)

    def explain(self, rid: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return the record of a request, or those of the last ``limit``."""
        query = {} if limit is None else {"limit": str(limit)}
        query |= {} if rid is None else {"request": rid}
        return self.call("GET", f"{ROOT}/explain" + (f"?{urlencode(query, quote_via=quote)}" if query else ""))

    def explain_node(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the path or node that ``target`` names is, and what was decided about it."""
        return self.call("POST", f"{ROOT}/explain/node", target)

    def state(self) -> dict[str, Any]:
        """Return the figures of the tiers."""
        return self.call("GET", f"{ROOT}/state")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make one request and return the answer's JSON object."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": b"application/json"})
        connection = _connection(self._address, self._timeout)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(0, f"no answer from {self._address}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        return _object(status, text, self._address)


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
