"""Bringing back at a restart what the journals of all drives say.

Owns a thread that reads rows ahead of whoever puts them into the tree, over connections of its own. Invariants: every
slot it was given comes out exactly once, in a row of `take` or in `take_dropped`; a row comes out only after the row
in front of it, and only if its keys follow from its tokens all the way from the root; what waits is bounded in bytes.
`take`, `take_dropped`, `wait` and `cancel` belong to one thread and never raise.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from radixtier.identity import Space, Tokens
from radixtier.store.catalog import Catalog
from radixtier.store.journal_reader import JournalReader
from radixtier.store.known import known_rows, open_readers, slots_in
from radixtier.store.restore_walk import Stored, Walk
from radixtier.store.rows import Index, Ints

__all__ = ["Restorer", "Stored", "Warm"]

logger = logging.getLogger(__name__)

QUEUE_BYTES = 32 << 20
"""Of rows that wait to be taken."""

CACHE_BYTES = 64 << 20
"""Of paths that are kept for the rows behind them."""

WARM_ROWS, WARM_BYTES = 4096, 64 << 20
"""Of the paths that `Restorer.warmest` returns."""


class Warm(NamedTuple):
    """A path that was in use lately."""

    space: Space
    tokens: Tokens


class Restorer:
    """Reads the journals' rows in the order in which a tree can take them: parents first, hottest first.

    Parameters
    ----------
    paths : sequence of Path
        The journals, one per drive; each may be open for writing elsewhere in this process.
    bases : sequence of int
        Global number of each drive's first slot.
    extents : sequence of ndarray of int64, shape (rows, 2)
        `Journal.extents` of each drive: what the caller has taken out of the free slots. Rows that come to the
        journals later are none of the restorer's business.

    Attributes
    ----------
    rows_total, pages_total : int
        What the journals say there is.
    """

    def __init__(self, paths: Sequence[Path], bases: Sequence[int], extents: Sequence[Ints]) -> None:
        self.rows_total = sum(len(each) for each in extents)
        self.pages_total = int(sum(each[:, 1].sum() for each in extents))
        self._paths = list(paths)
        self._bases = list(bases)
        self._extents = list(extents)
        self._left = [slots_in(each) for each in extents]
        self._cancelled = False
        self._change = threading.Condition()  # guards what follows
        self._ready: deque[Stored] = deque()
        self._ready_bytes = 0
        self._dropped: list[Ints] = []
        self._warm: list[Warm] = []
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="radixtier-restore", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether nothing comes any more."""
        with self._change:
            return self._ended and not self._ready

    @property
    def warmest(self) -> list[Warm]:
        """Once `done`, the paths to the rows in use last, hottest first.

        Rows come hottest first, which leaves a tree with them as its oldest: touching these from the end sets it right.
        At most `WARM_ROWS` paths of together `WARM_BYTES`.
        """
        with self._change:
            return list(self._warm)

    def take(self, most: int) -> list[Stored]:
        """Return up to ``most`` rows that are ready; never blocks."""
        with self._change:
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._ready_bytes -= sum(map(_nbytes, taken))
            self._change.notify_all()
        return taken

    def take_dropped(self) -> list[Ints]:
        """Return global slots that nothing can be made of; they come when all else has been read, or after `cancel`."""
        with self._change:
            dropped, self._dropped = self._dropped, []
        return dropped

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until something can be taken or it is `done`; return whether."""
        with self._change:
            return self._change.wait_for(lambda: bool(self._ready) or self._ended, timeout)

    def cancel(self) -> None:
        """Stop, and let all that has not been taken come out of `take_dropped`, the last of it when it is `done`."""
        with self._change:
            self._cancelled = True
            self._dropped += [stored.slots for stored in self._ready]
            self._ready.clear()
            self._ready_bytes = 0
            self._change.notify_all()

    # The thread

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                self._restore(open_readers(self._paths, stack))
        except Exception:  # whatever is wrong with the journals, the server goes on with what it has
            logger.exception("radixtier: the journals cannot be read to the end: the rest of the store starts empty")
        dropped = [base + np.flatnonzero(left) for base, left in zip(self._bases, self._left, strict=True)]
        with self._change:
            self._dropped += [slots for slots in dropped if len(slots)]
            self._ended = True
            self._change.notify_all()

    def _restore(self, readers: list[JournalReader | None]) -> None:
        indexes: list[Index] = []
        for reader, extents in zip(readers, self._extents, strict=True):
            if self._cancelled:
                return
            indexes.append(known_rows(reader, extents))
        catalog = Catalog(indexes)
        page_tokens = next((reader.page_tokens for reader in readers if reader), 1)
        warm_bytes = 0
        for number, stored in Walk(catalog, readers, self._bases, page_tokens, CACHE_BYTES):
            if not self._offer(stored):
                return
            drive = catalog.drive[number]
            self._left[drive][stored.slots - self._bases[drive]] = False
            if catalog.tip[number] and len(self._warm) < WARM_ROWS and warm_bytes < WARM_BYTES:
                tokens = np.concatenate([stored.path, stored.stretch.tokens.reshape(-1)])
                warm_bytes += tokens.nbytes
                self._warm.append(Warm(stored.stretch.space, tokens))

    def _offer(self, stored: Stored) -> bool:
        """Put a row into the queue once there is room; False when nobody wants it any more."""
        with self._change:
            self._change.wait_for(lambda: self._cancelled or self._ready_bytes < QUEUE_BYTES)
            if not self._cancelled:
                self._ready.append(stored)
                self._ready_bytes += _nbytes(stored)
                self._change.notify_all()
            return not self._cancelled


def _nbytes(stored: Stored) -> int:
    stretch = stored.stretch
    each = 16 if stored.weighted is None else 24
    return stored.path.nbytes + stretch.tokens.nbytes + stretch.keys.nbytes + each * len(stretch)
