"""What else of ours lies in a directory of the store: stores of other identities, earlier formats, probes.

Owns nothing. Invariant: what does not fit our naming scheme, or is for another rank of this server to look after, is
not touched; a link or a file of another user among our names is an error. What was left by ranks that this server does
not have is shared out over those it has. One thread, at start, with the rank's lock held.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from radixtier.store.header import Header, HeaderError, read_header
from radixtier.store.paths import OLD_LOCK, VOLATILE, StoreFiles, find_stores, old_slabs, probe_files
from radixtier.store.slab import PATH_FLAG, StoreError, lock, open_own, remove_own, take_lock, unlock

logger = logging.getLogger(__name__)

PROBE_LIFE_S = 300.0
"""Seconds after which no process can still be trying out an engine with a file."""

OLD_LOCK_S = 2.0
"""Seconds that another rank may take to clear up after release 0.1."""


def reclaim(ours: Sequence[StoreFiles], rank: int, header: Header, keep_others: bool) -> int:
    """Delete what nobody uses any more; stores of other identities only if they are not to be kept.

    Parameters
    ----------
    ours
        Where the stores of this server lie in the directory, by rank.
    rank
        Which of them this is.
    header
        What it is for.
    keep_others
        Whether to keep stores of other identities.

    Returns
    -------
    int
        Bytes of the stores that are kept aside in the directory, of whichever rank: the same on every rank.

    Raises
    ------
    StoreError
        For a file among our names that is not ours, or when another server is running here.
    """
    directory = ours[rank].directory
    try:
        others = [files for files in find_stores(directory) if files not in ours]
        _reclaim_old(directory)
        for path in probe_files(directory):
            if age(path) > PROBE_LIFE_S:
                remove_own(path)
        kept = [files for files in others if keep_others and files.id != VOLATILE]
        for files in others:
            if files not in kept and files.rank % len(ours) == rank:
                _drop(files, header, held=files.rank == rank)
        return sum(files.nbytes() for files in kept)
    except OSError as e:
        raise StoreError(f"{PATH_FLAG} {directory}: {e.strerror or e}") from e


def _drop(files: StoreFiles, header: Header, held: bool) -> None:
    """Delete another store, and say what it was for; with the lock of its rank, if that is not held yet."""
    fd = None if held else lock(files.directory, files.rank)
    try:
        _delete(files, header)
    finally:
        if fd is not None:
            unlock(fd)


def _delete(files: StoreFiles, header: Header) -> None:
    nbytes = files.nbytes()
    try:
        why = ", ".join(header.differences(read_header(files.slab)))
    except FileNotFoundError:
        why = "its slab is missing"
    except (OSError, HeaderError) as e:
        why = str(e)
    for path in (files.slab, *files.databases):
        remove_own(path)
    logger.warning(
        "radixtier: removed the store %s (%d bytes): it was for another model or setup (%s)", files.slab, nbytes, why
    )


def _reclaim_old(directory: Path) -> None:
    """Delete the slab and the lock of release 0.1, which kept nothing for a restart."""
    path, slabs = directory / OLD_LOCK, old_slabs(directory)
    if not slabs and not path.is_symlink() and not path.exists():
        return
    fd = _old_lock(path)
    try:
        for file in (*slabs, path):
            remove_own(file)
    finally:
        os.close(fd)
    logger.info("radixtier: removed the files of release 0.1 in %s", directory)


def _old_lock(path: Path) -> int:
    """Take the lock of release 0.1, for which another rank may be clearing up at the same time."""
    end = time.monotonic() + OLD_LOCK_S
    while True:
        fd = open_own(path)
        try:
            take_lock(fd, path.parent)
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return fd


def age(path: Path) -> float:
    """Return the seconds since a file was written, 0.0 if there is none."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
