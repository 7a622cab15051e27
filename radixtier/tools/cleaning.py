"""Mending and removing what a store keeps on disk.

Owns nothing between calls. Invariant: every change is made with the locks of all ranks held (`alone`), and only to
files of ours; a page goes from the record before its slot can be given to another. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from radixtier.footprint import database_bytes, log_bytes
from radixtier.store import journal_files
from radixtier.store.header import Header, HeaderError, read_header
from radixtier.store.journal import Batch, Journal
from radixtier.store.journal_reader import JournalReader
from radixtier.store.paths import OLD_LOCK, VOLATILE, StoreFiles, find_stores, old_slabs
from radixtier.store.slab import StoreError, open_own, remove_own, take_lock, unlock
from radixtier.tools.leftovers import find_leftovers, remove_leftover
from radixtier.tools.offline import OfflineDrive, identity_fields, opened
from radixtier.tools.verification import Bad, verify

MOST_ASIDE = 4096
"""Slots that a journal notes as quarantined."""

VACUUM_PAGES = 32
"""Pages of a database that are given back at a time, so that its log stays within its cap."""


class Scrubbed(NamedTuple):
    """What became of a journal."""

    pages: int
    """Pages that were read."""
    bad: list[Bad]
    """What was bad, and is off the record."""
    dropped: int
    """Damaged rows that could not even be read."""
    replaced: str | None
    """Why the whole journal had to be made anew."""


def scrub(drive: OfflineDrive, progress: Callable[[int], None]) -> Scrubbed:
    """Verify one drive and take what is bad off the record; a server tests these slots before it uses them.

    Raises
    ------
    StoreError
        When the drive has no journal that belongs to its slab.
    JournalError, OSError
        When it cannot be read or written.
    """
    header, reader = _readable(drive)
    # Before the journal is opened for writing, which drops what it cannot use without a word about each.
    verdict = verify(drive.files.slab, header, reader, progress)
    journal = _for_writing(drive, header)
    try:
        if verdict.bad:
            journal.apply(Batch(frees=[(bad.slot, bad.pages) for bad in verdict.bad]))
            _set_aside(journal, verdict.bad)
        return Scrubbed(verdict.pages, verdict.bad, journal.dropped, journal.replaced)
    finally:
        journal.close()


def _readable(drive: OfflineDrive) -> tuple[Header, JournalReader]:
    if drive.header is None or drive.journal is None:
        why = drive.trouble or "nothing in it outlives its server"
        fix = "a server starts with an empty store there, radixtier store clear removes it"
        raise StoreError(f"{drive.directory}: store {drive.files.id}: {why}: {fix}")
    return drive.header, drive.journal


def _for_writing(drive: OfflineDrive, header: Header) -> Journal:
    """Open the journal of a drive for writing, instead of for reading."""
    if drive.journal is not None:
        drive.journal.close()
    tokens = header.page_tokens
    return Journal.open(
        drive.files.db,
        store_id=header.store_id,
        n_slots=drive.n_slots,
        page_tokens=tokens,
        max_bytes=database_bytes(drive.n_slots, tokens),
        log_bytes=log_bytes(drive.n_slots, tokens),
    )


def _set_aside(journal: Journal, bad: Sequence[Bad]) -> None:
    status = journal.status()
    noted = status.get("quarantined_slots")
    slots = {slot for slot in noted if isinstance(slot, int)} if isinstance(noted, list) else set()
    for each in bad:
        slots.update(range(each.slot, each.slot + each.pages))
    aside = sorted(slots)[:MOST_ASIDE]
    journal.set_status({**status, "quarantined": len(aside), "quarantined_slots": aside})


class Collected(NamedTuple):
    """What `gc` removed: files and directories, and the bytes of stores among them."""

    removed: list[Path]
    nbytes: int


def gc(directories: Sequence[Path]) -> Collected:
    """Remove what no server will use again, and give back what the databases do not need.

    Raises
    ------
    StoreError, JournalError, OSError
        When something cannot be removed or written.
    """
    removed, nbytes = [], 0
    for directory in directories:
        for files in unused(directory):
            nbytes += files.nbytes()
            removed += _remove_store(files)
        removed += _remove_old(directory)
        for path in find_leftovers(directory, settled=True):
            remove_leftover(path)
            removed.append(path)
    with opened([directory for directory in directories if find_stores(directory)]) as drives:
        for drive in drives:
            if drive.header is not None and drive.journal is not None:
                _vacuum(drive.files.db)
    return Collected(removed, nbytes)


def unused(directory: Path) -> list[StoreFiles]:
    """Return all stores in a directory but that of each rank that was used last, and those that nothing outlives.

    Ranks that the server which used it last does not have are none of those.
    """
    stores = find_stores(directory)
    dated = sorted((_used(files), files) for files in stores if files.id != VOLATILE)
    ranks = _ranks(dated[-1][1]) if dated else 0
    last = {files.rank: files for _, files in dated if files.rank < ranks}
    return [files for files in stores if files != last.get(files.rank)]


def _ranks(files: StoreFiles) -> int:
    """Return how many ranks of a store's server have stores; as far as can be seen where the store does not tell."""
    try:
        fields = identity_fields(read_header(files.slab))
        return 1 if fields.get("attention") == "mla" else int(fields["tp_size"])  # A latent is stored once for all.
    except (OSError, HeaderError, KeyError, TypeError, ValueError):
        return files.rank + 1


