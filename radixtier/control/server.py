"""The HTTP server of the control endpoint.

Owns the listening socket, the thread that accepts and one thread per connection. Bounds: :data:`MOST_CONNECTIONS` are
served at a time and the others wait in the kernel's backlog. Invariant: nothing but the desk is shared with the
scheduler thread.
"""

from __future__ import annotations

import contextlib
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from radixtier.control.address import Address
from radixtier.control.commands import Command, Refusal
from radixtier.control.connection import Connection
from radixtier.control.desk import Desk
from radixtier.control.sockets import Listener
from radixtier.control.sources import Source, tree_sources
from radixtier.units import BadValue

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 32

ANSWER_S = 10.0
"""Seconds that a command may wait for the scheduler."""

CLOSE_S = 2.0
"""Seconds that running answers have to end when the server closes."""

PAUSE_S = 1.0
"""Seconds between attempts to take a client when the system has no room for it."""


class ControlServer:
    """Serves a desk at an address, from construction until :meth:`close`.

    Parameters
    ----------
    address : Address
        Where to listen.
    desk : Desk
        Where commands go; closed together with the server.
    key : str or None
        When given, every request but those for the dashboard's files has to bring it as ``Authorization: Bearer KEY``.
    sources : mapping of type to callable
        What answers some types of command on the HTTP threads, without the desk; besides those about the tree, which
        are always there.

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
    over_tcp : bool
        Whether browsers can get here.

    Raises
    ------
    BadValue
        When the address cannot be had.
    """

    def __init__(
        self, address: Address, desk: Desk, key: str | None = None, sources: Mapping[type, Source] | None = None
    ) -> None:
        self.desk = desk
        self._sources = {**tree_sources(self._ask), **(sources or {})}
        self.key = None if key is None else key.encode()
        self.stopping = False
        self._listener = Listener(address)
        self.address = self._listener.address
        self.over_tcp = not self.address.path
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="radixtier-control", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            for each in (self._listener.socket, self._wake, self._woken):
                each.close()
            self._listener.remove()
            raise BadValue("the system gives no more threads", "Let it have more") from None

    def answer(self, command: Command) -> Mapping[str, Any]:
        """Have a command answered by whoever can; raises `Refusal`."""
        source = self._sources.get(type(command))
        if source is None:
            return self._ask(command)
        try:
            return source(command)
        except Refusal:
            raise
        except Exception:
            logger.exception("radixtier: a question to the control endpoint failed: %s", type(command).__name__)
            raise Refusal(500, "this failed in the server; its log says why") from None

    def _ask(self, command: Command) -> Mapping[str, Any]:
        return self.desk.ask(command, ANSWER_S)

    def close(self) -> None:
        """Refuse what waits, end all connections and threads, and remove the socket's file; repeatable."""
        self.desk.close()
        self.leave()

    def leave(self) -> None:
        """End all connections and threads and remove the socket's file, but let others use the desk; repeatable."""
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
            Connection(connection, self)
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
