"""The `kvikio` engine: transfers by NVIDIA's KvikIO.

Owns a descriptor of its own for checks and `sync`, and KvikIO's handle of the same file. Invariant: no transfer
returns while the library may still touch one of its buffers. Nothing here is imported or started before the first
`open`; what KvikIO keeps per process (threads, task size) is set once, under a lock. Threads: see `Engine`.

Beside memoryviews a transfer takes device buffers, over GPUDirect Storage where that is active, else through memory of
the library's own. They are one-dimensional, contiguous arrays of bytes with
``__cuda_array_interface__`` and ``nbytes``. KvikIO waits for the null stream only, so whoever fills or reads such a
buffer on another stream synchronizes with it.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from radixtier.footprint import BLOCK
from radixtier.io.engine import Buffers, Engine
from radixtier.io.files import open_existing, own_name

logger = logging.getLogger(__name__)

THREADS = 16
"""KvikIO's own, for all files of the process: enough requests in flight for two NVMe drives."""

TASK_BYTES = 4 << 20
"""A buffer is cut into tasks of this size, each done by one thread."""

LOG_VARIABLE = "CUFILE_LOGFILE_PATH"

_SETTINGS = {
    "num_threads": THREADS,
    "task_size": TASK_BYTES,
    # Host buffers past the page cache; aligned as ours are, they are not copied through a bounce buffer either.
    "auto_direct_io_read": True,
    "auto_direct_io_write": True,
}

_WHERE = re.compile(r"(KvikIO failure|Linux system/library function call error) at: \S+:\d+: ")

_library_lock = threading.Lock()
_is_set_up = False


class KvikioEngine(Engine):
    """One future per buffer; a transfer waits for all of them and counts up to the first short one.

    Every error of the library becomes an `OSError` with `errno.EIO` and its text.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._file: Any = None

    @property
    def name(self) -> str:
        return "kvikio"

    @property
    def alignment(self) -> int:
        return BLOCK

    def open(self, path: Path, size: int) -> None:
        fd = open_existing(path, size)
        try:
            self.adopt(fd)
        except OSError:
            os.close(fd)
            raise

    def adopt(self, fd: int) -> None:
        """Work on the file of an open descriptor, which is closed with the engine unless this raises `OSError`."""
        with _as_oserror("kvikio cannot be used"):
            library = load()
        with _as_oserror("kvikio cannot open it"):
            self._file = library.CuFile(own_name(fd), "r+")
        self._fd = fd

    def readv(self, buffers: Buffers, offset: int) -> int:
        return _moved(self._file.pread, buffers, offset)

    def read_device(self, buffers: Sequence[Any], offset: int) -> int:
        return _moved(self._file.pread, buffers, offset)

    def writev(self, buffers: Buffers, offset: int) -> int:
        return _moved(self._file.pwrite, buffers, offset)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except Exception as e:  # what was synced is safe, and nobody could do anything about it
                logger.warning("radixtier: kvikio could not close a file: %s", text_of(e))
            fd, self._fd = self._fd, -1
            os.close(fd)


def load() -> Any:
    """Return the library, set up for this process; whatever goes wrong in it is raised as it is."""
    global _is_set_up
    with _library_lock:
        if not _is_set_up and not os.environ.get(LOG_VARIABLE):
            # Else cuFile writes ./cufile.log wherever the server was started.
            directory = tempfile.mkdtemp(prefix="radixtier-")
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            os.environ[LOG_VARIABLE] = os.path.join(directory, "cufile.log")
        import kvikio
        import kvikio.defaults

        if not _is_set_up:
            kvikio.defaults.set(_SETTINGS)
            _is_set_up = True
    return kvikio


def register(buffer: Any) -> None:
    """Have cuFile pin the memory of a device buffer once for all transfers; raises `OSError` where it does not."""
    with _as_oserror("kvikio cannot register GPU memory"):
        load()
        import kvikio.buffer

        kvikio.buffer.memory_register(buffer)


def unregister(buffer: Any) -> None:
    """Take :func:`register` back; never raises."""
    try:
        import kvikio.buffer

        kvikio.buffer.memory_deregister(buffer)
    except Exception as e:  # the process ends, and the driver with it
        logger.warning("radixtier: kvikio could not give GPU memory back: %s", text_of(e))


def _moved(submit: Callable[..., Any], buffers: Sequence[Any], offset: int) -> int:
    """Start a transfer per buffer, wait for all that started, return the bytes moved before the first gap."""
    arrays = [_array(buffer) for buffer in buffers]
    sizes = [int(buffer.nbytes) for buffer in buffers]
    futures: list[Any] = []
    outcomes: list[int | Exception] = []
    refused: Exception | None = None
    try:
        for array, size in zip(arrays, sizes, strict=True):
            futures.append(submit(array, size, offset))
            offset += size
    except Exception as e:
        refused = e
    for future in futures:
        try:
            outcomes.append(int(future.get()))
        except Exception as e:
            outcomes.append(e)
    return _sum(outcomes + [refused] * (refused is not None), sizes)


def _sum(outcomes: list[Any], sizes: list[int]) -> int:
    moved = 0
    for outcome, size in zip(outcomes, sizes, strict=False):
        if isinstance(outcome, Exception):
            if moved:
                break  # the caller continues there and meets the error with nothing moved
            raise OSError(errno.EIO, text_of(outcome)) from outcome
        moved += outcome
        if outcome < size:
            break
    return moved


def _array(buffer: Any) -> Any:
    """Return what the library takes: device buffers as they are, host memory as an array over the same bytes."""
    return buffer if hasattr(buffer, "__cuda_array_interface__") else np.frombuffer(buffer, dtype=np.uint8)


@contextmanager
def _as_oserror(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise OSError(errno.EIO, f"{what}: {text_of(e)}") from e


def text_of(error: Exception) -> str:
    """Return the library's message on one line, without its own file names."""
    text = _WHERE.sub("", " ".join(str(error).split()))
    return (
        text if text and isinstance(error, (RuntimeError, ImportError, OSError)) else f"{type(error).__name__}: {text}"
    )
