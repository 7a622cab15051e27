"""Draining NVMe at the request of the operator: who has files below the directories, and in which order they let go.

Owns the drain of one cache. The store's files are closed by :class:`~radixtier.mover.draining.Drain`; besides, the
journals may still be read for what an earlier run stored, and the control endpoint's own socket keeps a file system
from being unmounted. Scheduler thread only.
"""

from __future__ import annotations

from typing import Any

from radixtier.control import Refusal
from radixtier.mover.draining import DRAINED, Drain
from radixtier.sglang.control import device_of


class Draining:
    """The drain of ``cache``, from :meth:`start` on."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._drain: Drain | None = None
        self._restoration: Any = None
        store = cache.mover.store
        self._directories = [] if store is None else [str(drive.directory) for drive in store.health()]
        # Asked for now, since a drive that hangs would not answer later.
        self._devices = {device for each in self._directories if (device := device_of(each)) is not None}

    @property
    def status(self) -> str | None:
        """``draining`` or ``drained``, None before."""
        return None if self._drain is None else self._drain.status

    def start(self, timeout: float) -> dict[str, Any]:
        """Begin, with ``timeout`` seconds for what is to be written, and tell how far it is; repeatable.

        Raises
        ------
        Refusal
            Where there is nothing to drain.
        """
        cache = self._cache
        control = cache.control
        if not self._directories:
            raise Refusal(409, "this server has no NVMe tier; nothing of it is open on a drive")
        if self._drain is None:
            # What is not back yet stays on record.
            self._restoration = cache._restoration
            if self._restoration is not None:
                self._restoration.abandon()
            if control is not None:
                control.prepare_to_move(self._devices)
            closed = (lambda: None) if control is None else control.move
            self._drain = Drain(cache.mover, ready=self._reading, closed=closed)
        self._drain.start(timeout)
        return self._to_json()

    def _reading(self) -> str | None:
        if self._restoration is None or not self._restoration.reading:
            return None
        return "the journals are still being read"

    def step(self) -> None:
        """Go on as far as that is possible now."""
        if self._drain is not None:
            self._drain.step()

    def _to_json(self) -> dict[str, Any]:
        drain, control = self._drain, self._cache.control
        assert drain is not None
        address = None if control is None else control.address_later
        return {
            "status": drain.status,
            "unwritten_pages": drain.unwritten,
            "directories": self._directories,
            "reason": None if drain.status == DRAINED else drain.reason,
            "control": None if address is None else str(address),
        }
