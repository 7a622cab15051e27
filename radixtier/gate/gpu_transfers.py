"""The first half of ``launch/verify_gpu.sh``: pages from a drive to GPU memory, both ways, byte by byte.

Owns a store in a scratch directory, and what it is read into. Invariant: a rate counts only for pages whose bytes were
compared afterwards. Main thread; the transfers are the store's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from radixtier.footprint import HEADER_BYTES, footprint
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.landing import HostLanding, LandingZone
from radixtier.io.probe import engine_factory
from radixtier.store.jobs import Ints, JobDone, Sums
from radixtier.store.store import PageStore
from radixtier.store.weighted import weighted_sum
from radixtier.tools.scratch import scratch

if TYPE_CHECKING:
    import torch

PAGE_TOKENS = 64
PATIENCE_S = 60.0
"""For a job of the store, beyond which the drive counts as stuck."""


class Transfers(NamedTuple):
    """What was found."""

    pages: int
    page_bytes: int
    engine: str
    straight_gbps: float
    through_gbps: float
    """NVMe to DRAM and from there to GPU memory, 10**9 bytes/s."""
    equal: bool
    """Every page came up as it was written, both ways."""
    noticed: bool
    """A byte that was changed on the drive was, both ways."""


class Bench:
    """A store with a landing zone, and twice its pages in DRAM: what was written, and what is read back.

    Parameters
    ----------
    device
        Where the landing zone is; on ``cpu`` it is ordinary memory, for a rehearsal.
    """

    def __init__(self, directory: Path, n_pages: int, page_bytes: int, device: torch.device) -> None:
        import torch

        from radixtier.sglang.landing import DeviceLanding

        self.n, self.page_bytes, self.device = n_pages, page_bytes, device
        on_gpu = device.type == "cuda"
        memory = aligned_memory(2 * n_pages * page_bytes)
        self.host = torch.frombuffer(memory, dtype=torch.uint8).view(2 * n_pages, page_bytes)
        pages = np.random.default_rng(1).integers(0, 256, (n_pages, page_bytes), np.uint8)
        self.host[:n_pages] = torch.from_numpy(pages)
        frames = FrameBuffer(memory, 2 * n_pages, [(0, page_bytes, page_bytes)])
        self.zone: LandingZone
        if on_gpu:
            self.zone = device_zone = DeviceLanding(n_pages, page_bytes, device)
            self.rows = device_zone.rows
        else:
            self.zone = host_zone = HostLanding(n_pages, page_bytes, weighted_sum)
            self.rows = torch.frombuffer(host_zone.memory, dtype=torch.uint8).view(n_pages, -1)
        self.seeds = np.arange(1, n_pages + 1, dtype=np.uint64)
        self.store = PageStore(
            [directory], footprint(n_pages, page_bytes, PAGE_TOKENS), frames, page_tokens=PAGE_TOKENS,
            engine=engine_factory("kvikio" if on_gpu else "auto"), landing=self.zone,
        )  # fmt: skip
        slots = self.store.alloc(n_pages)
        assert slots is not None
        self.slots: Ints = slots
        self.written = self._run(lambda: self.store.write(np.arange(n_pages), slots, self.seeds, "job"))

    def _run(self, start: Callable[[], None]) -> JobDone:
        start()
        if not self.store.drain(PATIENCE_S):
            raise TimeoutError(f"the drive moved nothing for {PATIENCE_S:.0f} s")
        (done,) = self.store.poll()
        return done

    def straight(self) -> tuple[JobDone, float]:
        """Read all pages to the landing zone; returns the seconds."""
        assert self.written.weighted is not None
        self.rows.fill_(0)
        self._wait()
        begin = time.perf_counter()
        done = self._read(2 * self.n + np.arange(self.n), self.written.weighted)
        return done, time.perf_counter() - begin

    def through(self) -> tuple[JobDone, float]:
        """Read all pages to DRAM, and copy them to GPU memory; returns the seconds."""
        self.host[self.n :] = 0
        self.rows.fill_(0)
        self._wait()
        begin = time.perf_counter()
        done = self._read(self.n + np.arange(self.n), self.written.checksums)
        self.rows[:, : self.page_bytes].copy_(self.host[self.n :], non_blocking=True)
        self._wait()
        return done, time.perf_counter() - begin

    def _read(self, frames: Ints, sums: Sums) -> JobDone:
        return self._run(lambda: self.store.read(frames, self.slots, self.seeds, sums, "job"))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def equal(self) -> bool:
        """Whether GPU memory has every byte that was written."""
        import torch

        return bool(torch.equal(self.rows[:, : self.page_bytes].cpu(), self.host[: self.n]))

    def damage(self) -> None:
        """Change a byte of the first page on the drive."""
        (slab,) = [drive.volume.slab.path for drive in self.store._drives]
        step = self.store.slot_bytes
        with slab.open("r+b") as file:
            file.seek(HEADER_BYTES + int(self.slots[0]) * step + self.page_bytes // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    def close(self) -> None:
        """Close the store, and take back what was registered."""
        self.store.close(PATIENCE_S)
        if self.device.type == "cuda":
            self.zone.close()


def measure(directory: Path, n_pages: int, page_bytes: int, device: torch.device, rounds: int = 3) -> Transfers:
    """Move pages both ways, in turns; rates are the best of the rounds.

    Raises
    ------
    StoreError, ValueError, OSError, TimeoutError
        When the store cannot be opened there, GPU memory has no room, cuFile does not take it, or the drive hangs.
    """
    with scratch(directory) as place:
        bench = Bench(place, n_pages, page_bytes, device)
        try:
            return _measure(bench, rounds)
        finally:
            bench.close()


def _measure(bench: Bench, rounds: int) -> Transfers:
    nbytes = bench.n * bench.page_bytes
    best: dict[str, float] = {}
    equal = bool(bench.written.ok.all())
    ways: dict[str, Any] = {"straight": bench.straight, "through": bench.through}
    for _ in range(rounds):
        for name, way in ways.items():
            done, seconds = way()
            equal &= bool(done.ok.all()) and bench.equal()
            best[name] = max(best.get(name, 0.0), nbytes / seconds / 1e9)
    engine = bench.store.health()[0].engine
    bench.damage()
    found = [way()[0] for way in ways.values()]
    noticed = all(done.corrupt.tolist() == [True] + [False] * (bench.n - 1) for done in found)
    return Transfers(bench.n, bench.page_bytes, engine, best["straight"], best["through"], equal, noticed)