def _used(files: StoreFiles) -> float:
    """Return when a store was written last; one without its slab never was."""
    if not files.slab.exists():
        return 0.0
    return max((path.stat().st_mtime for path in (files.slab, *files.databases) if path.exists()), default=0.0)


def _vacuum(path: Path) -> None:
    """Give the free pages of a database back to the file system, a few at a time."""
    with journal_files.guarded(path, "shrinking"):
        db = journal_files.connect(path, "rw")
        try:
            journal_files.settle(db)
            left = journal_files.pragma(db, "freelist_count")
            while left:
                db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
                journal_files.checkpoint(db)
                before, left = left, journal_files.pragma(db, "freelist_count")
                if left >= before:
                    break
        finally:
            db.close()


def contents(directory: Path) -> list[Path]:
    """Return everything of ours in a directory but the locks of the ranks; raises `OSError`."""
    stores = [path for files in find_stores(directory) for path in (files.slab, *files.databases)]
    old = [*old_slabs(directory), directory / OLD_LOCK]
    there = [path for path in (*stores, *old) if path.is_symlink() or path.exists()]
    return list(dict.fromkeys([*there, *find_leftovers(directory, settled=True)]))


def clear(directory: Path) -> list[Path]:
    """Remove everything that `contents` names, and return it.

    The locks stay: a server that starts meanwhile would not see one that was made anew.

    Raises
    ------
    StoreError, OSError
        When something is not ours, or cannot be removed.
    """
    removed = [path for files in find_stores(directory) for path in _remove_store(files)]
    removed += _remove_old(directory)
    for path in find_leftovers(directory, settled=True):
        remove_leftover(path)
        removed.append(path)
    return removed


def _remove_store(files: StoreFiles) -> list[Path]:
    """Remove a store; its database goes first, since a slab without one brings nothing back."""
    there = [path for path in (*files.databases, files.slab) if path.is_symlink() or path.exists()]
    for path in there:
        remove_own(path)
    return there


def _remove_old(directory: Path) -> list[Path]:
    """Remove the slabs and the lock of release 0.1, unless a server of that release uses them."""
    path = directory / OLD_LOCK
    there = [*old_slabs(directory), *([path] if path.is_symlink() or path.exists() else [])]
    if there:
        fd = open_own(path)
        take_lock(fd, directory)
        try:
            for each in {*there, path}:
                remove_own(each)
        finally:
            unlock(fd)
    return there
