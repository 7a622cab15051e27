"""Whether every page that a store has on record is there, byte for byte.

Owns one open slab per drive while it is read. Invariants: nothing is called bad that a row does not name both before
and after it was read, so a server may go on meanwhile; nothing is written. Main thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from radixtier.footprint import BLOCK, HEADER_BYTES
from radixtier.identity import checksum_seed
from radixtier.io.frames import aligned_memory
from radixtier.store.checksum import page_checksum
from radixtier.store.header import Header
from radixtier.store.journal import JournalReader, Row
from radixtier.store.rows import Ints
from radixtier.store.store import IO_BYTES

ROWS_AT_A_TIME = 64


class Bad(NamedTuple):
    """Pages that a restart must not bring back: ``pages`` slots from ``slot`` on."""

    slot: int
    pages: int
    why: str


class Verdict(NamedTuple):
    """Pages that were read, and what is bad."""

    pages: int
    bad: list[Bad]


def verify(slab: Path, header: Header, journal: JournalReader, progress: Callable[[int], None]) -> Verdict:
    """Read every page that the journal names, and compare its checksum.

    Parameters
    ----------
    slab, header, journal
        Of one drive.
    progress : Callable
        Called with the number of pages read so far.

    Raises
    ------
    JournalError, OSError
        When the journal cannot be read, or the slab not be opened.
    """
    seen = 0
    bad: list[Bad] = []
    starts = journal.extents()[:, 0]
    with Pages(slab, header) as pages:
        for at in range(0, len(starts), ROWS_AT_A_TIME):
            wanted = starts[at : at + ROWS_AT_A_TIME].tolist()
            rows = journal.rows(wanted)
            suspects = [fault for row in rows for fault in _faults(row, pages)]
            damaged = sorted(set(wanted) - {row.slot for row in rows if row.stretch.intact()})
            if suspects or damaged:
                bad += _confirmed(journal, suspects, damaged)
            seen += sum(len(row.stretch) for row in rows)
            progress(seen)
    return Verdict(seen, bad)


class _Fault(NamedTuple):
    slot: int
    key: bytes
    checksum: int
    why: str


def _faults(row: Row, pages: Pages) -> Iterator[_Fault]:
    """Read the pages of a row; yield those that are not what the row says."""
    keys = row.stretch.keys
    seeds = [checksum_seed(key) for key in keys]
    for i, found in enumerate(pages.checksums(row.slot, seeds)):
        expected = int(row.checksums[i])
        if found != expected:
            why = found if isinstance(found, str) else "its bytes have another checksum"
            yield _Fault(row.slot + i, keys[i].tobytes(), expected, why)


def _confirmed(journal: JournalReader, suspects: Sequence[_Fault], damaged: Sequence[int]) -> Iterator[Bad]:
    """Look at the rows again: what they name no more was reused, not damaged."""
    extents = journal.extents()
    for fault in suspects:
        at = int(np.searchsorted(extents[:, 0], fault.slot, side="right")) - 1
        for row in journal.rows([int(extents[at, 0])]) if at >= 0 else []:
            i = fault.slot - row.slot
            named = i < len(row.stretch) and row.stretch.keys[i].tobytes() == fault.key
            if named and int(row.checksums[i]) == fault.checksum:
                yield Bad(fault.slot, 1, fault.why)
    for slot in damaged:
        there = _pages_at(extents, slot)
        if there and not any(row.stretch.intact() for row in journal.rows([slot])):
            yield Bad(slot, there, "its row in the journal is damaged")


def _pages_at(extents: Ints, slot: int) -> int:
    found = extents[extents[:, 0] == slot, 1]
    return int(found[0]) if len(found) else 0


class Pages:
    """A slab, open for reading past the page cache where that is possible."""

    def __init__(self, slab: Path, header: Header) -> None:
        self._header = header
        self._per_read = max(1, IO_BYTES // header.slot_bytes)
        self._memory = aligned_memory(self._per_read * header.slot_bytes)
        self._fd = _open(slab)

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def checksums(self, slot: int, seeds: Sequence[int]) -> Iterator[int | str]:
        """Yield the checksum of each page from ``slot`` on, or why it cannot be read."""
        for lo in range(0, len(seeds), self._per_read):
            some = seeds[lo : lo + self._per_read]
            try:
                yield from self._read(slot + lo, some)
            except OSError:  # one page at a time then: most of them may be readable
                for i, seed in enumerate(some, slot + lo):
                    try:
                        yield from self._read(i, [seed])
                    except OSError as error:
                        yield f"it cannot be read: {error.strerror or error}"

    def _read(self, slot: int, seeds: Sequence[int]) -> list[int]:
        size, step = self._header.page_bytes, self._header.slot_bytes
        memory = self._memory[: len(seeds) * step]
        if os.preadv(self._fd, [memory], HEADER_BYTES + slot * step) < len(memory):
            raise OSError(errno.EIO, "the slab ends before it")
        return [page_checksum([memory[i * step : i * step + size]], seed) for i, seed in enumerate(seeds)]


def _open(slab: Path) -> int:
    """Open for direct reading if a first read goes through, since `open` alone proves nothing."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(slab, flags | os.O_DIRECT)
        try:
            os.preadv(fd, [aligned_memory(BLOCK)], 0)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(slab, flags)
    return fd
