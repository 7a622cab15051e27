"""Stores as they lie on disk, looked at from outside the server that uses them, or after it.

Owns open journals from `opened` to its end. Invariant: nothing is written, but what SQLite itself needs beside a
database that is read; a server may go on meanwhile. Main thread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixtier.footprint import HEADER_BYTES
from radixtier.store.header import Header, HeaderError, read_header
from radixtier.store.journal import JournalError, JournalReader
from radixtier.store.paths import VOLATILE, StoreFiles, find_stores
from radixtier.store.slab import StoreError
from radixtier.tools.holders import check_place

StoreKey = tuple[int, str]
"""Rank, and what stands for the identity: the drives of one store share both."""


@dataclass
class OfflineDrive:
    """One directory's part of a store.

    Attributes
    ----------
    files : StoreFiles
        Where it lies.
    header : Header or None
        None when it cannot be read.
    journal : JournalReader or None
        None when there is none that belongs to the slab.
    trouble : str or None
        Why one of them is missing: a server starts with an empty store then.
    n_slots : int
        Slots of the slab.
    """

    files: StoreFiles
    header: Header | None = None
    journal: JournalReader | None = None
    trouble: str | None = None
    n_slots: int = 0

    @property
    def directory(self) -> Path:
        """The directory."""
        return self.files.directory

    @property
    def key(self) -> StoreKey:
        """Which store it is part of."""
        return self.files.rank, self.files.id

    @property
    def identity(self) -> dict[str, Any]:
        """What its pages are valid for, field by field; empty when nothing says so."""
        return identity_fields(self.header) if self.header else {}


def identity_fields(header: Header) -> dict[str, Any]:
    """Return the identity in a header, field by field, whichever release wrote it."""
    try:
        found = json.loads(header.identity)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def opened(directories: Sequence[Path]) -> Iterator[list[OfflineDrive]]:
    """Open everything of every store in the directories for reading.

    Raises
    ------
    StoreError
        When a directory cannot be looked into, or holds no store.
    """
    with contextlib.ExitStack() as stack:
        drives: list[OfflineDrive] = []
        for directory in directories:
            check_place(directory)
            found = find_stores(directory)
            if not found:
                raise StoreError(f"{directory} holds no store: name a directory of --radix-tier-nvme-path")
            for files in found:
                drives.append(_open(files))
                if (journal := drives[-1].journal) is not None:
                    stack.callback(journal.close)
        yield drives


def grouped(drives: Sequence[OfflineDrive]) -> dict[StoreKey, list[OfflineDrive]]:
    """Return the drives by store."""
    groups: dict[StoreKey, list[OfflineDrive]] = {}
    for drive in drives:
        groups.setdefault(drive.key, []).append(drive)
    return groups


def _open(files: StoreFiles) -> OfflineDrive:
    drive = OfflineDrive(files)
    try:
        drive.header = read_header(files.slab)
        drive.n_slots = max(0, files.slab.stat().st_size - HEADER_BYTES) // drive.header.slot_bytes
        if files.id != VOLATILE:
            drive.journal = JournalReader.open_readonly(files.db)
    except FileNotFoundError:
        drive.trouble = "its slab is missing"
    except HeaderError as error:
        drive.trouble = f"its slab {error}"
    except (OSError, JournalError) as error:
        drive.trouble = str(error)
    if drive.header and drive.journal and drive.journal.store_id != drive.header.store_id:
        drive.journal.close()
        drive.journal, drive.trouble = None, "its journal belongs to another slab"
    return drive
