"""The server that the gate starts where no other is named: SmolLM2 in float32 on this machine's CPU.

Owns the store of such a run, a new directory below the cache that is removed at the end. Invariant: the store lies on a
drive with room for it, or nothing is started. Main thread.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from radixtier.footprint import footprint
from radixtier.gate.profiles import CPU_SIZES, Sizes
from radixtier.live.model import cache_root, smollm2
from radixtier.live.server import CPU_FLAGS
from radixtier.machine import Machine, file_system_type, free_disk_bytes
from radixtier.units import BadValue, format_bytes

PAGE_SIZE = 16
"""Tokens; for both servers."""

KV_BYTES_PER_TOKEN = 46080
"""SmolLM2-135M in float32: 30 layers, K and V, 3 heads of 64."""

BESIDE_BYTES = 8 << 30
"""RAM of two servers without their KV: weights, activations, Python."""

DISK_RESERVE = 2 << 30
"""Bytes that stay free on the drive."""

_IN_MEMORY = {"tmpfs", "ramfs"}


def root() -> Path:
    """Return the directory of such runs; made where it is missing."""
    found = cache_root() / "gate"
    found.mkdir(parents=True, exist_ok=True)
    return found.resolve()


def check_room(directory: Path, sizes: Sizes) -> None:
    """Hold the tiers against the drive of a directory and against RAM.

    Raises
    ------
    BadValue
        They do not fit.
    """
    if (kind := file_system_type(str(directory))) in _IN_MEMORY:
        raise BadValue(f"{directory} is on {kind}, which lies in RAM", "Set RADIXTIER_CACHE to a directory on a drive")
    pages = sizes.nvme // PAGE_SIZE
    needed = footprint(pages, PAGE_SIZE * KV_BYTES_PER_TOKEN, PAGE_SIZE) + DISK_RESERVE
    if (free := free_disk_bytes(directory)) < needed:
        why = f"the store and its reserve take {format_bytes(needed)}, and {directory} has {format_bytes(free)} free"
        raise BadValue(why, "Free some, or set RADIXTIER_CACHE to a directory on another drive")
    # Stock has HBM as well.
    needed = (2 * sizes.hbm + sizes.dram) * KV_BYTES_PER_TOKEN + BESIDE_BYTES
    if (free := Machine.probe().ram_bytes) < needed:
        raise BadValue(f"two servers take {format_bytes(needed)} of RAM, {format_bytes(free)} are free", "Free some")


@contextmanager
def prepared(say: Callable[[str], None], sizes: Sizes = CPU_SIZES) -> Iterator[list[str]]:
    """Prepare model and store; yield the server's arguments.

    Raises
    ------
    BadValue
        There is no room.
    RuntimeError
        The model could not be fetched.
    """
    place = root()
    check_room(place, sizes)
    model = smollm2(say)
    store = Path(tempfile.mkdtemp(prefix="store-", dir=place))
    try:
        yield arguments(model, store, sizes)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def arguments(model: Path, store: Path, sizes: Sizes) -> list[str]:
    """Return the arguments of the server with the tier, without address and port."""
    return [
        "--model-path", str(model),
        *CPU_FLAGS,
        "--page-size", str(PAGE_SIZE),
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{sizes.hbm}tok",
        "--radix-tier-dram-size", f"{sizes.dram}tok",
        "--radix-tier-nvme-size", f"{sizes.nvme}tok",
        "--radix-tier-nvme-path", str(store),
    ]  # fmt: skip
