"""One request at a time through all tiers."""

from __future__ import annotations

import numpy as np

from radixtier.tree.residency import State


def test_hit_on_each_tier(make_either) -> None:
    server = make_either(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(6, seed=1)
    first = server.serve(prompt)
    assert first.hit == 0
    server.settle()
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (24, 0, 0)
    server.settle()
    server.evict_hbm()
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (0, 24, 0)
    server.settle()
    server.evict_hbm()
    server.demote_all()
    assert server.table.count[State.COLD] == 6
    assert server.match(server.request(prompt)).host_hit_length == 24
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (0, 0, 24)
    server.settle()
    server.check()
    server.cache.sanity_check()


def test_growing_chat_overflows_all_tiers(make_either) -> None:
    server = make_either(hbm=12, dram=8, nvme=32)
    chats = [server.prompt(3, seed=s) for s in range(4)]
    seen = {"device": 0, "host": 0, "storage": 0}
    for turn in range(6):
        for number, chat in enumerate(chats):
            done = server.serve(chat)
            for tier in seen:
                seen[tier] += getattr(done, tier)
            server.settle()
            server.check()
            chats[number] = (chat + server.prompt(1, seed=100 + 10 * turn + number))[: 9 * 4]
    assert seen["storage"] > 0
    server.cache.reset()
    server.allocator.clear()
    server.check()
    assert server.store.used_slots == 0 and server.table.free_frames == 8
    assert server.serve(chats[0]).hit == 0


def test_metadata_is_per_handle_and_only_dram_is_allocated(make_either) -> None:
    server = make_either(hbm=4, dram=4, nvme=50_000)
    assert server.table.n_handles == 50_004
    assert server.table.nbytes() / server.table.n_handles <= 64
    pool = server.cache._pool
    assert pool.kv_buffer.nbytes == 4 * pool.size_per_token * 4
    assert pool.logical_size == 50_004 * 4
    assert np.prod(pool.kv_buffer.shape) * 4 == pool.kv_buffer.nbytes
