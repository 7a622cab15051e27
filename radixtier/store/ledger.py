"""What the journal of one drive says about its slots, and what it has yet to be told.

Owns the rows that wait to be added, the slots whose rows wait to be deleted, and the touches. Invariant: a slot is
either known to be named by no row and by none that waits, or `free` withholds it until the deletion is committed. Slots
are those of the drive, from 0. Any thread; nothing here does I/O.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from radixtier.store.jobs import Flags, Ints, cut, expand
from radixtier.store.journal import Batch, Row

COMMIT_S = 0.5
"""Seconds that a new row or a deletion waits for others at most."""

HURRY_S = 0.05
"""The same for deletions while slots are short."""

TOUCH_S = 5.0
"""The same for touches: they may be lost."""

MAX_BYTES = 16 << 20
MAX_ROWS = 8192
MAX_TOUCHES = 65536
"""Bounds of what waits; rows and touches beyond them are dropped, and rows are counted."""

ROWS_PER_BATCH = 1024

NUMBERS = (1 << 31) - 1
"""Numbers of waiting rows; far more than can wait."""

NONE = -1


class Work(NamedTuple):
    """A batch for the journal, and the slots that are free once it is committed."""

    batch: Batch
    freed: Ints


class Ledger:
    """Accounts of ``n_slots`` slots.

    Attributes
    ----------
    due : float
        When something has to be committed, on the monotonic clock; infinite when nothing has.
    dropped : int
        Pages that will not be found after a restart, because the journal could not be told in time.
    """

    def __init__(self, n_slots: int, rows: Ints) -> None:
        self._lock = threading.Lock()
        # First slot of the row that may name a slot: two slots of one row are touched once.
        self._row = np.full(n_slots, NONE, dtype=np.int32)
        self._row[expand(rows)] = np.repeat(rows[:, 0], rows[:, 1])
        self._waiting = np.zeros(n_slots, dtype=np.int32)  # number of the waiting row that names it; 0 for none
        self._adds: deque[tuple[int, Row, float]] = deque()  # with its number, and when it came
        self._taken_since = math.inf  # when the oldest row of the batch came that is being committed
        self._bytes = 0
        self._numbered = 0
        self._cut = False  # a slot of a waiting row was freed
        self._frees: list[Ints] = []
        self._touches: dict[int, float] = {}
        self._open = True
        self.due = math.inf
        self.dropped = 0

    def add(self, row: Row) -> float:
        """Let a row wait, or drop it when too many do; return `due`."""
        pages, nbytes = len(row.stretch), _nbytes(row)
        with self._lock:
            if not self._open or len(self._adds) >= MAX_ROWS or self._bytes + nbytes > MAX_BYTES:
                self.dropped += pages
                return self.due
            self._numbered = self._numbered % NUMBERS + 1
            self._adds.append((self._numbered, row, time.monotonic()))
            self._bytes += nbytes
            self._waiting[row.slot : row.slot + pages] = self._numbered
            return self._within(COMMIT_S)

    def free(self, slots: Ints) -> tuple[Flags, float]:
        """Let the rows of slots go; return which slots no row names, and `due`."""
        with self._lock:
            self._cut |= bool(self._waiting[slots].any())
            self._waiting[slots] = 0
            clear: Flags = self._row[slots] == NONE
            if clear.all():
                return clear, self.due
            self._frees.append(slots[~clear])
            return clear, self._within(COMMIT_S)

    def touch(self, slots: Ints, used: float) -> float:
        """Let the rows that hold these slots be used at ``used`` (Unix seconds); return `due`."""
        with self._lock:
            rows = self._row[slots]
            # One slot of each row; where slots in between are missing the row may have been split.
            new = np.flatnonzero((np.diff(rows, prepend=NONE) != 0) | (np.diff(slots, prepend=NONE) != 1))
            for slot in slots[new][rows[new] != NONE].tolist():
                if slot in self._touches or len(self._touches) < MAX_TOUCHES:
                    self._touches[slot] = used
            return self._within(TOUCH_S) if self._touches else self.due

    def hurry(self) -> float:
        """Slots are short: delete rows soon; return `due`."""
        with self._lock:
            return self._within(HURRY_S) if self._frees else self.due

    def _within(self, seconds: float) -> float:
        self.due = min(self.due, time.monotonic() + seconds)
        return self.due

    def take(self) -> Work | None:
        """Take the next batch; from now on a row may name its slots. None when nothing waits."""
        with self._lock:
            self._taken_since = self._adds[0][2] if self._adds else math.inf
            adds = [row for _ in range(min(len(self._adds), ROWS_PER_BATCH)) for row in self._pop()]
            freed = np.sort(np.concatenate(self._frees)) if self._frees else np.empty(0, dtype=np.int64)
            touches, self._touches, self._frees = list(self._touches.items()), {}, []
            self.due = time.monotonic() if self._adds else math.inf
            self._cut &= bool(self._adds)
        if not adds and not touches and not len(freed):
            return None
        frees = [(int(freed[lo]), hi - lo) for lo, hi in cut(freed, max(1, len(freed)))]
        return Work(Batch(adds, frees, touches), freed)

    def _pop(self) -> list[Row]:
        """Take the oldest waiting row, without the slots that were freed meanwhile."""
        number, row, _ = self._adds.popleft()
        self._bytes -= _nbytes(row)
        slots = np.arange(row.slot, row.slot + len(row.stretch))
        if self._cut:
            slots = slots[self._waiting[slots] == number]
        rows: list[Row] = []
        for lo, hi in cut(slots, max(1, len(slots))):
            first, end = int(slots[lo]), int(slots[hi - 1]) + 1
            at, to = first - row.slot, end - row.slot
            rows.append(row.part(at, to))
            self._row[first:end] = first
            self._waiting[first:end] = 0
        return rows

    def committed(self, freed: Ints) -> None:
        """Note that the batch taken last is durable: no row names these slots any more."""
        with self._lock:
            self._taken_since = math.inf
            self._row[freed] = NONE

    def drop(self, batch: Batch) -> None:
        """Give up adding the rows of a batch."""
        with self._lock:
            self.dropped += sum(len(row.stretch) for row in batch.adds)
        batch.adds = []

    def failed(self, work: Work, retry: float) -> None:
        """Note that a batch was not committed, or not all of it: drop its rows, delete others in ``retry`` seconds."""
        self.drop(work.batch)
        with self._lock:
            self._taken_since = math.inf
            if len(work.freed):
                self._frees.insert(0, work.freed)
                self._within(retry)

    def forget(self) -> None:
        """Drop all rows that wait to be added, and the touches."""
        with self._lock:
            self._adds.clear()
            self._touches = {}
            self._bytes = 0
            self._waiting[:] = 0

    def emptied(self) -> Ints:
        """Note that the journal has no rows; return the slots that are free now."""
        with self._lock:
            self._row[:] = NONE
            freed, self._frees = self._frees, []
        return np.concatenate(freed) if freed else np.empty(0, dtype=np.int64)

    def suspend(self) -> None:
        """Take no more rows until `resume`: the slab is about to be replaced."""
        with self._lock:
            self._open = False
        self.forget()

    def resume(self) -> None:
        """Take rows again."""
        with self._lock:
            self._open = True

    @property
    def waiting(self) -> int:
        """Rows that wait to be added."""
        return len(self._adds)

    def lag(self) -> float:
        """Return for how many seconds the oldest row has been waiting that is not durable yet; 0.0 without one."""
        with self._lock:
            oldest = min(self._taken_since, self._adds[0][2] if self._adds else math.inf)
        return max(0.0, time.monotonic() - oldest) if oldest < math.inf else 0.0


def _nbytes(row: Row) -> int:
    stretch = row.stretch
    weighted = 0 if row.weighted is None else row.weighted.nbytes
    return int(stretch.tokens.nbytes + stretch.keys.nbytes + row.checksums.nbytes + weighted)
