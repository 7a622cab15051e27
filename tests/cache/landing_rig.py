"""A GPU that is none: device memory, streams that run late, and the library that reads into it.

Device memory is ordinary memory that says where it is as arrays on a GPU do, so that the stand-in for KvikIO in
``tests/io/fake`` reads into it. A stream holds back what it is given until it is told to run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from radixtier.io.engine import Engine
from radixtier.io.fallback import FallbackEngine
from radixtier.io.kvikio import KvikioEngine
from radixtier.io.posix import PosixEngine
from radixtier.sglang import landing

FAKES = Path(__file__).parents[1] / "io" / "fake"


class DeviceTensor(torch.Tensor):
    """Bytes on the GPU that is none."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.data_ptr(), False), "version": 3}


class Streams:
    """In the place of ``torch.cuda``: what waits for which stream, in the order in which it happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._current: list[SideStream] = []

    def synchronize(self, device: Any) -> None:
        self.log.append("device")

    def Stream(self, device: Any) -> SideStream:
        self.log.append("new stream")
        return SideStream()

    def device(self, device: Any) -> Any:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def stream(self, stream: SideStream) -> Iterator[None]:
        stream.used += 1
        yield


@dataclass
class SideStream:
    """A stream of an I/O thread."""

    used: int = 0


@dataclass
class LoadStream:
    """SGLang's load stream: copies are made when it runs, in their order, and their events are ready then."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    def attach(self, server: Any) -> None:
        """Have the loads of a server go through here, and be acknowledged only when it ran."""
        pool, cache = server.cache._pool, server.cache
        copy, count = pool.load_to_device_per_layer_physical, cache._count_ready_acks

        def later(*args: Any, **kwargs: Any) -> None:
            self.waiting.append(lambda: copy(*args, **kwargs))

        pool.load_to_device_per_layer_physical = later
        cache._count_ready_acks = lambda queue: 0 if self.waiting and queue is self._loads(cache) else count(queue)

    def _loads(self, cache: Any) -> Any:
        return cache.cache_controller.ack_load_queue

    def run(self) -> None:
        """Make every copy that waits."""
        waiting, self.waiting = self.waiting, []
        for copy in waiting:
            copy()


def use_fake_gpu(monkeypatch: Any) -> Streams:
    """Let landing zones be built on the GPU that is none; returns its streams."""
    streams = Streams()
    make = landing.make_landing

    def on_gpu(n: int, page_bytes: int, shape: Any, layout: str, dtype: Any, device: Any) -> Any:
        return make(n, page_bytes, shape, layout, dtype, FakeDevice())

    monkeypatch.setattr(landing, "torch", FakeTorch(streams))
    monkeypatch.setattr("radixtier.sglang.stack.make_landing", on_gpu)
    return streams


@dataclass(frozen=True)
class FakeDevice:
    type: str = "cuda"

    def __str__(self) -> str:
        return "cuda:0"


class FakeTorch:
    """torch, with the GPU that is none."""

    def __init__(self, streams: Streams) -> None:
        self.cuda = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, nbytes: int, *, dtype: Any, device: Any) -> Any:
        return torch.full((nbytes,), 0xEE, dtype=dtype).as_subclass(DeviceTensor)

    def from_numpy(self, array: Any) -> Any:
        return OnItsWay(torch.from_numpy(array))


@dataclass
class OnItsWay:
    """What is about to be copied to the GPU that is none."""

    tensor: Any

    def to(self, device: Any) -> Any:
        return self.tensor


def kvikio_engine(directory: Path) -> Engine:
    """The engine of a server with KvikIO: it, and posix behind it."""
    return FallbackEngine(KvikioEngine(), PosixEngine(direct=False))
