"""Leases of transfers against streams that finish late; translation; a real GPU where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixtier.sglang.host_pool import frame_parts
from radixtier.tree.residency import State


class LateEvent:
    """An event of a stream that is still running."""

    def __init__(self) -> None:
        self.done = False
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1
        self.done = True


def submit(pool, tokens, event):
    """What SGLang's transfer engine does around one submission."""
    domain = pool.shared_allocation_domain
    domain.acquire_layout()
    physical, _ = pool.prepare_transfer_indices(tokens, torch.arange(len(tokens)), "direct")
    domain.release_layout(event, ("engine", "device_to_host"))
    return physical


def test_lease_lasts_until_the_acknowledgement_is_reaped(make_either) -> None:
    server = make_either(hbm=8, dram=4, nvme=64)
    pool, mover = server.cache._pool, server.cache.mover
    tokens = pool.alloc(8)
    pages = pool.pages_of(tokens)
    event = LateEvent()
    physical = submit(pool, tokens, event)
    assert physical.tolist() == pool.tokens_of(server.table.frame[pages]).tolist()
    event.done = True
    assert (server.table.lease[pages] == 1).all(), "a finished stream alone ends no lease: ranks must agree first"
    pool.free(tokens)
    assert server.table.free_frames == 2
    for moved in pool.shared_allocation_domain.finish(event):
        mover.filled(moved)
    assert server.table.free_frames == 4 and server.table.free_handles == 68
    server.check()


def test_two_transfers_finish_in_any_order(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    first, second = LateEvent(), LateEvent()
    a, b = pool.alloc(4), pool.alloc(8)
    submit(pool, a, first)
    submit(pool, b, second)
    domain = pool.shared_allocation_domain
    assert [p.tolist() for p in domain.finish(second)] == [pool.pages_of(b).tolist()]
    assert server.table.lease[pool.pages_of(a)].tolist() == [1]
    assert [p.tolist() for p in domain.finish(first)] == [pool.pages_of(a).tolist()]
    assert not server.table.lease.any() and domain.finish(first) == []


def test_failed_submission_leaves_no_lease(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    tokens = pool.alloc(8)
    submit(pool, tokens, None)
    assert not server.table.lease.any()


def test_flush_waits_for_the_stream(make_either) -> None:
    server = make_either(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    event = LateEvent()
    submit(pool, pool.alloc(8), event)
    server.cache.reset()
    server.allocator.clear()
    assert event.waited == 1 and server.table.free_frames == 4 and server.table.free_handles == 68
    server.check()


def test_page_not_in_dram_is_never_transferred(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    tokens = pool.alloc(4)
    server.cache.mover.fill_failed(pool.pages_of(tokens))
    assert server.table.state[pool.pages_of(tokens)].tolist() == [State.LOST]
    with pytest.raises(AssertionError, match="not in DRAM"):
        pool.prepare_transfer_indices(tokens, torch.arange(4), "direct")


LAYOUTS = {
    "page_first_direct": ((5, 3, 4, 2, 8), lambda plane, page: plane[page]),
    "page_first": ((20, 3, 2, 8), lambda plane, page: plane[page * 4 : page * 4 + 4]),
    "layer_first": ((3, 20, 2, 8), lambda plane, page: plane[:, page * 4 : page * 4 + 4]),
}
"""Shape of 5 pages of 4 tokens with 3 layers, and where a page is."""


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_frame_parts_cover_each_page_once(layout: str, planes: int) -> None:
    shape, page_of = LAYOUTS[layout]
    buffer = torch.arange(planes * np.prod(shape), dtype=torch.float32).reshape(planes, *shape)
    parts = frame_parts(buffer.unbind(0), layout, page_size=4)
    flat = buffer.reshape(-1)
    for page in range(5):
        got = torch.cat([flat[(o + page * s) // 4 : (o + page * s + n) // 4] for o, s, n in parts])
        want = torch.cat([page_of(plane, page).reshape(-1) for plane in buffer])
        assert got.tolist() == want.tolist()


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="page_first_direct"):
        frame_parts([torch.zeros(2, 4)], "page_head", 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_indices_reach_the_gpu_through_pinned_memory(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    tokens = pool.alloc(8)
    device = torch.arange(8, device="cuda")
    physical, same = pool.prepare_transfer_indices(tokens, device, "kernel")
    assert physical.is_cuda and same is device
    assert physical.cpu().tolist() == pool.tokens_of(server.table.frame[pool.pages_of(tokens)]).tolist()
