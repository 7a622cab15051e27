"""Host pool with logical pages: SGLang's tree holds handles, this pool knows the frames behind them.

Owns the translation handle -> frame and the leases of transfers in flight. Everything that SGLang's tree and
controller call on a host pool (alloc, free, sizes, indices) is logical here; ``size``, ``page_num`` and the buffer
are physical. Scheduler thread only.

A transfer takes its leases in :meth:`LogicalPoolMixin.prepare_transfer_indices`, under the layout lease that the
transfer engine opens around every submission, and gives them back when the scheduler reaps the acknowledgement
(:meth:`LayoutDomain.finish`), never earlier: so a frame is not reused while a stream still reads or fills it. Pages in
landing frames are split off there, and scattered beside the stock copies of the rest, layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

from radixtier.io.frames import FrameBuffer
from radixtier.mover import Mover
from radixtier.ranks import Agreement, Alone
from radixtier.sglang.landing import Landed, Landing
from radixtier.tree.residency import NONE, Flags, Pages, Slots


class LayoutDomain:
    """What SGLang asks of a pool whose indices must be translated at submission: leases and allocation."""

    def __init__(self, pool: LogicalPoolMixin) -> None:
        self._pool = pool
        self._open: list[list[Pages]] = []
        self._pending: dict[int, tuple[Any, list[Pages]]] = {}

    def acquire_layout(self) -> None:
        """Open a lease: pages translated from now on belong to it."""
        self._open.append([])

    def lease(self, pages: Pages) -> None:
        """Add pages to the open lease; outside of one (synchronous use) there is nothing to protect."""
        if self._open:
            self._pool.mover.acquire(pages)
            self._open[-1].append(pages)

    def release_layout(self, event: Any = None, key: Any = None) -> None:
        """Close the open lease: pending until ``event`` is acknowledged, or at once without one."""
        leased = self._open.pop()
        if event is not None:
            self._pending[id(event)] = (event, leased)
            return
        self._end(leased)

    def finish(self, event: Any) -> list[Pages]:
        """End the lease of an acknowledged transfer; returns the pages it moved."""
        _, leased = self._pending.pop(id(event), (None, []))
        self._end(leased)
        return leased

    def _end(self, leased: list[Pages]) -> None:
        for pages in leased:
            self._pool.mover.release(pages)

    def clear(self) -> None:
        """End all leases, after waiting for the transfers."""
        for event, leased in self._pending.values():
            event.synchronize()
            self._end(leased)
        self._pending.clear()

    def alloc_many(self, requests: Sequence[tuple[str, int]]) -> list[torch.Tensor] | None:
        """Allocate for the one pool of this domain, tokens per request; all or nothing."""
        got: list[torch.Tensor] = []
        for _, need in requests:
            indices = self._pool.alloc(need)
            if indices is None:
                for taken in got:
                    self._pool.mover.fill_failed(self._pool.pages_of(taken))
                    self._pool.free(taken)
                return None
            got.append(indices)
        return got

    def free_bytes(self) -> int:
        """Bytes that can still be allocated, counted in handles."""
        pool: Any = self._pool
        return int(pool.available_size() * pool.size_per_token)


class LogicalPoolMixin:
    """Put in front of a stock host pool class: handles instead of physical indices.

    Parameters
    ----------
    mover
        Of this rank.
    ranks
        Those of the server.
    """

    shared_allocation_domain: LayoutDomain
    landing: Landing | None = None
    """Where pages lie that came straight from NVMe; None where none do."""

    def __init__(self, *args: Any, mover: Mover, ranks: Alone | Agreement, **kwargs: Any) -> None:
        # The stock constructor clears the pool, and with it the mover.
        self.mover = mover
        self.ranks = ranks
        super().__init__(*args, **kwargs)

    # ---- sizes --------------------------------------------------------------------------------------

    @property
    def logical_size(self) -> int:
        """Tokens of handles: all that the tree may hold below HBM."""
        pool: Any = self
        return int(self.mover.table.n_handles * pool.page_size * pool.dcp_size)

    def available_size(self) -> int:
        """Tokens of free handles. Never frames: else SGLang would drop nodes to make room in DRAM."""
        pool: Any = self
        return int(self.mover.table.free_handles * pool.page_size * pool.dcp_size)

    # ---- allocation ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget every page; transfers are over by then, store I/O keeps its frames until it ends."""
        if "shared_allocation_domain" not in vars(self):
            self.shared_allocation_domain = LayoutDomain(self)
        self.shared_allocation_domain.clear()
        self.mover.clear()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Take handles with frames for ``need_size`` tokens; int64 token indices on the CPU, or None."""
        if self.ranks.diverged:
            # With backups that some ranks make and others do not, nodes would stay locked on some of them.
            return None
        page_size = self._page_tokens
        assert need_size % page_size == 0, f"{need_size} tokens are not whole pages of {page_size}"
        pages = self.mover.alloc(need_size // page_size)
        return None if pages is None else self.tokens_of(pages)

    def free(self, indices: torch.Tensor) -> int:
        """Release the handles of whole pages; returns the number of tokens."""
        if len(indices):
            self.mover.free(self.pages_of(indices))
        return len(indices)

    @property
    def _page_tokens(self) -> int:
        pool: Any = self
        return int(pool.page_size * pool.dcp_size)

    def pages_of(self, indices: torch.Tensor) -> Pages:
        """Handles behind token indices that cover whole pages."""
        page_size = self._page_tokens
        pages: Pages = indices.numpy()[::page_size]
        return pages.copy() if page_size == 1 else pages // page_size

    def tokens_of(self, pages: np.ndarray[Any, Any]) -> torch.Tensor:
        """Token indices of pages (logical or physical), in order."""
        page_size = self._page_tokens
        tokens = pages.astype(np.int64)[:, None] * page_size + np.arange(page_size)
        return torch.from_numpy(tokens.reshape(-1))

    # ---- translation --------------------------------------------------------------------------------

    def prepare_transfer_indices(
        self, host_indices: torch.Tensor, device_indices: torch.Tensor, io_backend: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Translate handles into frames and lease them, on the transfer stream, under the layout lease."""
        pages = self.pages_of(host_indices)
        frames = self.mover.table.frame[pages]
        assert (frames != NONE).all(), "transfer of a page that is not in DRAM"
        self.shared_allocation_domain.lease(pages)
        if self.landing is not None and (landed := self.mover.table.landed(pages)).any():
            return self._split(frames, landed, device_indices, io_backend)
        return self._placed(frames, device_indices, io_backend)

    def _split(
        self, frames: Slots, landed: Flags, device_indices: torch.Tensor, io_backend: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Leave what is in DRAM to the stock copies; the rest goes along, to be scattered layer by layer."""

        def rows(some: Flags) -> torch.Tensor:
            at = self.tokens_of(np.flatnonzero(some))
            return device_indices.index_select(0, _upload(at, device_indices))

        device = self.device_planes()[0][0]
        first = self.mover.table.n_frames
        places = torch.from_numpy(frames[landed].astype(np.int64) - first)
        straight = Landed(_upload(places, device), _upload(rows(landed), device).long())
        physical, rest = self._placed(frames[~landed], rows(~landed), io_backend)
        physical.radixtier_landed = straight  # type: ignore[attr-defined]
        return physical, rest

    def _placed(
        self, frames: Slots, device_indices: torch.Tensor, io_backend: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        physical = self.tokens_of(frames)
        if io_backend == "kernel":
            return _upload(physical, device_indices), device_indices
        device_indices = device_indices.cpu()
        pool: Any = self
        if pool.layout == "layer_first":
            physical, order = physical.sort()
            device_indices = device_indices.index_select(0, order)
        return physical, device_indices

    def load_to_device_per_layer_physical(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        layer_id: int,
        io_backend: str,
        *,
        is_draft: bool = False,
    ) -> None:
        """Copy one layer to HBM, on the load stream: from DRAM as stock does, and from the landing zone."""
        pool: Any = self
        landed = getattr(host_indices, "radixtier_landed", None)
        if landed is None or len(host_indices):
            pool.load_to_device_per_layer(
                device_pool, host_indices, device_indices, layer_id, io_backend, is_draft=is_draft
            )
        planes = self.device_planes()
        if landed is not None and self.landing is not None and 0 <= layer_id < len(planes[0]):
            for plane, layers in enumerate(planes):
                self.landing.scatter(landed, plane, layer_id, layers[layer_id])

    def device_planes(self) -> tuple[Sequence[torch.Tensor], ...]:
        """Return the layers of each plane of the KV pool in HBM, ``[rows, ...]`` each: of K, then of V."""
        pool: Any = self
        return pool.device_k_buffers, pool.device_v_buffers

    def backup_from_device_all_layer_physical(
        self, device_pool: Any, host_indices: torch.Tensor, device_indices: torch.Tensor, io_backend: str
    ) -> None:
        """Copy HBM -> DRAM; the staged page-first kernel wants its destination indices on the CPU."""
        pool: Any = self
        if pool.can_use_write_back_jit:
            host_indices = getattr(host_indices, "radixtier_cpu", host_indices)
        pool.backup_from_device_all_layer(device_pool, host_indices, device_indices, io_backend)

    # ---- what SGLang's own storage backends would use: not reachable while the tier owns the disk ----

    def get_page_buffer_element_size(self, split_factor: int = 1) -> int | None:
        """No storage backend of SGLang may address frames behind the tier's back."""
        return None

    def get_page_buffer_meta(self, indices: torch.Tensor) -> Any:
        """Addresses of the frames behind ``indices`` (pages in DRAM only)."""
        pool: Any = super()
        return pool.get_page_buffer_meta(self.tokens_of(self.mover.table.frame[self.pages_of(indices)]))

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        """The bytes of the page that holds the logical token ``index``."""
        pool: Any = super()
        page: torch.Tensor = pool.get_data_page(self._physical(index), flat)
        return page

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        """Overwrite the page that holds the logical token ``index``."""
        pool: Any = super()
        pool.set_from_flat_data_page(self._physical(index), data_page)

    def _physical(self, index: int) -> int:
        page_size = self._page_tokens
        return int(self.mover.table.frame[int(index) // page_size]) * page_size

    def frame_buffer(self) -> FrameBuffer:
        """The DRAM pool as raw memory, for the store."""
        pool: Any = self
        parts = frame_parts(self.planes(), pool.layout, pool.page_size)
        return FrameBuffer(_memory(pool.kv_buffer), pool.page_num, parts)

    def planes(self) -> Sequence[torch.Tensor]:
        """The parts of the buffer that each hold something of every token: views, in the order of their bytes."""
        raise NotImplementedError


def _memory(buffer: torch.Tensor) -> memoryview:
    return memoryview(buffer.view(torch.uint8).reshape(-1).numpy())


def frame_parts(planes: Sequence[torch.Tensor], layout: str, page_size: int) -> list[tuple[int, int, int]]:
    """Where a page's bytes lie in a stock host buffer: ``(offset, stride, nbytes)`` per piece, in bytes.

    Parameters
    ----------
    planes
        Views of one buffer, K and V or the one of latents: ``[page, layer, token, ...]`` for ``page_first_direct``;
        ``[token, layer, ...]`` for ``page_first``; ``[layer, token, ...]`` for ``layer_first``. Each is contiguous.
    layout
        SGLang's name for the above.
    page_size
        Tokens per page.

    Raises
    ------
    ValueError
        For another layout.
    """
    parts = []
    for plane in planes:
        item = plane.element_size()
        start = plane.storage_offset() * item
        if layout == "page_first_direct":
            offsets, step = [start], plane.stride(0) * item
        elif layout == "page_first":
            offsets, step = [start], plane.stride(0) * item * page_size
        elif layout == "layer_first":
            offsets = [start + layer * plane.stride(0) * item for layer in range(plane.shape[0])]
            step = plane.stride(1) * item * page_size
        else:
            raise ValueError(f"radixtier: host memory layout {layout!r} is not supported; use page_first_direct")
        parts += [(offset, step, step) for offset in offsets]
    return parts


def _upload(physical: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Copy indices to the device without a pageable copy, which could block behind the running forward."""
    if physical.device.type == like.device.type:
        return physical
    if not len(physical):
        return physical.to(like.device)
    pinned = physical.pin_memory()
    uploaded = pinned.to(like.device, non_blocking=True)
    uploaded.radixtier_cpu = pinned  # type: ignore[attr-defined]
    return uploaded


class RadixTierMHAHostPool(LogicalPoolMixin, MHATokenToKVPoolHost):
    """The stock MHA/GQA host pool with logical pages: K of all pages, then V."""

    def planes(self) -> Sequence[torch.Tensor]:
        """K and V."""
        halves: tuple[torch.Tensor, ...] = self.kv_buffer.unbind(0)
        return halves


class RadixTierMLAHostPool(LogicalPoolMixin, MLATokenToKVPoolHost):
    """The stock MLA host pool with logical pages: per token and layer one row, the latent and the rotary key."""

    def planes(self) -> Sequence[torch.Tensor]:
        """The one buffer."""
        return (self.kv_buffer,)

    def device_planes(self) -> tuple[Sequence[torch.Tensor], ...]:
        """The layers of the one."""
        return (self.device_kv_buffers,)
