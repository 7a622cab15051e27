"""The slab of another rank, open for reading.

Owns an engine on the file. Invariant: what is read comes from a slab whose header says that it holds pages for us.
Nothing is written, made, locked or removed. One thread at a time opens and closes it; any thread may read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from radixtier.footprint import BLOCK, HEADER_BYTES
from radixtier.io.engine import Engine, transfer
from radixtier.io.frames import aligned_memory
from radixtier.store.header import Header, HeaderError
from radixtier.store.paths import StoreFiles
from radixtier.store.slab import PATH_FLAG, StoreError


class LentSlab:
    """Reads a slab that its owner has made.

    Parameters
    ----------
    files
        The owner's.
    wanted
        What the slab must be for; its store id does not matter.
    make_engine
        From the directory to an engine that is not open yet.

    Raises
    ------
    StoreError
        When it cannot be opened or is for something else.

    Attributes
    ----------
    engine : Engine
        Open on the slab.
    n_slots : int
        Slots in it.
    """

    def __init__(self, files: StoreFiles, wanted: Header, make_engine: Callable[[Path], Engine]) -> None:
        self.files = files
        self._wanted = wanted
        self._make_engine = make_engine
        self.engine, self.n_slots = self._open()

    @property
    def path(self) -> Path:
        """The file."""
        return self.files.slab

    def _open(self) -> tuple[Engine, int]:
        try:
            engine = self._make_engine(self.files.directory)
            nbytes = os.stat(self.path, follow_symlinks=False).st_size
            engine.open(self.path, nbytes)
        except Exception as e:  # engines are libraries of others
            raise StoreError(f"{PATH_FLAG} {self.files.directory}: cannot open the first rank's store: {e}") from e
        if why := self._fault(engine):
            engine.close()
            raise StoreError(f"{PATH_FLAG} {self.files.directory}: cannot use the first rank's store: {why}")
        return engine, (nbytes - HEADER_BYTES) // self._wanted.slot_bytes

    def test(self) -> str | None:
        """Read the header; return what is wrong with it."""
        return self._fault(self.engine)

    def _fault(self, engine: Engine) -> str | None:
        block = aligned_memory(BLOCK)
        try:
            if error := transfer(engine.readv, [block], 0).error:
                return error
            differences = self._wanted.differences(Header.unpack(bytes(block)))
        except HeaderError as e:
            return f"{self.path} {e}"
        except Exception as e:  # engines are libraries of others
            return f"{type(e).__name__}: {e}"
        return ", ".join(differences) or None

    def reopen(self) -> None:
        """Open what lies at the path now instead; no transfer may run. Raises `StoreError`, and keeps the old one."""
        engine, n_slots = self._open()
        if n_slots != self.n_slots:
            engine.close()
            raise StoreError(f"{self.path} has {n_slots} slots instead of {self.n_slots}")
        before, self.engine = self.engine, engine
        before.close()

    def close(self) -> None:
        """Close the file; no transfer may run."""
        self.engine.close()
