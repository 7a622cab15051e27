"""The raw limit of a drive: large transfers of one file, several at a time, and nothing else.

Owns nothing between calls. By a loop of our own, and by fio where it is installed, with the same block size, depth and
mode. The file must have been written before, all of it: holes are fast. Main thread.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from radixtier.io.frames import aligned_memory

Kind = Literal["read", "write"]


class Plan(NamedTuple):
    """``nbytes`` from ``start`` on (a multiple of ``block``), in file order, ``depth`` transfers at a time."""

    start: int
    nbytes: int
    block: int
    depth: int
    direct: bool


class Raw(Protocol):
    """A way to measure."""

    name: str

    def rate(self, kind: Kind, file: Path, plan: Plan) -> float:
        """Read or overwrite a part of a file, and return bytes per second; raises `OSError`."""


def find_raw(memory: memoryview) -> Raw:
    """Return our own loop over ``memory``, with fio beside it if that is there and works."""
    loop, fio = Loop(memory), shutil.which("fio")
    if fio is None:
        return loop
    found = subprocess.run([fio, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return Faster([Fio(fio, found.stdout.strip()), loop]) if found.returncode == 0 else loop


def random_memory(nbytes: int) -> memoryview:
    """Return aligned memory full of random bytes, which no drive can compress or deduplicate."""
    memory = aligned_memory(nbytes)
    random = np.random.default_rng(secrets.randbits(64))
    words = np.frombuffer(memory, dtype=np.uint64, count=nbytes // 8)
    step = 1 << 20
    for start in range(0, len(words), step):
        part = words[start : start + step]
        part[:] = random.integers(0, 1 << 64, size=len(part), dtype=np.uint64)
    return memory


class Loop:
    """`preadv` and `pwritev` in threads: one transfer per thread, the next block for whoever is free.

    Blocks come from and go to ``memory``, aligned, round and round: where memory lies can make more of a difference
    than anything else, so that a comparison has to use the same. It must hold twice the blocks that are under way.
    """

    name = "loop"

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def rate(self, kind: Kind, file: Path, plan: Plan) -> float:
        flags = (os.O_RDONLY if kind == "read" else os.O_WRONLY) | (os.O_DIRECT if plan.direct else 0)
        places = len(self._memory) // plan.block
        assert places >= 2 * plan.depth
        turns = _Turns(range(plan.nbytes // plan.block))
        fd = os.open(file, flags | os.O_CLOEXEC)

        def move() -> None:
            call = os.preadv if kind == "read" else os.pwritev
            for i in turns:
                place = i % places * plan.block
                moved = call(fd, [self._memory[place : place + plan.block]], plan.start + i * plan.block)
                if moved != plan.block:
                    raise OSError(f"{kind} of {plan.block} bytes moved {moved}")

        try:
            if not plan.direct:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            with ThreadPoolExecutor(plan.depth) as pool:
                begin = time.perf_counter()
                try:
                    ends = [pool.submit(move) for _ in range(plan.depth)]
                    for end in ends:
                        end.result()
                finally:
                    turns.stop()  # after Ctrl-C or an error the others must not go on to the end
                return plan.nbytes / (time.perf_counter() - begin)
        finally:
            os.close(fd)


class Faster:
    """Whichever is faster: fio does without huge pages, which can cost it half of the rate."""

    def __init__(self, ways: Sequence[Raw]) -> None:
        self._ways = ways
        self.name = " or ".join(way.name for way in ways)

    def rate(self, kind: Kind, file: Path, plan: Plan) -> float:
        return max(way.rate(kind, file, plan) for way in self._ways)


class _Turns:
    """Hands out numbers, each once, to any thread."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers: Iterator[int] = iter(numbers)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)

    def stop(self) -> None:
        with self._lock:
            self._numbers = iter(())


class Fio:
    """fio with one job, libaio, and the plan's block size, depth and mode."""

    def __init__(self, program: str, version: str) -> None:
        self._program = program
        self.name = version

    def rate(self, kind: Kind, file: Path, plan: Plan) -> float:
        command = [
            *(self._program, "--name=raw", f"--filename={file}", f"--rw={kind}", f"--bs={plan.block}"),
            *(
                f"--offset={plan.start}",
                f"--size={plan.nbytes}",
                f"--iodepth={plan.depth}",
                f"--direct={int(plan.direct)}",
            ),
            *("--ioengine=libaio", "--overwrite=1", "--invalidate=1", "--output-format=json"),
        ]
        found = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, check=False)
        try:
            [job] = json.loads(found.stdout)["jobs"]
            if job["error"] or job[kind]["io_bytes"] != plan.nbytes:
                raise ValueError(f"error {job['error']}, {job[kind]['io_bytes']} of {plan.nbytes} bytes")
            return float(job[kind]["bw_bytes"])
        except (ValueError, KeyError) as error:
            said = found.stderr.strip() or str(error)
            raise OSError(f"fio failed ({said}): remove it from PATH to measure without it") from error
