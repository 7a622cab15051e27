"""What comes in on a connection, with a limit on bytes and on time.

Owns both. The thread of the connection only.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any

HEAD_BYTES = 64 << 10
READ_S = 10.0
"""Seconds for a request to arrive, the idle time of a kept connection included."""


class TooLong(Exception):
    """A client sent more than a request may have."""


class Metered(io.RawIOBase):
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
            raise TooLong
        self._sock.settimeout(remaining)
        got = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= got
        return got
