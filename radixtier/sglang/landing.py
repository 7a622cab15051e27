"""The landing zone in GPU memory, and the way from there into SGLang's paged KV pool.

Owns one tensor of landing frames, and the layout of a page in it, which is that of the host pool. The order of streams:

- a frame is read to by an I/O thread only after every load that took pages from it has been acknowledged, which is when
  the scheduler has seen the load's finish event: no stream still reads it;
- an I/O thread sums up a page on a stream of its own and waits for that stream before it reports the page, so what the
  scheduler sees as landed is at rest, for every stream;
- a load scatters page by page on SGLang's load stream, layer by layer, in front of that layer's event: the forward
  waits for the layers that it reads, as for what comes from DRAM.

:class:`DeviceLanding` is called by I/O threads, :class:`Landing` by the scheduler thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from radixtier.footprint import BLOCK, slot_bytes
from radixtier.io import kvikio
from radixtier.io.engine import Engine
from radixtier.io.landing import Frames, HostLanding, LandingZone, Sums
from radixtier.store.weighted import seeded, weighted_sum, weights

logger = logging.getLogger(__name__)

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes are moved as integers: not every kernel knows every kind of float."""


class DeviceLanding(LandingZone):
    """Landing frames on a GPU, registered with cuFile.

    Raises
    ------
    OSError
        When cuFile does not take the memory.
    """

    def __init__(self, n_frames: int, page_bytes: int, device: torch.device) -> None:
        super().__init__(n_frames, page_bytes)
        self._device = device
        nbytes = n_frames * self.row_bytes + BLOCK
        memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        shift = -memory.data_ptr() % BLOCK
        self._flat = memory[shift : shift + n_frames * self.row_bytes]
        self.rows = self._flat.view(n_frames, self.row_bytes)
        self._weights = torch.from_numpy(weights(page_bytes).copy()).to(device)
        self._of_thread = threading.local()
        torch.cuda.synchronize(device)
        kvikio.register(self._flat)

    def buffers(self, frames: Frames) -> list[Any]:
        step = self.row_bytes
        return [self._flat[first * step : (first + n) * step] for first, n in self._stretches(frames)]

    def move(self, engine: Engine) -> Callable[[Any, int], int]:
        return engine.read_device

    def sums(self, frames: Frames, seeds: Sums) -> Sums:
        if not len(frames):
            return np.empty(0, np.uint64)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream()) as _:
            found = torch.cat([row_sums(self._words(*each), self._weights) for each in self._stretches(frames)])
            return seeded(found.cpu().numpy(), seeds)  # waits for the stream

    def _words(self, first: int, n: int) -> torch.Tensor:
        return self.rows[first : first + n, : self.page_bytes].view(torch.int32)

    def _stream(self) -> Any:
        stream = getattr(self._of_thread, "stream", None)
        if stream is None:
            stream = self._of_thread.stream = torch.cuda.Stream(self._device)
        return stream

    def close(self) -> None:
        kvikio.unregister(self._flat)


def row_sums(words: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the sums of ``words`` (int32 ``[pages, words]``) times ``factors`` (int64 ``[words]``), wrapped around."""
    return (words.to(torch.int64) * factors).sum(dim=1)


class Landed(NamedTuple):
    """The part of a load that comes out of the landing zone; on the device of the KV pool."""

    frames: torch.Tensor
    """Landing frames, int64 ``[pages]``."""
    rows: torch.Tensor
    """Rows of the KV pool that they go to, int64 ``[pages * page size]``."""


class Landing:
    """The landing zone as a source of loads.

    Parameters
    ----------
    zone
        The frames.
    rows
        The same as bytes, uint8 ``[frames, row bytes]``, on the device of the KV pool.
    shape
        Of a page: planes (K and V), layers, tokens, and then what a token has in a layer of a plane.
    layout
        SGLang's name for the order in which a page has them.
    dtype
        Of the KV pool.
    """

    def __init__(
        self, zone: LandingZone, rows: torch.Tensor, shape: Sequence[int], layout: str, dtype: torch.dtype
    ) -> None:
        self.zone = zone
        planes, layers, tokens, *rest = shape
        self._integer = _INTEGERS[dtype.itemsize]
        pages = rows[:, : zone.page_bytes].view(self._integer)
        if layout == "page_first":
            pages = pages.unflatten(1, (planes, tokens, layers, *rest)).transpose(2, 3)
        else:
            pages = pages.unflatten(1, (planes, layers, tokens, *rest))
        self._pages = pages
        """``[frame, plane, layer, token, ...]``, a view whatever the layout."""

    def scatter(self, landed: Landed, plane: int, layer: int, target: torch.Tensor) -> None:
        """Copy one layer of one plane of landed pages into the KV pool, on the current stream.

        ``target`` is that layer of the pool, ``[rows, ...]``.
        """
        source = self._pages[:, plane, layer].index_select(0, landed.frames).flatten(0, 1)
        target.view(self._integer).index_copy_(0, landed.rows, source)


def make_landing(
    n_frames: int, page_bytes: int, shape: Sequence[int], layout: str, dtype: torch.dtype, device: torch.device
) -> Landing | None:
    """Build the landing zone beside the KV pool on ``device``; None, with a warning, where cuFile does not take it."""
    if not n_frames:
        return None
    if device.type == "cpu":
        host = HostLanding(n_frames, page_bytes, weighted_sum)
        rows = torch.frombuffer(host.memory, dtype=torch.uint8).view(n_frames, slot_bytes(page_bytes))
        return Landing(host, rows, shape, layout, dtype)
    try:
        zone = DeviceLanding(n_frames, page_bytes, device)
    except OSError as error:
        logger.warning(
            "radixtier: GPU memory cannot be read into (%s): everything goes through DRAM. "
            "Run `radixtier doctor` to see what works.",
            error.strerror,
        )
        return None
    return Landing(zone, zone.rows, shape, layout, dtype)
