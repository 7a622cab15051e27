"""The local server of ``radixtier dashboard``: the page, and its questions forwarded to a control endpoint.

Owns the listening socket and a thread per connection. Invariants: it listens on loopback only, and forwards nothing but
``/radix_tier/...`` of a client that brings its key, so that other users of this machine and other pages in the browser
get nothing; the key of the endpoint never leaves this process. Any thread.
"""

from __future__ import annotations

import hmac
import http.client
import json
import re
import secrets
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from radixtier.control.address import Address
from radixtier.control.commands import Refusal
from radixtier.control.guard import check_origin
from radixtier.control.pages import HEADERS, find_page
from radixtier.control.requests import ROOT

BODY_BYTES = 2 << 20
"""What the endpoint takes at most."""

READ_S = 30.0
"""Seconds without a byte after which a connection of the browser is given up."""

_TARGET = re.compile(rf"{ROOT}/[A-Za-z0-9_./-]*(\?[!-~]*)?", re.ASCII)
_JSON = "application/json"


class Upstream:
    """Makes requests to a control endpoint, each on a connection of its own; any thread.

    Parameters
    ----------
    address : Address
        Of the endpoint.
    key : str or None
        Of the endpoint.
    timeout : float
        Seconds without a byte after which it counts as silent.
    """

    def __init__(self, address: Address, key: str | None, timeout: float) -> None:
        self._address = address
        self._key = None if key is None else key.encode()
        self._timeout = timeout

    def ask(self, method: str, target: str, body: bytes | None, media_type: str) -> tuple[int, str, bytes]:
        """Return status, media type and body of the answer; raises `OSError` or `HTTPException` without one."""
        headers = {} if body is None else {"Content-Type": media_type.encode("latin-1")}
        if self._key is not None:
            headers["Authorization"] = b"Bearer " + self._key
        connection = self._connect()
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", _JSON), answer.read()
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        address = self._address
        if not address.path:
            return http.client.HTTPConnection(address.host, address.port, timeout=self._timeout)
        connection = http.client.HTTPConnection("localhost", timeout=self._timeout)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(self._timeout)
        try:
            connection.sock.connect(address.path)
        except OSError:
            connection.close()
            raise
        return connection


class DashboardServer(ThreadingHTTPServer):
    """Serves the page on 127.0.0.1; ``serve_forever`` runs it and ``server_close`` ends it.

    Parameters
    ----------
    upstream : Upstream
        Where questions go.
    port : int
        TCP port; 0 to let the system choose.

    Attributes
    ----------
    key : str
        What a client has to bring as ``Authorization: Bearer KEY``; random.
    url : str
        Where the page is, with the key in the fragment, which browsers do not send.
    """

    daemon_threads = True

    def __init__(self, upstream: Upstream, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.upstream = upstream
        self.key = secrets.token_urlsafe(24)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/#key={self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "radixtier"
    sys_version = ""
    timeout = READ_S
    server: DashboardServer

    def do_GET(self) -> None:
        """Answer with a file or forward."""
        page = find_page(self.path)
        if page is None:
            self._forward(None)
        elif self._from_here():
            self._send(HTTPStatus.OK, page.media_type, page.content)

    def do_POST(self) -> None:
        """Forward with the body."""
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "send the body in one piece, with its Content-Length")
        elif len(length) > 9 or int(length) > BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {BODY_BYTES} bytes")
        else:
            self._forward(self.rfile.read(int(length)))

    def _from_here(self) -> bool:
        """Tell whether a browser means this machine and no other page sent it, and answer where that is not so."""
        try:
            check_origin(self.headers)
        except Refusal as refusal:
            self._say(refusal.status, refusal.error)
            return False
        return True

    def _forward(self, body: bytes | None) -> None:
        if not self._from_here():
            return
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.key}".encode()):
            self._say(HTTPStatus.UNAUTHORIZED, "send the key of this page as Authorization: Bearer KEY")
        elif not _TARGET.fullmatch(self.path) or ".." in self.path:
            self._say(HTTPStatus.NOT_FOUND, f"only {ROOT}/... is here")
        else:
            media_type = self.headers.get("Content-Type", _JSON)
            try:
                status, kind, answer = self.server.upstream.ask(self.command, self.path, body, media_type)
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
                self._say(HTTPStatus.BAD_GATEWAY, f"no answer from the server: {why}")
            else:
                self._send(status, kind, answer)

    def _refuse(self, status: HTTPStatus, error: str) -> None:
        """Answer before the body is read, and hang up: nothing can follow."""
        self.close_connection = True
        self._say(status, error)

    def _say(self, status: int, error: str) -> None:
        self._send(status, _JSON, json.dumps({"error": error}).encode())

    def _send(self, status: int, media_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the page asks every two seconds."""
