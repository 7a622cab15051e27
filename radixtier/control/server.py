"""The HTTP server of the control endpoint.

Owns the listening socket, the thread that accepts and one thread per connection. Bounds: :data:`MOST_CONNECTIONS` are
served at a time and the others wait in the kernel's backlog; a request has :data:`READ_S` to arrive, however it
dribbles in, and :data:`HEAD_BYTES` and :data:`BODY_BYTES` to do it in. Invariant: a client is told what is wrong with
its request in one sentence and never sees a traceback; nothing but the desk is shared with the scheduler thread.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from radixtier.control.address import Address
from radixtier.control.commands import Refusal
from radixtier.control.desk import Desk
from radixtier.control.requests import find_route, read_command, read_json
from radixtier.control.sockets import Listener

logger = logging.getLogger(__name__)

BODY_BYTES = 2 << 20
"""About 300,000 token ids. Parsing so many holds Python's lock for 35 ms, during which the scheduler thread waits."""

HEAD_BYTES = 64 << 10
MOST_CONNECTIONS = 32
READ_S = 10.0
"""Seconds for a request to arrive, the idle time of a kept connection included."""

ANSWER_S = 10.0
"""Seconds that a command may wait for the scheduler."""

WRITE_S = 10.0

LINGER_S = 1.0
"""Seconds for which what a refused client still sends is thrown away, so that it gets to read the refusal."""

CLOSE_S = 2.0
"""Seconds that running answers have to end when the server closes."""

PAUSE_S = 1.0
"""Seconds between attempts to take a client when the system has no room for it."""

_JSON = "application/json"


class ControlServer:
    """Serves a desk at an address, from construction until :meth:`close`.

    Parameters
    ----------
    address : Address
        Where to listen.
    desk : Desk
        Where commands go; closed together with the server.
    key : str or None
        When given, every request has to bring it as ``Authorization: Bearer KEY``.

    Attributes
    ----------
    address : Address
        Where it listens, with the port that the system chose.
    desk : Desk
        As given.
    key : bytes or None
        As given, in UTF-8.
    stopping : bool
        Whether connections end after the answer in hand.

    Raises
    ------
    BadValue
        When the address cannot be had.
    """

    def __init__(self, address: Address, desk: Desk, key: str | None = None) -> None:
        self.desk = desk
        self.key = None if key is None else key.encode()
        self.stopping = False
        self._listener = Listener(address)
        self.address = self._listener.address
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="radixtier-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse what waits, end all connections and threads, and remove the socket's file; repeatable."""
        self.desk.close()
        self.stopping = True
        self._wake.close()
        self._room.release()
        self._thread.join()
        self._hang_up()
        self._listener.remove()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with self._listener.socket as listening, self._woken, selectors.DefaultSelector() as selector:
            listening.setblocking(False)
            selector.register(listening, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self.stopping:
                selector.select()
                self._room.acquire()
                try:
                    connection, _ = listening.accept()
                except (BlockingIOError, ConnectionError):  # gone again
                    self._room.release()
                except OSError as error:  # no more file descriptors, for example: it may pass
                    self._room.release()
                    logger.warning("radixtier: the control endpoint cannot take a client: %s", error)
                    self._pause()
                else:
                    self._start(connection)

    def _pause(self) -> None:
        select.select([self._woken], [], [], PAUSE_S)

    def _start(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        thread = threading.Thread(target=self._serve, args=(connection,), name="radixtier-control-client", daemon=True)
        with self._lock:
            self._open[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            logger.warning("radixtier: no thread for a client of the control endpoint")
            self._end(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            _Handler(connection, None, self)
        except Exception:
            logger.debug("radixtier: a connection to the control endpoint broke", exc_info=True)
        finally:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            del self._open[connection]
        self._room.release()

    def _hang_up(self) -> None:
        """End all connections: those that listen at once, those that answer after a while."""
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._lock:
                connections = dict(self._open)
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(how)
            until = time.monotonic() + CLOSE_S
            for thread in connections.values():
                thread.join(max(0.0, until - time.monotonic()))


class _TooLong(Exception):
    """A client sent more than a request may have."""


class _Metered(io.RawIOBase):
    """What comes in on a socket, up to a number of bytes and a point in time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until = 0.0
        self._left = 0

    def begin(self) -> None:
        """Allow for the head of a request, from now on."""
        self._left, self._until = HEAD_BYTES, time.monotonic() + READ_S

    def expect(self, nbytes: int) -> None:
        """Allow for a body, without more time."""
        self._left += nbytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request took too long to arrive")
        if self._left <= 0:
            raise _TooLong
        self._sock.settimeout(remaining)
        got = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= got
        return got


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "radixtier"
    sys_version = ""

    def __init__(self, connection: socket.socket, client_address: Any, server: ControlServer) -> None:
        self._control = server
        super().__init__(connection, client_address, server)  # type: ignore[arg-type]  # which only keeps it

    def setup(self) -> None:
        super().setup()
        self._incoming = _Metered(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)
        self._unread = False

    def handle_one_request(self) -> None:
        self._incoming.begin()
        self._unread = False
        try:
            super().handle_one_request()
        except _TooLong:
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
            answer = self._answer(length)
        except Refusal as refusal:
            self._refuse(refusal, hang_up=self._unread)
            return
        try:
            body = json.dumps(answer, default=_plain, allow_nan=False).encode()
        except (TypeError, ValueError):
            logger.exception("radixtier: an answer of the control endpoint is not JSON")
            self._refuse(Refusal(500, "the answer cannot be written; the server's log says why"), hang_up=self._unread)
            return
        self._send(200, body, hang_up=self._unread)

    def _answer(self, length: str | None) -> Mapping[str, Any]:
        self._authorise()
        route, query = find_route(self.command, self.path)
        fields = read_json(self._body(length)) if route.body else query
        return self._control.desk.ask(read_command(route, fields), ANSWER_S)

    def _authorise(self) -> None:
        key = self._control.key
        if key is None:
            return
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        # Headers are read as Latin-1; the key may be any text.
        right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), key)
        if scheme.lower() != "bearer" or not right:
            raise Refusal(401, "send the key as Authorization: Bearer KEY")

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
        self._send(refusal.status, json.dumps({"error": refusal.error}).encode(), hang_up)

    def _send(self, status: int, body: bytes, hang_up: bool) -> None:
        self.connection.settimeout(WRITE_S)
        if self.request_version == "HTTP/0.9":  # or what could not be read; it would get no status line
            self.request_version = self.protocol_version
        self.close_connection = self.close_connection or hang_up or self._control.stopping
        self.send_response(status, HTTPStatus(status).phrase)
        self.send_header("Content-Type", _JSON)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base class finds wrong, as JSON like the rest."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "use GET or POST"
        elif code >= 500:
            code, message = HTTPStatus.BAD_REQUEST, "use HTTP/1.1"
        self._refuse(Refusal(code, message or HTTPStatus(code).phrase), hang_up=True)

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


def _plain(value: Any) -> Any:
    """Numbers of numpy, as Python's."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} is not plain data")
    return item()
