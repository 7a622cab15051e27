"""The local server of ``radixtier dashboard``: the page, and its questions forwarded to a control endpoint.

Owns the listening socket and a thread per connection. Invariants: it listens on loopback only, and forwards nothing but
the endpoint's own questions, of a client that brings its key, so that other users of this machine and other pages in
the browser get nothing; the key of the endpoint never leaves this process. Bounds: those of
:mod:`radixtier.control.connection` for a request, and :data:`MOST_CONNECTIONS` at a time. Any thread.
"""

from __future__ import annotations

import http.client
import secrets
import socket
import threading
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import quote, urlencode

from radixtier.control.commands import Refusal
from radixtier.control.connection import Connection
from radixtier.control.endpoint import Answer, Endpoint
from radixtier.control.guard import check_key, check_origin
from radixtier.control.pages import HEADERS, find_page
from radixtier.control.requests import find_route, split

MOST_CONNECTIONS = 32

ROOM_S = 0.5
"""Seconds that a client may wait for one of them."""


class DashboardServer(ThreadingTCPServer):
    """Serves the page on 127.0.0.1; ``serve_forever`` runs it and ``server_close`` ends it.

    Parameters
    ----------
    upstream : Endpoint
        Where questions go.
    port : int
        TCP port; 0 to let the system choose.

    Attributes
    ----------
    key : bytes
        What a client has to bring as ``Authorization: Bearer KEY``; random.
    url : str
        Where the page is, with the key in the fragment, which browsers do not send.
    stopping : bool
        Whether connections end after an answer.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64
    stopping = False

    def __init__(self, upstream: Endpoint, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), lambda request, _, server: _Forwarding(request, server))
        self.upstream = upstream
        key = secrets.token_urlsafe(24)
        self.key = key.encode()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/#key={key}"
        self._room = threading.Semaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a client, or hang up where there are enough."""
        if not self._room.acquire(timeout=ROOM_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""


class _Forwarding(Connection):
    """Answers with a file, or with what the endpoint says; nothing of a body is read for who may not ask."""

    server: DashboardServer

    def __init__(self, connection: socket.socket, server: DashboardServer) -> None:
        super().__init__(connection, server)  # type: ignore[arg-type]  # commands are answered elsewhere

    def _respond(self) -> None:
        length = self.headers.get("Content-Length")
        self._unread = "Transfer-Encoding" in self.headers or length not in ("0", None)
        try:
            found = self._answer(length)
        except Refusal as refusal:
            self._refuse(refusal, hang_up=self._unread)
        else:
            self._send(found.status, found.body, self._unread, found.media_type, HEADERS)

    def _answer(self, length: str | None) -> Answer:
        check_origin(self.headers)
        path, query = split(self.path)
        page = find_page(path) if self.command == "GET" else None
        if page is not None:
            return Answer(200, page.media_type, page.content)
        check_key(self.headers, self.server.key)
        assert self.command is not None
        route = find_route(self.command, path)
        bare = route.body is None or not (route.body_needed or self._unread)
        body = None if bare else self._body(length)
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        try:
            return self.server.upstream.exchange(self.command, target, body)
        except (OSError, http.client.HTTPException) as error:
            raise Refusal(502, f"no answer from the server: {str(error) or type(error).__name__}") from None
