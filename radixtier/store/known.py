"""The journals of a store as they were when it was opened, for whoever brings pages back.

Owns nothing. Invariant: rows that came to a journal later are left out. Any thread, its own readers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from radixtier.store.jobs import expand
from radixtier.store.journal_reader import JournalReader
from radixtier.store.rows import Index, Ints, JournalError, no_rows

logger = logging.getLogger(__name__)

_NOT_BACK = "radixtier: %s: the pages of this drive are not brought back"


def open_readers(paths: Sequence[Path], stack: contextlib.ExitStack) -> list[JournalReader | None]:
    """Open journals for reading, until the stack is left; None in the place of one that cannot be read."""
    return [_open(path, stack) for path in paths]


def _open(path: Path, stack: contextlib.ExitStack) -> JournalReader | None:
    try:
        return stack.enter_context(contextlib.closing(JournalReader.open_readonly(path)))
    except JournalError as e:
        logger.warning(_NOT_BACK, e)
        return None


def known_rows(reader: JournalReader | None, extents: Ints) -> Index:
    """Return the rows of a journal that are among ``extents``, ``[rows, 2]`` in slot order; none where it fails."""
    try:
        index = reader.index() if reader else no_rows()
    except JournalError as e:
        logger.warning(_NOT_BACK, e)
        return no_rows()
    if not len(extents):
        return no_rows()
    at = np.minimum(np.searchsorted(extents[:, 0], index.slot), len(extents) - 1)
    return index.select((extents[at, 0] == index.slot) & (extents[at, 1] == index.pages))


def slots_in(extents: Ints) -> npt.NDArray[np.bool_]:
    """Return which slots the extents have, as flags up to the last one."""
    flags = np.zeros(int(extents.sum(axis=1).max(initial=0)), dtype=np.bool_)
    flags[expand(extents)] = True
    return flags
