"""The files of a journal: made, opened and checked.

Owns the schema, the settings of a connection and who may own the files. Invariants: no symbolic link is followed, no
file of another owner is used, all files are 0600; a database is used only if its schema is ours to the letter and its
b-trees are sound. A file that SQLite has open must not be opened and closed by anything else in this process: the
close would drop SQLite's locks. One thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from radixtier.footprint import BLOCK
from radixtier.store.paths import files_of, is_our_file, sync_directory
from radixtier.store.rows import JournalError

FORMAT = 1
"""Version of the schema and of the blobs in it."""

BUSY_S = 2.0
"""Seconds to wait for a reader in another process before a checkpoint is put off."""

SCHEMA = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB)",
    "spaces": "CREATE TABLE spaces (id INTEGER PRIMARY KEY, extra_key BLOB, cache_salt BLOB)",
    "runs": (
        "CREATE TABLE runs (slot INTEGER PRIMARY KEY, pages INTEGER, space INTEGER, used BLOB, front BLOB, seal BLOB,"
        " keys BLOB, checksums BLOB, tokens BLOB)"
    ),
}

_SETTINGS = (
    "PRAGMA synchronous = FULL",  # a batch that was applied survives a power cut
    "PRAGMA wal_autocheckpoint = 0",  # the journal does it, before the log passes its cap
    "PRAGMA cache_spill = OFF",  # a page goes to the log once per transaction, which bounds the log
    "PRAGMA cache_size = -8192",
    "PRAGMA secure_delete = OFF",
    "PRAGMA temp_store = MEMORY",  # no file outside the directory
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)

_BUSY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 10, 11, 13, 14, 26
_PHRASES = {
    _BUSY: "locked",
    _IOERR: "disk I/O error",
    _CORRUPT: "malformed",
    _FULL: "is full",
    _CANTOPEN: "unable to open",
    _NOTADB: "not a database",
}
_OF_THE_SYSTEM = {_BUSY, _IOERR, _FULL, _CANTOPEN}
"""Errors that say nothing about what is in the file."""


@contextlib.contextmanager
def guarded(path: Path, doing: str) -> Iterator[None]:
    """Turn what SQLite and the system raise into `JournalError`."""
    try:
        yield
    except (sqlite3.Error, OSError) as e:
        full = code_of(e) == _FULL or (isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT))
        corrupt = code_of(e) in (_CORRUPT, _NOTADB)
        raise JournalError(f"{doing} {path} failed: {e}", full=full, corrupt=corrupt) from e


def code_of(error: Exception) -> int:
    """Return the primary code of an error of SQLite, 0 of any other; Python 3.10 knows only the text."""
    if not isinstance(error, sqlite3.Error):
        return 0
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF
    return next((code for code, phrase in _PHRASES.items() if phrase in str(error)), 0)


def is_full(error: Exception) -> bool:
    """Whether the database has reached its cap, or the file system has no room."""
    return code_of(error) == _FULL


def is_damage(error: Exception) -> bool:
    """Whether what is in the file must be the cause."""
    return isinstance(error, sqlite3.Error) and code_of(error) not in _OF_THE_SYSTEM


def check_owner(path: Path) -> int | None:
    """Refuse what is not our plain file, make ours 0600; return the bytes of the database, None if it is not there."""
    size = None
    for file in files_of(path):
        try:
            found = file.lstat()
        except FileNotFoundError:
            continue
        if not is_our_file(found):
            kind = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not our plain file"
            raise JournalError(f"{file} {kind}: remove it or give another directory")
        if found.st_mode & 0o777 != 0o600:
            file.chmod(0o600)
        if file == path:
            size = found.st_size
    return size


def remove(path: Path) -> None:
    """Delete all files, durable on return. The database goes first: a log alone brings nothing back."""
    for file in files_of(path):
        file.unlink(missing_ok=True)
    sync_directory(path.parent)


def create(path: Path, meta: dict[str, str]) -> sqlite3.Connection:
    """Make an empty database with this meta data, replacing what is there; durable on return."""
    remove(path)
    # SQLite would create it by the umask; the log and the index take their mode from the database.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    db = connect(path, "rw")
    try:
        db.execute(f"PRAGMA page_size = {BLOCK}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # a store that shrinks can give bytes back, a few at a time
        settle(db)
        db.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA.values():
            db.execute(statement)
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(k, v.encode()) for k, v in meta.items()])
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
        checkpoint(db)
        sync_directory(path.parent)
    except BaseException:
        db.close()
        raise
    return db


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database that is there, for reading and writing (``rw``) or reading alone (``ro``)."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    # The caller's threads take turns, which the module cannot know.
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.text_factory = bytes  # what is on disk need not be UTF-8
    return db


def read_ahead(path: Path) -> None:
    """Read the database from end to end into the page cache, before SQLite asks for it block by block.

    To look at every block in the order of its trees takes ten times as long on a cold file.
    """
    piece = bytearray(8 << 20)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while os.readv(fd, [piece]):
            pass
    finally:
        os.close(fd)


def settle(db: sqlite3.Connection) -> None:
    """Make the settings that writing needs."""
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != b"wal":
        raise JournalError("the file system cannot share memory between processes, which a write-ahead log needs")
    for setting in _SETTINGS:
        db.execute(setting).fetchall()


def complaint(db: sqlite3.Connection, meta: dict[str, str]) -> str | None:
    """Say why a database cannot be used, or return None: another format, schema or meta data."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            return f"it has format {version} instead of {FORMAT}"
        if schema_of(db) != SCHEMA or pragma(db, "page_size") != BLOCK:
            return "its schema is another one"
        found = meta_of(db)
        for name, value in meta.items():
            if found.get(name) != value.encode():
                return f"its {name} is another one"
        return None
    except sqlite3.Error as e:
        if not is_damage(e):
            raise
        return f"it is damaged: {e}"


def damage(db: sqlite3.Connection) -> str | None:
    """Read all of a database, and say what is wrong with its b-trees or return None."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return None if found == b"ok" else f"it is damaged: {_text(found)}"


def schema_of(db: sqlite3.Connection) -> dict[str, str]:
    """Return the statements of all that is in the database, by name; automatic indexes have none."""
    found = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {_text(name): _text(sql) for name, sql in found}


def meta_of(db: sqlite3.Connection) -> dict[str, object]:
    """Return the meta data, unchecked."""
    return {_text(name): value for name, value in db.execute("SELECT name, value FROM meta").fetchall()}


def pragma(db: sqlite3.Connection, name: str) -> int:
    """Return the value of a numeric setting."""
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def checkpoint(db: sqlite3.Connection) -> bool:
    """Bring the log into the database and empty it; False when a reader is in the way."""
    busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
