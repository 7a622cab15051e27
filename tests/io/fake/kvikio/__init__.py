"""A stand-in for KvikIO: its names, its futures and its errors, over plain system calls.

What goes wrong is said in words in the variable ``FAKE_KVIKIO``, so that it reaches other processes as well: see the
uses of `says`. `CALLS` counts, `UNFINISHED` holds transfers that may still touch their buffers.
"""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

CALLS: Counter[str] = Counter()
UNFINISHED: set[int] = set()
_POOL = ThreadPoolExecutor(4)


def says(word: str) -> bool:
    return word in os.environ.get("FAKE_KVIKIO", "").split()


def misbehave(where: str) -> None:
    if says(f"kill-at-{where}"):
        os.kill(os.getpid(), signal.SIGKILL)
    if says(f"hang-at-{where}"):
        with open(os.environ["FAKE_KVIKIO_HANGS"], "wb") as told:
            told.write(b".")
        threading.Event().wait()
    if says(f"fail-at-{where}"):
        raise RuntimeError(f"KvikIO failure at: /src/fake.cpp:7: no {where} today")


misbehave("import")


class CompatMode(enum.Enum):
    OFF = 0
    ON = 1
    AUTO = 2


class IOFuture:
    """A transfer on another thread; with the word ``late`` it starts only when somebody waits for it."""

    def __init__(self, move: Callable[[], int]) -> None:
        self._wanted = threading.Event()
        if not says("late"):
            self._wanted.set()
        UNFINISHED.add(id(self))
        self._result = _POOL.submit(self._run, move)

    def _run(self, move: Callable[[], int]) -> int:
        self._wanted.wait(60)
        try:
            return move()
        finally:
            UNFINISHED.discard(id(self))

    def get(self) -> int:
        self._wanted.set()
        return self._result.result()


class CuFile:
    def __init__(self, file: str, flags: str = "r") -> None:
        from kvikio import defaults

        CALLS["open"] += 1
        misbehave("open")
        if defaults.get("compat_mode") is CompatMode.OFF:
            misbehave("gds-open")
        try:
            self._fd = os.open(file, {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags] | os.O_CLOEXEC)
        except OSError as e:
            raise RuntimeError(f"Unable to open file. {e.strerror}") from e

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        misbehave("close")

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> IOFuture:
        memory, device = _memory_of(buf)
        CALLS["pread"] += 1
        if says(f"refuse-pread-{CALLS['pread']}"):
            raise RuntimeError("not taken")
        return IOFuture(lambda: _read(self._fd, memory[:size], file_offset, device))

    def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> IOFuture:
        memory, _ = _memory_of(buf)
        CALLS["pwrite"] += 1
        return IOFuture(lambda: _write(self._fd, memory[:size], file_offset))


def _read(fd: int, memory: Any, offset: int, device: bool) -> int:
    misbehave("read")
    if says("read-nothing"):
        return 0
    if device:
        if says("device-read-fails"):
            raise RuntimeError("KvikIO failure at: /src/fake.cpp:7: no device-read today")
        if says("device-read-lies"):
            return len(memory)
        memory = memory[:4096] if says("device-read-short") else memory
        return os.preadv(fd, [memory], offset)  # the real one is short past the end, too
    done = 0
    while done < len(memory):
        count = os.preadv(fd, [memory[done:]], offset + done)
        if count == 0:
            raise RuntimeError("KvikIO failure at: /src/posix_io.hpp:173: POSIX error on pread: EOF")
        done += count
    return done


def _write(fd: int, memory: Any, offset: int) -> int:
    misbehave("write")
    return os.pwritev(fd, [memory], offset)


def _memory_of(buf: Any) -> tuple[Any, bool]:
    interface = getattr(buf, "__cuda_array_interface__", None)
    if interface is None:
        assert isinstance(buf, np.ndarray)
        return buf, False
    kind = ctypes.c_uint8 * interface["shape"][0]
    return np.frombuffer(kind.from_address(interface["data"][0]), dtype=np.uint8), True
