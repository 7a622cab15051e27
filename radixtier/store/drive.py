"""One drive: its files, its transfers, its keeper and its health, wired together.

Owns them from construction to `close`. Slots are those of the drive, from 0, unless said otherwise. The scheduler's
thread calls everything here; no call but `join` waits for the device.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from radixtier.footprint import slot_bytes
from radixtier.identity import Stretch
from radixtier.io.frames import FrameBuffer
from radixtier.io.landing import LandingZone
from radixtier.store.board import Board
from radixtier.store.health import Health, Trouble
from radixtier.store.jobs import Flags, Ints, Sums, expand
from radixtier.store.journal import JournalError, Row
from radixtier.store.keeper import Finding, Keeper
from radixtier.store.ledger import Ledger
from radixtier.store.quarantine import Quarantine
from radixtier.store.slab import PATH_FLAG, StoreError
from radixtier.store.transfers import Transfers
from radixtier.store.volume import Volume

logger = logging.getLogger(__name__)


class Drive:
    """The drive whose first slot is ``base`` of the store.

    Attributes
    ----------
    rows : ndarray of int64, shape (rows, 2)
        First slot and pages of the rows of an earlier run.
    taken : ndarray of bool, shape (slots,)
        Slots that are not free at the start: those of ``rows``, and ``aside``.
    aside : ndarray of int64
        Slots that an earlier run quarantined.

    Raises
    ------
    StoreError
        When the journal cannot be read; the volume is then still open.
    """

    def __init__(
        self,
        volume: Volume,
        frames: FrameBuffer,
        board: Board,
        *,
        base: int,
        threads: int,
        pages_per_chunk: int,
        post: Callable[[Drive, Finding, Ints], None],
        figures: Callable[[], dict[str, float]],
        landing: LandingZone | None = None,
    ) -> None:
        self.volume = volume
        self.base = base
        self._journal_rows(volume)
        self.health = Health(volume.directory, lambda due: self.keeper.ring(due))
        self.ledger = Ledger(volume.plan.n_slots, self.rows)
        self._quarantine = Quarantine(slot_bytes(frames.page_bytes))
        self._quarantine.add(self.aside)
        self.transfers = Transfers(
            volume, frames, board, self.health, base=base, pages_per_chunk=pages_per_chunk, threads=threads,
            landing=landing,
        )  # fmt: skip
        self.keeper = Keeper(
            volume, self.transfers, self.health, self.ledger, self._quarantine,
            post=lambda finding, slots: post(self, finding, slots), figures=figures,
        )  # fmt: skip
        self._closed = False
        self._stuck = False
        """Whether it was said that a transfer does not end."""

    def _journal_rows(self, volume: Volume) -> None:
        self.rows: Ints = np.empty((0, 2), dtype=np.int64)
        self.taken: Flags = np.zeros(volume.plan.n_slots, dtype=np.bool_)
        aside: list[int] = []
        if volume.journal is not None:
            try:
                self.rows = volume.journal.extents()
                aside = _slots_of(volume.journal.status().get("quarantined_slots"))
            except JournalError as e:
                raise StoreError(f"{PATH_FLAG} {volume.directory}: {e}") from e
        self.taken[expand(self.rows)] = True
        self.aside = np.array([s for s in aside if 0 <= s < len(self.taken) and not self.taken[s]], dtype=np.int64)
        self.taken[self.aside] = True

    def start(self) -> None:
        """Start the threads."""
        self.transfers.start()
        self.keeper.start()

    @property
    def writable(self) -> bool:
        """Whether it takes new pages now."""
        return self.health.trouble is None and self.transfers.serving and not self._closed

    def look(self) -> None:
        """Find out whether the device hangs."""
        busy, hanging = self.keeper.busy_since, self.transfers.longest()
        if busy:
            hanging = max(hanging, time.monotonic() - busy)
        if self.health.hangs(hanging) and self.health.kind != "stalled":
            text = f"something has been going on in {self.volume.directory} for {hanging:.0f} s"
            self.health.fail(Trouble("stalled", text), override=True)
            self.transfers.abandon("the drive hangs")

    # Rows

    def record(self, stretch: Stretch, slots: Ints, checksums: Sums, used: float, weighted: Sums | None = None) -> None:
        """Have a row added for pages in these slots, which are consecutive."""
        weighted = None if weighted is None else weighted.copy()
        self.keeper.ring(self.ledger.add(Row(int(slots[0]), stretch, checksums.copy(), used, weighted)))

    def free(self, slots: Ints) -> Flags:
        """Have the rows of slots deleted; return which slots no row names, so that they are free already."""
        free, due = self.ledger.free(slots)
        self.keeper.ring(due)
        return free

    def touch(self, slots: Ints, used: float) -> None:
        """Note when the rows of these slots were used last, in Unix seconds."""
        self.keeper.ring(self.ledger.touch(slots, used))

    def hurry(self) -> None:
        """Delete rows soon: slots are short."""
        self.keeper.ring(self.ledger.hurry())

    def clear(self) -> threading.Event:
        """Have all rows deleted; return what is set when none can come back."""
        return self.keeper.clear()

    def quarantine(self, slots: Ints) -> None:
        """Have slots tested before they are free."""
        self._quarantine.add(slots)
        self.keeper.ring(time.monotonic())

    def renewed(self) -> None:
        """The scheduler knows that nothing is where it was: go on."""
        self.ledger.resume()
        self.transfers.resume()

    # End

    def close(self) -> None:
        """Cancel what waits, and have the threads end."""
        self.transfers.close()
        self.keeper.close()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the threads, then close the files; False if a thread is stuck."""
        end = time.monotonic() + timeout
        over = self.transfers.join(timeout)
        over &= self.keeper.join(max(0.0, end - time.monotonic()))
        if not over:
            if not self._stuck:
                logger.error(
                    "radixtier: a transfer on %s is stuck: it stays open until the process ends", self.volume.slab.path
                )
            self._stuck = True
        elif not self._closed:
            self.volume.close()
            self._closed = True
        return over


def _slots_of(noted: object) -> list[int]:
    """Return the slot numbers in a list that was read back from disk."""
    return [slot for slot in noted if isinstance(slot, int)] if isinstance(noted, list) else []
