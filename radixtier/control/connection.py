"""One connection to the control endpoint: reads requests, has them answered, and writes the answers.

Bounds: a request has `READ_S` to arrive, however it dribbles in, and `HEAD_BYTES` and :data:`BODY_BYTES` to do it in.
Invariant: a client is told what is wrong with its request in one sentence and never sees a traceback. The thread of the
connection only.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

from radixtier.control.commands import Command, Refusal
from radixtier.control.encoding import encode
from radixtier.control.guard import check_key, check_origin
from radixtier.control.metered import HEAD_BYTES, Metered, TooLong
from radixtier.control.pages import HEADERS as PAGE_HEADERS
from radixtier.control.pages import Page, find_page
from radixtier.control.requests import find_route, read_command, read_json, split
from radixtier.control.routes import Route

logger = logging.getLogger(__name__)

BODY_BYTES = 2 << 20
"""About 300,000 token ids. Parsing so many holds Python's lock for 35 ms, during which the scheduler thread waits."""

WRITE_S = 10.0

LINGER_S = 1.0
"""Seconds for which what a refused client still sends is thrown away, so that it gets to read the refusal."""

_JSON = "application/json"


class Server(Protocol):
    """What a connection belongs to."""

    key: bytes | None
    stopping: bool
    over_tcp: bool

    def answer(self, command: Command) -> Mapping[str, Any]:
        """Answer a command; raises `Refusal`."""


class Connection(BaseHTTPRequestHandler):
    """Serves one connection from construction to its end."""

    protocol_version = "HTTP/1.1"
    server_version = "radixtier"
    sys_version = ""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self._control = server
        super().__init__(connection, None, server)  # type: ignore[arg-type]  # which only keeps them

    def setup(self) -> None:
        super().setup()
        self._incoming = Metered(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)
        self._unread = False

    def handle_one_request(self) -> None:
        self._incoming.begin()
        self._unread = False
        try:
            super().handle_one_request()
        except TooLong:
            self.requestline, self.request_version, self.command = "", self.protocol_version, ""
            self._refuse(Refusal(431, f"the head of a request has at most {HEAD_BYTES} bytes"), hang_up=True)
        except OSError:
            self.close_connection = True
        if self.close_connection and self._unread:
            self._linger()

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        length = self.headers.get("Content-Length")
        none = ("0",) if self.command == "POST" else ("0", None)
        self._unread = "Transfer-Encoding" in self.headers or length not in none
        try:
            found = self._find(length)
        except Refusal as refusal:
            self._refuse(refusal, hang_up=self._unread)
            return
        if isinstance(found, Page):
            self._send(200, found.content, self._unread, found.media_type, PAGE_HEADERS)
            return
        try:
            body = encode(found)
        except (TypeError, ValueError):
            logger.exception("radixtier: an answer of the control endpoint is not JSON")
            self._refuse(Refusal(500, "the answer cannot be written; the server's log says why"), hang_up=self._unread)
            return
        self._send(200, body, hang_up=self._unread)

    def _find(self, length: str | None) -> Page | Mapping[str, Any]:
        if self._control.over_tcp:
            check_origin(self.headers)
        path, query = split(self.path)
        page = find_page(path) if self.command == "GET" else None
        if page is not None:
            return page
        check_key(self.headers, self._control.key)
        assert self.command is not None
        route = find_route(self.command, path)
        fields = query if route.body is None else self._fields(route, query, length)
        return self._control.answer(read_command(route, fields))

    def _fields(self, route: Route, query: Mapping[str, str], length: str | None) -> Mapping[str, Any]:
        if query:
            raise Refusal(400, "the query means nothing here; send the fields in the body")
        if not route.body_needed and length in ("0", None) and "Transfer-Encoding" not in self.headers:
            return {}
        return read_json(self._body(length))

    def _body(self, length: str | None) -> bytes:
        if self.headers.get_content_type() != _JSON:
            raise Refusal(415, f"send a body with Content-Type: {_JSON}")
        if "Transfer-Encoding" in self.headers or length is None:
            raise Refusal(411, "send the body in one piece, with its Content-Length")
        if len(self.headers.get_all("Content-Length", ())) > 1 or not (length.isascii() and length.isdigit()):
            raise Refusal(400, "Content-Length: not a number; send the bytes of the body")
        if len(length) > 9 or int(length) > BODY_BYTES:
            raise Refusal(
                413, f"a body has at most {BODY_BYTES} bytes; name the session, or send text in the place of ids"
            )
        nbytes = int(length)
        self._incoming.expect(nbytes)
        body = self.rfile.read(nbytes)
        self._unread = False
        if len(body) < nbytes:
            raise Refusal(400, f"the body ended after {len(body)} of {nbytes} bytes")
        return body

    def _refuse(self, refusal: Refusal, hang_up: bool) -> None:
        self._unread = self._unread or hang_up
        body = json.dumps({"error": refusal.error}).encode()
        self._send(refusal.status, body, hang_up, headers=refusal.headers)

    def _send(
        self,
        status: int,
        body: bytes,
        hang_up: bool,
        media_type: str = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.connection.settimeout(WRITE_S)
        if self.request_version == "HTTP/0.9":  # or what could not be read; it would get no status line
            self.request_version = self.protocol_version
        self.close_connection = self.close_connection or hang_up or self._control.stopping
        self.send_response(status, HTTPStatus(status).phrase)
        always = {"Content-Type": media_type, "Content-Length": str(len(body)), "X-Content-Type-Options": "nosniff"}
        for name, value in (always | {"Cache-Control": "no-store"} | dict(headers or {})).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base class finds wrong, as JSON like the rest."""
        headers = {}
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message, headers = HTTPStatus.METHOD_NOT_ALLOWED, "use GET or POST", {"Allow": "GET, POST"}
        elif code >= 500:
            code, message = HTTPStatus.BAD_REQUEST, "use HTTP/1.1"
        self._refuse(Refusal(code, message or HTTPStatus(code).phrase, headers), hang_up=True)

    def _linger(self) -> None:
        """Let the client read the answer: closing with unread bytes would reset the connection."""
        until = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (remaining := until - time.monotonic()) > 0:
                self.connection.settimeout(remaining)
                if not self.connection.recv(65536):
                    break

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("radixtier: control endpoint: " + format, *args)
