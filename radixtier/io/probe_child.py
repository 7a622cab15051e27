"""The process that tries an engine in a directory; see :mod:`radixtier.io.probe`.

Owns the tests themselves. Invariant: each verdict is printed, as one line of JSON, as soon as it is known, so that
it survives whatever a later test does to the process; no file stays behind however the process ends. Runs in a
process of its own; imports only what it needs.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from radixtier.footprint import BLOCK
from radixtier.io.files import own_name, scratch_file
from radixtier.io.posix import try_direct

PROBE_BYTES = 16 * BLOCK
"""Large enough for KvikIO to take the way that it takes for pages."""


def main(kind: str, directory: str) -> None:
    """Print the verdicts on ``kind``, an engine, in ``directory``."""
    steps = _STEPS[kind](Path(directory))
    try:
        for verdict in steps:
            print(json.dumps(verdict), flush=True)
    except OSError as e:
        print(json.dumps({"errno": e.errno, "strerror": e.strerror or str(e)}), flush=True)


def posix(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield why O_DIRECT does not work, None if it does."""
    yield {"why_not": try_direct(directory)}


def kvikio(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield what KvikIO can do: be imported, write and read, use GPUDirect Storage, read into GPU memory.

    ``why_not``, ``no_gds`` and ``no_device`` are None where all is well; it ends where it cannot be imported or write.
    """
    from radixtier.io.kvikio import load, text_of

    with scratch_file(directory, PROBE_BYTES) as fd:
        os.pwrite(fd, bytes(BLOCK), 0)  # a full or broken disk is not the library's fault
        try:
            library = load()
        except Exception as e:
            yield {"why_not": text_of(e)}
            return
        yield {"imports": True}
        why_not = _try_transfers(fd)
        yield {"why_not": why_not}
        if why_not is None:
            # In this order: to ask for GPUDirect Storage changes how the library moves bytes.
            yield {"no_device": _why_no_device(fd)}
            yield {"no_gds": _why_no_gds(library, fd)}


def _try_transfers(fd: int) -> str | None:
    from radixtier.io.kvikio import KvikioEngine

    out, back = mmap.mmap(-1, PROBE_BYTES), mmap.mmap(-1, PROBE_BYTES)
    out[:] = secrets.token_bytes(PROBE_BYTES)
    engine = KvikioEngine()
    try:
        engine.adopt(os.dup(fd))
        moved = engine.writev([memoryview(out)], 0), engine.readv([memoryview(back)], 0)
        engine.sync()
        engine.close()
    except OSError as e:
        return e.strerror or str(e)
    return None if moved == (PROBE_BYTES, PROBE_BYTES) and out[:] == back[:] else "does not give back what was written"


def _why_no_device(fd: int) -> str | None:
    """Read into GPU memory what was written, and hold it against that; with or without GPUDirect Storage."""
    from radixtier.io.device import DeviceBytes
    from radixtier.io.kvikio import KvikioEngine, text_of

    try:
        memory = DeviceBytes(PROBE_BYTES)
        memory.fill(0x5A)
        engine = KvikioEngine()
        engine.adopt(os.dup(fd))
        moved = engine.read_device([memory], 0)
        there = memory.tobytes()
        engine.close()
        memory.close()
    except OSError as e:
        return e.strerror or str(e)
    except Exception as e:  # of three libraries and a driver
        return text_of(e)
    if moved != PROBE_BYTES:
        return f"{moved} of {PROBE_BYTES} bytes arrived"
    return None if there == os.pread(fd, PROBE_BYTES, 0) else "other bytes arrived than were written"


def _why_no_gds(library: Any, fd: int) -> str | None:
    """Ask the library; opening a file without its compatibility mode fails where cuFile does not take it."""
    from radixtier.io.kvikio import text_of

    try:
        import kvikio.cufile_driver

        if library.defaults.is_compat_mode_preferred():
            return "KvikIO is in compatibility mode: cuFile cannot be used, or KVIKIO_COMPAT_MODE says so"
        if not kvikio.cufile_driver.get("is_gds_available"):
            return "the nvidia-fs driver is not loaded"
        library.defaults.set("compat_mode", library.CompatMode.OFF)
        library.CuFile(own_name(fd), "r+").close()
    except Exception as e:
        return text_of(e)
    return None


_STEPS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {"posix": posix, "kvikio": kvikio}

if __name__ == "__main__":
    main(*sys.argv[1:])
