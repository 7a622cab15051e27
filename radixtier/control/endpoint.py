"""The client's end of a connection to the control endpoint: one request at a time, to wherever the server listens now.

Owns the addresses that a server was seen or said to listen at: a drain takes its socket off the drive, and every state
tells where it goes on. Law: only who got no connection, or lost it without an answer, asks at the next address, so
nothing is asked again of a server that is merely slow. Any thread.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from radixtier.control.address import Address, parse_address
from radixtier.control.routes import ROOT
from radixtier.units import BadValue

JSON = "application/json"

MOST_BYTES = 64 << 20
"""Of an answer; the rest is left."""

TELLING = (f"{ROOT}/state", f"{ROOT}/drain")
"""Paths whose answers say where the server goes on."""


GONE = (ConnectionError, FileNotFoundError)
"""Nobody is there, or not any more."""


class Answer(NamedTuple):
    """What came back, as it came."""

    status: int
    media_type: str
    body: bytes


class Endpoint:
    """A server's control endpoint.

    Parameters
    ----------
    address : Address
        Where it is asked first.
    key : str or None
        Its key.
    timeout : float
        Seconds without a byte after which it counts as silent.
    """

    def __init__(self, address: Address, key: str | None, timeout: float) -> None:
        self._first = self._now = address
        self._later: Address | None = None
        self._headers = {} if key is None else {"Authorization": b"Bearer " + key.encode()}
        self._timeout = timeout

    @property
    def address(self) -> Address:
        """Where it answered last."""
        return self._now

    def exchange(self, method: str, target: str, body: bytes | None = None, media_type: str = JSON) -> Answer:
        """Make one request; raises `OSError` or `HTTPException` when there is no answer."""
        now = self._now
        try:
            return self._ask(now, method, target, body, media_type)
        except GONE:
            for address in (self._later, self._first):
                if address is None or address == now:
                    continue
                try:
                    answer = self._ask(address, method, target, body, media_type)
                except GONE:
                    continue
                self._now = address
                return answer
            raise

    def _ask(self, address: Address, method: str, target: str, body: bytes | None, media_type: str) -> Answer:
        headers = self._headers | ({} if body is None else {"Content-Type": media_type.encode("latin-1")})
        link = connection(address, self._timeout)
        try:
            link.request(method, target, body, headers)
            response = link.getresponse()
            answer = Answer(response.status, response.getheader("Content-Type", JSON), response.read(MOST_BYTES))
        finally:
            link.close()
        if answer.status == 200 and urlsplit(target).path in TELLING:
            self._later = _later(answer.body) or self._later
        return answer


def connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    """Return a connection that is made with its first request; closed by the caller."""
    if address.path:
        return _UnixConnection(address.path, timeout)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


def _later(body: bytes) -> Address | None:
    """Return the address that an answer names, None where it names none that can be read."""
    try:
        answer = json.loads(body)
        return parse_address(answer["control"], key=True)
    except (ValueError, TypeError, KeyError, AttributeError, BadValue):
        return None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
