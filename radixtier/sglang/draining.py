"""Draining NVMe at the request of the operator: who has files below the directories, and in which order they let go.

Owns the drain of one cache. The store's files are closed by :class:`~radixtier.mover.draining.Drain`; besides, the
journals may still be read for what an earlier run stored, and the control endpoint's own socket keeps a file system
from being unmounted, as does a recording of the load that lies there. Scheduler thread only.
"""

from __future__ import annotations

from typing import Any

from radixtier.control import Refusal
from radixtier.mover.draining import Drain
from radixtier.sglang.control import device_of


class Draining:
    """The drain of ``cache``, from :meth:`start` on.

    Attributes
    ----------
    devices : frozenset of int
        The file systems of the directories.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._drain: Drain | None = None
        self._restoration: Any = None
        store = cache.mover.store
        self._directories = [] if store is None else [str(drive.directory) for drive in store.health()]
        # Asked for now, since a drive that hangs would not answer later.
        found = map(device_of, self._directories)
        self.devices = frozenset(device for device in found if device is not None)

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
        if self._cache.ranks.size > 1:
            raise Refusal(409, "a server of several ranks cannot be drained while it runs; stop it instead")
        if not self._directories:
            raise Refusal(409, "this server has no NVMe tier; nothing of it is open on a drive")
        if self._drain is not None:
            self._drain.start(timeout)
            return self._to_json()
        cache = self._cache
        if cache.control is not None:
            cache.control.prepare_to_move()
        drain = Drain(cache.mover, ready=self._reading, closed=self._closed)
        drain.start(timeout)
        self._drain, self._restoration = drain, cache._restoration
        if self._restoration is not None:
            # What is not back yet stays on record.
            self._restoration.abandon()
        return self._to_json()

    def _reading(self) -> str | None:
        if self._restoration is None or not self._restoration.reading:
            return None
        return "the journals are still being read"

    def _closed(self) -> str | None:
        """Give up what else is there, and tell what stays; on the thread of the drain."""
        control, recording = self._cache.control, self._cache.recording
        left = [] if control is None else [control.move()]
        if recording is not None and not recording.over and device_of(str(recording.file.parent)) in self.devices:
            left.append(f"the recording of the load, {recording.file}")
        return " and ".join(what for what in left if what is not None) or None

    def step(self, seconds: float) -> None:
        """Go on as far as that is possible now, for about so long."""
        if self._drain is not None:
            self._drain.step(seconds)

    def _to_json(self) -> dict[str, Any]:
        drain, control = self._drain, self._cache.control
        assert drain is not None
        address = None if control is None else control.address_later
        return {
            "status": drain.status,
            "unwritten_pages": drain.unwritten,
            "directories": self._directories,
            "reason": drain.reason,
            "control": None if address is None else str(address),
        }
