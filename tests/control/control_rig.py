"""A control server whose scheduler is a thread with a script."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from radixtier.control import Address, Command, ControlServer, Desk, GiveHint
from radixtier.control.client import ControlClient
from radixtier.control.desk import ROOM, Handler
from radixtier.control.sources import Source

LOOPBACK = Address(host="127.0.0.1")
PATIENCE_S = 30.0
"""For what must not happen: a test that would hang fails."""


@dataclass
class Script:
    """Grants every hint, answers the rest with what was asked, and remembers it."""

    seen: list[Command] = field(default_factory=list)

    def __call__(self, command: Command) -> Mapping[str, Any]:
        self.seen.append(command)
        if isinstance(command, GiveHint):
            return command.hint.granted(64, 64).to_json()
        return {"asked": type(command).__name__}


@contextlib.contextmanager
def scheduler(desk: Desk, handle: Handler) -> Iterator[None]:
    """Serve a desk from a thread, as the scheduler's ticks would."""
    stop = threading.Event()

    def ticks() -> None:
        while not stop.wait(0.001):
            desk.serve(handle)

    thread = threading.Thread(target=ticks)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def serving(
    address: Address = LOOPBACK,
    handle: Handler | None = None,
    key: str | None = None,
    room: int = ROOM,
    sources: Mapping[type, Source] | None = None,
) -> Iterator[ControlServer]:
    """Run a server with a scheduler behind it."""
    desk = Desk(room)
    with ControlServer(address, desk, key, sources) as server, scheduler(desk, handle or Script()):
        yield server


def client(server: ControlServer, key: str | None = None) -> ControlClient:
    return ControlClient(server.address, key, PATIENCE_S)


def dial(server: ControlServer) -> socket.socket:
    address = server.address
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE_S)
        sock.connect(address.path)
        return sock
    return socket.create_connection((address.host, address.port), PATIENCE_S)


def exchange(server: ControlServer, request: bytes, end: bool = True) -> tuple[int, dict[str, Any]]:
    """Send raw bytes, and no more after them if ``end``; return status and JSON of the only answer.

    The status is 0 when the server hung up without one.
    """
    with dial(server) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(request)
            if end:
                sock.shutdown(socket.SHUT_WR)
        return parse(read_all(sock))


def read_all(sock: socket.socket) -> bytes:
    got = b""
    while part := sock.recv(65536):
        got += part
    return got


def parse(answer: bytes) -> tuple[int, dict[str, Any]]:
    if not answer:
        return 0, {}
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else {}


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode() + body
