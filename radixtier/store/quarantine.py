"""Slots that are not handed out until a test has shown that they hold what is written to them.

Owns the quarantined slots of one drive and the times of their tests. Law: a slot is tested as soon as the drive is
well, and when it fails, again every `RETRY_S`. `add` and ``len`` may be called from any thread, all else by the keeper.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from itertools import chain, islice

import numpy as np

from radixtier.footprint import HEADER_BYTES
from radixtier.io.engine import Engine, transfer
from radixtier.io.frames import aligned_memory
from radixtier.store.jobs import Ints

logger = logging.getLogger(__name__)

RETRY_S = 600.0

TESTS_AT_ONCE = 16
"""Slots tested before the keeper looks after other things."""


class Quarantine:
    """Slots of one drive, from 0, of ``slot_bytes`` bytes."""

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._new: dict[int, None] = {}
        self._due: dict[int, float] = {}  # those that failed, in the order of their next tests

    def __len__(self) -> int:
        return len(self._new) + len(self._due)

    @property
    def slots(self) -> list[int]:
        """The quarantined slots."""
        with self._lock:
            return sorted([*self._new, *self._due])

    def add(self, slots: Ints) -> None:
        """Quarantine slots, to be tested at once."""
        with self._lock:
            self._new.update(dict.fromkeys(slots.tolist()))

    def due(self, now: float) -> list[int]:
        """Return the slots whose test is due, at most `TESTS_AT_ONCE`."""
        with self._lock:
            again = (slot for slot, at in self._due.items() if at <= now)
            return list(islice(chain(self._new, again), TESTS_AT_ONCE))

    def test(self, engine: Engine, slots: list[int]) -> Ints:
        """Test slots; return those that work and are quarantined no longer."""
        good: list[int] = []
        for slot in slots:
            try:
                good += [slot] if self._works(engine, slot) else []
            except Exception:  # engines are libraries of others
                logger.exception("radixtier: a test of slot %d failed", slot)
        with self._lock:
            for slot in slots:
                self._new.pop(slot, None)
                self._due.pop(slot, None)
                if slot not in good:
                    self._due[slot] = time.monotonic() + RETRY_S
        return np.array(good, dtype=np.int64)

    def _works(self, engine: Engine, slot: int) -> bool:
        """Write a pattern and its complement, so that every bit is both, and read them back."""
        offset = HEADER_BYTES + slot * self._slot_bytes
        out, back = aligned_memory(self._slot_bytes), aligned_memory(self._slot_bytes)
        pattern = np.frombuffer(random.Random(slot).randbytes(self._slot_bytes), dtype=np.uint8)
        for image in (pattern, ~pattern):
            np.frombuffer(out, dtype=np.uint8)[:] = image
            if transfer(engine.writev, [out], offset).error or transfer(engine.readv, [back], offset).error:
                return False
            if not np.array_equal(np.frombuffer(back, dtype=np.uint8), image):
                return False
        return True

    def empty(self) -> Ints:
        """Forget all slots, since the drive is a new one, and return them."""
        with self._lock:
            slots, self._new, self._due = [*self._new, *self._due], {}, {}
        return np.array(slots, dtype=np.int64)
