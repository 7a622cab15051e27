"""The control endpoint of one scheduler process: opens it, and carries commands out in the scheduler's tick.

Owns the desk and the server; while NVMe is being drained also a second server, since a socket on a drive keeps that
from being unmounted. Commands are carried out on the scheduler thread, a few per tick; questions about the tree get the
time that the step has for them. Scheduler thread only, but for :meth:`Control.move`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from radixtier.control import (
    Address,
    Clerk,
    Command,
    ControlServer,
    Desk,
    Drain,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ListNodes,
    ReadEvents,
    ReadHistory,
    ReadState,
    Refusal,
)
from radixtier.control.runtime import runtime_directory, runtime_socket
from radixtier.control.sources import Source
from radixtier.explain.render import request_json
from radixtier.sglang.rows import NodeRows
from radixtier.units import BadValue

logger = logging.getLogger(__name__)


class Control:
    """Answers for one cache."""

    def __init__(self, cache: Any, address: Address, key: str | None) -> None:
        self._cache = cache
        self._key = key
        self._desk = Desk()
        self._rows = NodeRows(cache)
        self._clerk = Clerk(self._desk, self._page, self._handle)
        self._lock = threading.Lock()
        """Of the servers: a drain moves on a thread of its own."""
        self._server: ControlServer | None = None
        self._later: ControlServer | None = None
        """Where the endpoint goes on once its socket has to go."""
        devices = cache.draining.devices
        self._on_drive = bool(address.path) and device_of(os.path.dirname(address.path)) in devices
        """Whether its socket keeps a drive from being unmounted."""
        self._elsewhere = _elsewhere(devices) if self._on_drive else None
        try:
            self._server = self._open(address)
        except BadValue as error:
            logger.warning("radixtier: no control endpoint at %s: %s", address, error)
            return
        logger.info("radixtier: control endpoint at %s", self._server.address)

    def _open(self, address: Address) -> ControlServer:
        sources: dict[type, Source] = {ReadHistory: self._history, ReadEvents: self._events}
        return ControlServer(address, self._desk, self._key, sources)

    @property
    def address(self) -> Address | None:
        """Where it listens; None where it could not."""
        return None if self._server is None else self._server.address

    @property
    def address_later(self) -> Address | None:
        """Where it listens once NVMe is drained."""
        with self._lock:
            if self._server is None:
                return None
            if self._later is not None:
                return self._later.address
            return self._server.address if self._elsewhere is None else self._elsewhere

    def step(self, seconds: float, idle: bool) -> None:
        """Carry out some of what was asked, for about so long; see :class:`~radixtier.control.clerk.Clerk`."""
        self._clerk.step(seconds, idle)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            servers, self._server, self._later = (self._server, self._later), None, None
        for server in servers:
            if server is not None:
                server.close()

    # ---- while NVMe is drained ----------------------------------------------------------------------

    def prepare_to_move(self) -> None:
        """Listen elsewhere as well if the socket lies on a drive and another place does not; never raises."""
        if self._server is None or self._later is not None or self._elsewhere is None:
            return
        try:
            later = self._open(self._elsewhere)
        except Exception as error:  # no reason not to drain
            logger.warning(
                "radixtier: the control endpoint stays at %s, whose file system cannot be unmounted before the server "
                "ends: there is none to be had at %s: %s", self._server.address, self._elsewhere, error,
            )  # fmt: skip
            self._elsewhere = None
            return
        logger.info("radixtier: when NVMe is drained, the control endpoint is at %s", later.address)
        with self._lock:
            self._later = later

    def move(self) -> str | None:
        """Give up the socket on the drive; takes some seconds, and may be called on any thread.

        Returns what is left there, None for nothing.
        """
        with self._lock:
            server, later = self._server, self._later
            if server is None or not self._on_drive:
                return None
            if later is None:
                return f"the socket of the control endpoint, {server.address.path}"
            self._server, self._later, self._elsewhere, self._on_drive = later, None, None, False
        server.leave()
        return None

    # ---- answers on the threads of the server -------------------------------------------------------

    def _history(self, command: ReadHistory) -> Mapping[str, Any]:
        return self._monitor("no figures are kept over time").timeline.to_json(float(command.seconds))

    def _events(self, command: ReadEvents) -> Mapping[str, Any]:
        return self._monitor("no lines of the log are kept").events.to_json(command.limit)

    def _monitor(self, without: str) -> Any:
        monitor = getattr(self._cache, "monitor", None)
        if monitor is None:
            raise Refusal(503, f"{without} by this server; its state tells what is now")
        return monitor

    # ---- answers on the scheduler thread ------------------------------------------------------------

    def _handle(self, command: Command) -> Mapping[str, Any]:
        cache = self._cache
        if isinstance(command, (GiveHint, ExplainNode)):
            return self._cache.shared.handle(command)  # type: ignore[no-any-return]
        if isinstance(command, ExplainRequests):
            return {"requests": [request_json(record) for record in self._requests(command)]}
        if isinstance(command, ListNodes):
            return self._page(command.after, command.limit)
        if isinstance(command, Drain):
            return cache.draining.start(command.timeout_s)
        assert isinstance(command, ReadState)
        return cache.figures.read()

    def _page(self, after: int, limit: int) -> Mapping[str, Any]:
        now = self._cache.ranks.now()
        return self._rows.page(after, limit, now, time.time() - now)

    def _requests(self, command: ExplainRequests) -> list[Any]:
        history = self._cache.explain.history
        if command.rid is None:
            return list(history.latest(command.limit))
        record = history.find(command.rid)
        if record is None:
            raise Refusal(404, f"request {command.rid} is not known: it has not ended, or too many came after it")
        return [record]


def _elsewhere(devices: Collection[int]) -> Address | None:
    """Return an address that is on none of these file systems, None where there is none."""
    device = device_of(os.path.dirname(runtime_directory()))
    return None if device is None or device in devices else Address(path=runtime_socket(os.getpid()))


def device_of(directory: str) -> int | None:
    """Return the number of the file system that a directory lies on, None where that cannot be seen."""
    try:
        return os.stat(directory).st_dev
    except OSError:
        return None
