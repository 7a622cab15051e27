"""The real cache in miniature, with its control endpoint, for tests that give its NVMe tier up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "cache"))

SIZES = {"hbm": 24, "dram": 16, "nvme": 64}
WAIT_S = 20.0


def open_below(directory: Path) -> list[str]:
    """What this process has open below a directory: files, and memory that is mapped from them."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    found = []
    for link in links:
        try:
            found.append(os.readlink(link))
        except OSError:  # the one that listed the others
            continue
    found += [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted(path for path in found if path.startswith(f"{directory}/"))


def drain(server: Any, timeout_s: float = 30.0) -> dict[str, Any]:
    """Drain a server without HTTP in between, and wait for the end."""
    server.cache.draining.start(timeout_s)
    until_status(server, "drained")
    found: dict[str, Any] = server.cache.draining.start(0.0)
    return found


def until_status(server: Any, status: str) -> None:
    """Let the scheduler run until the drain is so far."""
    end = time.monotonic() + WAIT_S
    while server.cache.draining.status != status:
        assert time.monotonic() < end, server.cache.draining._to_json()
        server.events()
        server.cache.mover.io_done.wait(0.001)
