"""Names of a store's files, and which of the files in a directory are ours.

Owns the naming scheme. Invariant: a file whose name does not fit it is none of ours and never touched. Pure but for
the listing of a directory; any thread.

Per rank ``r`` a lock, ``radixtier-r{r}.lock``; per store a slab and a database, ``radixtier-r{r}-{id}.slab`` and
``.db`` (beside it SQLite's ``-wal`` and ``-shm``), where ``id`` stands for the store's identity.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from radixtier.identity import StoreIdentity
from radixtier.io.files import SCRATCH_PREFIX
from radixtier.machine import allocated_bytes

PREFIX = "radixtier"

VOLATILE = "volatile"
"""Id of a store that nothing outlives."""

OLD_LOCK = f"{PREFIX}.lock"
"""Lock of release 0.1."""

_STORE = re.compile(rf"{PREFIX}-r(\d+)-([0-9a-f]{{12}}|{VOLATILE})(\.slab|\.db|\.db-wal|\.db-shm|\.db-journal)")
_OLD_SLAB = re.compile(rf"{PREFIX}-\d+\.slab")
_PROBE = re.compile(rf"{re.escape(SCRATCH_PREFIX)}[\w.-]+")


class StoreFiles(NamedTuple):
    """The files of one store in one directory."""

    directory: Path
    rank: int
    id: str

    @property
    def slab(self) -> Path:
        """The slab file."""
        return self.directory / f"{PREFIX}-r{self.rank}-{self.id}.slab"

    @property
    def db(self) -> Path:
        """The journal's database."""
        return self.slab.with_suffix(".db")

    @property
    def databases(self) -> list[Path]:
        """The database and what SQLite keeps beside it; each may be absent."""
        return files_of(self.db)

    def nbytes(self) -> int:
        """Return the bytes that the files take on disk."""
        return sum(allocated_bytes(path) for path in (self.slab, *self.databases))


def files_of(database: Path) -> list[Path]:
    """Return a database and everything that SQLite keeps beside it."""
    return [database, *(database.with_name(database.name + suffix) for suffix in ("-wal", "-shm", "-journal"))]


def is_our_file(found: os.stat_result) -> bool:
    """Whether it is a plain file of this user under one name only."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are durable; raises `OSError`."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def store_id(identity: StoreIdentity | None) -> str:
    """Return what stands for an identity in file names: 12 hex digits, or :data:`VOLATILE` for none."""
    return VOLATILE if identity is None else blake2b(identity.to_json().encode()).hexdigest()[:12]


def lock_path(directory: Path, rank: int) -> Path:
    """Return the path of the lock of one rank."""
    return directory / f"{PREFIX}-r{rank}.lock"


def find_stores(directory: Path, rank: int | None = None) -> list[StoreFiles]:
    """Return the stores in a directory, of one rank or of all; raises `OSError` when it cannot be listed."""
    names = (_STORE.fullmatch(name) for name in os.listdir(directory))
    found = {StoreFiles(directory, int(m[1]), m[2]) for m in names if m}
    return sorted(files for files in found if rank is None or files.rank == rank)


def old_slabs(directory: Path) -> list[Path]:
    """Return the slabs of release 0.1."""
    return list(_matching(directory, _OLD_SLAB))


def probe_files(directory: Path) -> list[Path]:
    """Return the files with which engines are tried out; they stay behind only when the process was killed."""
    return list(_matching(directory, _PROBE))


def _matching(directory: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    return (directory / name for name in sorted(os.listdir(directory)) if pattern.fullmatch(name))
