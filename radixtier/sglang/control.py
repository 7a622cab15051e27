"""The control endpoint of one scheduler process: opens it, and carries commands out in the scheduler's tick.

Owns the desk and the server; while NVMe is being drained also a second server, since a socket on a drive keeps that
from being unmounted. Commands are carried out on the scheduler thread, a few per tick. Scheduler thread only, but for
:meth:`Control.move`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

from radixtier.control import (
    Address,
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
from radixtier.explain.render import node_json, request_json
from radixtier.sglang.rows import NodeRows
from radixtier.sglang.state import read_state
from radixtier.units import BadValue

logger = logging.getLogger(__name__)


class Control:
    """Answers for one cache."""

    def __init__(self, cache: Any, address: Address, key: str | None) -> None:
        self._cache = cache
        self._key = key
        self._desk = Desk()
        self._rows = NodeRows(cache)
        self._since = time.time()
        self._server: ControlServer | None = None
        self._later: ControlServer | None = None
        """Where the endpoint goes on once its socket has to go."""
        self._device = device_of(os.path.dirname(address.path)) if address.path else None
        """The file system that its socket lies on."""
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
        """Where it will listen when a drain is over."""
        return self.address if self._later is None else self._later.address

    def step(self) -> None:
        """Carry out some of what was asked."""
        if self._desk.pending:
            self._desk.serve(self._handle)

    def close(self) -> None:
        """Stop listening."""
        servers, self._server, self._later = (self._server, self._later), None, None
        for server in servers:
            if server is not None:
                server.close()

    # ---- while NVMe is drained ----------------------------------------------------------------------

    def prepare_to_move(self, devices: Collection[int]) -> None:
        """Listen elsewhere as well if the socket lies on one of these file systems, and another place does not."""
        elsewhere = device_of(os.path.dirname(runtime_directory()))
        if self._server is None or self._device not in devices or elsewhere is None or elsewhere in devices:
            return
        address = Address(path=runtime_socket(os.getpid()))
        try:
            self._later = self._open(address)
        except BadValue as error:
            logger.warning(
                "radixtier: the control endpoint stays at %s, whose file system cannot be unmounted before the server "
                "ends: there is none to be had at %s: %s", self.address, address, error,
            )  # fmt: skip
        else:
            logger.info("radixtier: when NVMe is drained, the control endpoint is at %s", address)

    def move(self) -> None:
        """Give up the socket on the drive; takes some seconds, and may be called on any thread."""
        server, later = self._server, self._later
        if server is not None and later is not None:
            self._server, self._later = later, None
            server.leave()

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
        if isinstance(command, GiveHint):
            path = cache.steering.path_of(command.target)
            return cache.steering.carry_out(command.hint, path).to_json()
        if isinstance(command, ExplainRequests):
            return {"requests": [request_json(record) for record in self._requests(command)]}
        if isinstance(command, ExplainNode):
            path = cache.steering.path_of(command.target)
            runs = list(dict.fromkeys(cache.mover.table.run[path].tolist()))
            return {"nodes": [node_json(cache.explain.node(run)) for run in runs if run in cache.mover.tree.runs]}
        if isinstance(command, ListNodes):
            now = time.monotonic()
            return self._rows.page(command.after, command.limit, now, time.time() - now)
        if isinstance(command, Drain):
            return cache.draining.start(command.timeout_s)
        assert isinstance(command, ReadState)
        return read_state(cache, self._since)

    def _requests(self, command: ExplainRequests) -> list[Any]:
        history = self._cache.explain.history
        if command.rid is None:
            return list(history.latest(command.limit))
        record = history.find(command.rid)
        if record is None:
            raise Refusal(404, f"request {command.rid} is not known: it has not ended, or too many came after it")
        return [record]


def device_of(directory: str) -> int | None:
    """Return the number of the file system that a directory lies on, None where that cannot be seen."""
    try:
        return os.stat(directory).st_dev
    except OSError:
        return None
