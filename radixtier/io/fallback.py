"""An engine with a second one behind it, for when the first gives up.

Owns both engines, open on the same file. Invariant: it falls back at most once and never returns. Threads: see
`Engine`; transfers that run on the first engine when another falls back end there, and fall back if they fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from radixtier.io.engine import Buffers, Engine

logger = logging.getLogger(__name__)


class FallbackEngine(Engine):
    """The first engine until it fails for the first time, at whatever; from then on the second.

    What failed is done again by the second, with the same buffers; an `OSError` of that one is raised. A transfer
    that moves nothing counts as failed. Both files are open from the start: opened later, the name might belong to
    another file, and a write error might already have been told to the first engine only.
    """

    def __init__(self, first: Engine, second: Engine) -> None:
        self._first = first
        self._second = second
        self._engine = first
        self._lock = threading.Lock()
        self._path = Path()

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def alignment(self) -> int:
        engine = self._engine
        return engine.alignment if engine is self._second else max(engine.alignment, self._second.alignment)

    def open(self, path: Path, size: int) -> None:
        self._path = path
        self._second.open(path, size)
        try:
            self._first.open(path, size)
        except OSError as e:
            self._fall_back(e)

    def readv(self, buffers: Buffers, offset: int) -> int:
        return self._move(lambda engine: engine.readv(buffers, offset), buffers)

    def writev(self, buffers: Buffers, offset: int) -> int:
        return self._move(lambda engine: engine.writev(buffers, offset), buffers)

    def _move(self, move: Callable[[Engine], int], buffers: Buffers) -> int:
        engine = self._engine
        try:
            count = move(engine)
        except OSError as e:
            if engine is self._second:
                raise
            self._fall_back(e)
        else:
            if count or engine is self._second or not any(b.nbytes for b in buffers):
                return count
            self._fall_back("it moved nothing")
        return move(self._second)

    def read_device(self, buffers: Sequence[Any], offset: int) -> int:
        """Read by the engine in use; what fails there goes through DRAM, and says nothing of other transfers."""
        return self._engine.read_device(buffers, offset)

    def sync(self) -> None:
        engine = self._engine
        try:
            engine.sync()
        except OSError as e:
            if engine is self._second:
                raise
            self._fall_back(e)
            self._second.sync()

    def _fall_back(self, why: OSError | str) -> None:
        with self._lock:
            if self._engine is self._first:
                self._engine = self._second
                logger.warning(
                    "radixtier: %s failed on %s (%s): using %s from now on. Run `radixtier doctor` to see what works.",
                    self._first.name,
                    self._path,
                    why,
                    self._second.name,
                )

    def close(self) -> None:
        try:
            self._first.close()
        finally:
            self._second.close()
