"""A stand around a server that runs already, and that others may be using.

Owns nothing of it. Invariant: without ``disturb`` it is only asked, and told about the paths of the gate's own prompts;
with it, it may be flushed as well. Faults, restarts and kills are for servers that the gate started: this one is
nobody's to start again. Main thread, but for what :mod:`radixtier.gate.stand` allows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from radixtier.control.client import ControlClient, ControlError
from radixtier.gate import cooling
from radixtier.gate.acceptance_subject import _local_pid
from radixtier.gate.launched import room, token_paths
from radixtier.gate.stand import Room, Side, Unavailable, nothing, store_bytes
from radixtier.live.client import Client, RequestFailed
from radixtier.live.page_cache import drop
from radixtier.live.processes import Usage, measured
from radixtier.load.answer import Piece
from radixtier.load.target import SglangTarget

_NO_CONTROL = "no control endpoint: name it with --control"


class AttachedStand:
    """See :class:`radixtier.gate.stand.Stand`.

    Parameters
    ----------
    url
        Of the server.
    control
        Its control endpoint; None where there is none.
    directories
        Of its store; what the server itself names, if it is on this machine, goes first.
    disturb
        Whether it may be flushed.
    api_key
        Of the server, "" for none.
    model
        Directory of its model, where it is known.

    Raises
    ------
    RequestFailed, OSError
        The server does not answer.
    """

    attached = True
    beside = False
    stock: Side | None = None

    def __init__(
        self,
        url: str,
        control: ControlClient | None,
        directories: Sequence[Path] = (),
        *,
        disturb: bool = False,
        api_key: str = "",
        model: Path | None = None,
    ) -> None:
        self.disturb = disturb
        self.model = model
        self.control = control
        self.notes: dict[str, Any] = {}
        self._api_key = api_key
        self.tiered = Side("tiered", SglangTarget(url, api_key=api_key))
        Client(url, timeout_s=30.0, api_key=api_key).call("GET", "/health")
        state = self.state() or {}
        told = tuple(Path(path) for path in state.get("directories") or () if Path(path).is_dir())
        self.directories = told or tuple(path.absolute() for path in directories)
        # The account alone may be that of another machine, and so its pid.
        self._pid = _local_pid(state, self.directories)
        self._numbers = time.time_ns()
        self._page = 0

    def __enter__(self) -> AttachedStand:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing was changed."""

    def number(self) -> int:
        """See :meth:`Stand.number`."""
        self._numbers += 1
        return self._numbers

    def room(self) -> Room:
        """See :meth:`Stand.room`."""
        return room(self.tiered.target.url, self.state(), self._api_key)

    def state(self) -> dict[str, Any] | None:
        """See :meth:`Stand.state`."""
        try:
            return None if self.control is None else self.control.state()
        except ControlError:
            return None

    def flush(self, side: Side) -> None:
        """See :meth:`Stand.flush`."""
        if not self.disturb:
            raise Unavailable("the server is in use: --disturb allows to flush it")
        try:
            Client(side.target.url, api_key=self._api_key).flush()
        except (RequestFailed, OSError) as error:
            raise Unavailable(f"the server was not flushed, others may be using it ({error})") from None

    def chill(self, paths: Sequence[Piece]) -> int:
        """See :meth:`Stand.chill`."""
        if self.control is None:
            raise Unavailable(_NO_CONTROL)
        try:
            if not self._page:
                self._page = int(self.control.state().get("page_tokens", 1))
            return cooling.chill(self.control, token_paths(paths), self._page)
        except ControlError as error:
            raise Unavailable(str(error)) from None

    def lift(self, paths: Sequence[Piece]) -> None:
        """See :meth:`Stand.lift`."""
        if self.control is None:
            raise Unavailable(_NO_CONTROL)
        try:
            cooling.lift(self.control, token_paths(paths))
        except ControlError as error:
            raise Unavailable(str(error)) from None

    def restart(self) -> float:
        """Never."""
        raise Unavailable("the gate did not start this server: --launch lets it restart one")

    def kill(self, dead: Callable[[], object] = nothing) -> float:
        """Never."""
        raise Unavailable("the gate did not start this server: --launch lets it kill one and start it again")

    def misbehave(self, faults: str) -> None:
        """Never."""
        raise Unavailable("the gate did not start this server: --launch lets it give its drive faults")

    def settle(self) -> bool:
        """See :meth:`Stand.settle`."""
        try:
            return self.control is not None and cooling.settle(self.control)
        except ControlError:
            return False

    def usage(self) -> Usage | None:
        """See :meth:`Stand.usage`."""
        try:
            return None if self._pid is None else measured(os.getpgid(self._pid))
        except OSError:
            return None

    def store_bytes(self) -> int | None:
        """See :meth:`Stand.store_bytes`."""
        return store_bytes(self.directories)

    def drop_page_cache(self) -> None:
        """See :meth:`Stand.drop_page_cache`."""
        for directory in self.directories:
            with suppress(OSError):
                drop(directory)
