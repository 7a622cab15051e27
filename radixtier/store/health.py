"""Whether a drive takes new pages, and if not, why and since when.

Owns that verdict and the time of the next attempt to bring the drive back. Law: the first attempt comes after
`FIRST_PROBE_S`, each further one after twice the time, at most `LAST_PROBE_S`; a drive that fails again within
`SETTLED_S` of coming back goes on from where it was. Any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

logger = logging.getLogger(__name__)

FIRST_PROBE_S = 1.0
LAST_PROBE_S = 60.0
SETTLED_S = 60.0

STALL_S = 10.0
"""Seconds after which a transfer that has not ended means that the drive hangs."""

Kind = Literal["io", "stalled", "vanished", "journal", "space"]

ADVICE: dict[Kind, str] = {
    "io": "look for errors of the device in the kernel's log",
    "stalled": "the device or its network hangs: look at the kernel's log",
    "vanished": "bring the directory back; an empty one will do",
    "journal": "look for errors of the device in the kernel's log, and at the free space of its file system",
    "space": "make room on the file system",
}
"""What the operator can do about it."""


class Trouble(NamedTuple):
    """What is wrong with a drive."""

    kind: Kind
    text: str


class DriveHealth(NamedTuple):
    """State of one drive, for figures and for the operator."""

    directory: Path
    writable: bool
    reason: str | None
    """Why it takes no new pages."""
    since: float
    """When that began, in Unix seconds; 0.0 while it is well."""
    free_slots: int
    used_slots: int
    quarantined: int
    largest_extent: int
    """Slots of the largest free extent."""
    free_extents: int
    engine: str
    """Name of the engine that moves its bytes."""
    kind: Kind | None = None
    """What kind of trouble it has."""


class Health:
    """The verdict on one drive; ``alarm`` is called with the time (monotonic) of the next probe when it changes."""

    def __init__(self, directory: Path, alarm: Callable[[float], None]) -> None:
        self._directory = directory
        self._alarm = alarm
        self._lock = threading.Lock()
        self.trouble: Trouble | None = None
        self.since = 0.0
        self.next_probe = 0.0
        self._delay = 0.0
        self._back_at = -SETTLED_S

    @property
    def kind(self) -> Kind | None:
        """What kind of trouble there is."""
        trouble = self.trouble
        return None if trouble is None else trouble.kind

    def hangs(self, seconds: float) -> bool:
        """Whether something that takes so long means that the drive hangs."""
        return seconds > STALL_S

    def fail(self, trouble: Trouble, *, override: bool = False) -> None:
        """Report trouble; while there is some already, other trouble counts only with ``override``."""
        with self._lock:
            known = self.trouble
            if known is not None and (not override or known.kind == trouble.kind):
                return
            now = time.monotonic()
            if known is None:
                self.since = time.time()
                again = now - self._back_at < SETTLED_S
                self._delay = min(LAST_PROBE_S, max(FIRST_PROBE_S, 2 * self._delay if again else 0.0))
                self.next_probe = now + self._delay
            self.trouble = trouble
        self._log(trouble)
        self._alarm(self.next_probe)

    def probed(self, trouble: Trouble | None) -> None:
        """Report what an attempt to bring the drive back showed; None brings it back."""
        with self._lock:
            known, now = self.trouble, time.monotonic()
            self.trouble = trouble
            if trouble is None:
                self._back_at = now
                lasted, self.since = time.time() - self.since, 0.0
            else:
                self._delay = min(LAST_PROBE_S, 2 * self._delay)
                self.next_probe = now + self._delay
        if trouble is None:
            self._log_back(lasted)
        elif known is None or known.kind != trouble.kind:
            self._log(trouble)

    def _log_back(self, seconds: float) -> None:
        logger.info("radixtier: %s works again after %.0f s and takes new pages", self._directory, seconds)

    def _log(self, trouble: Trouble) -> None:
        logger.warning(
            "radixtier: %s takes no new pages: %s. It is tried again every now and then; %s",
            self._directory, trouble.text, ADVICE[trouble.kind],
        )  # fmt: skip
