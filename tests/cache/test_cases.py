"""The shared list of faults (CASES) on the real cache; numbers as there. Pages have 4 tokens.

SGLang never loads back less than 10 tokens, so what is to be loaded here has at least 3 pages.
"""

from __future__ import annotations

import errno
import gc
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import counted

from radixtier.explain import History
from radixtier.mover import ahead
from radixtier.mover.writebehind import LOSSY_AFTER_S
from radixtier.policy.returns import Returns
from radixtier.tree.residency import State


def hold_acks(server):
    """Let transfers between HBM and DRAM finish only when the returned object's ``release`` is called."""
    stock = server.cache._count_ready_acks
    server.cache._count_ready_acks = lambda queue: 0

    def release() -> None:
        server.cache._count_ready_acks = stock

    return SimpleNamespace(release=release)


def handles_of(server, request):
    """Handles of the part of a request's path that is not in HBM."""
    result = server.match(request, with_req=False)
    return server.cache._path(result).pages


def bring_to_dram(server, prompt):
    server.serve(prompt)
    server.settle()
    server.evict_hbm()


def bring_to_nvme(server, prompt):
    bring_to_dram(server, prompt)
    server.demote_all()


def test_c1_frames_stay_until_the_load_is_acknowledged(make_either) -> None:
    server = make_either(hbm=8, dram=4, nvme=64)
    a, b = server.prompt(3, 1), server.prompt(3, 2)
    bring_to_dram(server, a)
    request = server.request(a)
    pages = handles_of(server, request)
    frames = server.table.frame[pages].copy()
    server.arrive(request)
    held = hold_acks(server)
    assert server.admit(request)
    server.start_loads()
    other = server.request(b)
    server.arrive(other)
    assert server.admit(other)
    server.start_loads()
    server.forward(other)
    server.events()
    assert (server.table.frame[pages] == frames).all() and (server.table.lease[pages] > 0).all()
    assert server.table.free_frames == 1
    held.release()
    server.forward(request)
    assert request.host == 12
    server.settle()
    assert not server.table.lease.any()
    server.check()


def test_c2_split_during_a_backup_loses_nothing(make_either) -> None:
    server = make_either(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(6, 1)
    held = hold_acks(server)
    server.serve(prompt)
    server.serve(prompt[:12] + server.prompt(2, 2))
    held.release()
    server.settle()
    server.evict_hbm()
    again = server.serve(prompt)
    assert (again.device, again.host) == (0, 24)
    server.settle()
    server.evict_hbm()
    server.demote_all()
    assert server.serve(prompt).storage == 24
    server.check()


def test_c3_parent_without_backup_leaves_no_orphan(make_server, monkeypatch) -> None:
    server = make_server(hbm=16, dram=16, nvme=64)
    root, tail = server.prompt(3, 1), server.prompt(2, 2)
    monkeypatch.setattr(server.cache.mover, "alloc", lambda n: None)
    server.serve(root)
    monkeypatch.undo()
    server.serve(root + tail)
    server.settle()
    server.cache.sanity_check()
    server.evict_hbm()
    hit = server.serve(root + tail).hit
    assert hit in (0, 20)
    server.settle()
    server.check()
    server.cache.sanity_check()


def test_c10_what_is_being_loaded_is_no_victim(make_server) -> None:
    server = make_server(hbm=16, dram=8, nvme=64)
    a, b = server.prompt(4, 1), server.prompt(4, 2)
    bring_to_dram(server, a)
    bring_to_dram(server, b)
    request = server.request(a)
    pages = handles_of(server, request)
    server.arrive(request)
    held = hold_acks(server)
    assert server.admit(request)
    victims = server.cache.mover.tree.victims(8)
    assert len(victims) == 4 and not set(victims.tolist()) & set(pages.tolist())
    assert server.cache.mover.alloc(5) is None
    server.start_loads()
    held.release()
    server.forward(request)
    assert request.host == 16


def test_c12_a_frame_being_written_is_not_reused(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    held = server.engine.hold("write")
    server.serve(server.prompt(3, 1))
    server.settle_transfers()
    assert held.wait(1)
    server.settle_transfers()
    server.cache.reset()
    server.allocator.clear()
    assert server.table.free_frames == 1 and server.store.used_slots > 0
    late = server.serve(server.prompt(4, 2))
    assert late.hit == 0
    held.release()
    server.settle()
    server.check()
    assert server.table.free_frames == 4 and server.store.used_slots == 0


@pytest.mark.parametrize("fault", ["error", "short", "flip", "tear"])
def test_c13_a_failed_read_is_a_miss(make_either, fault: str) -> None:
    server = make_either(hbm=16, dram=16, nvme=64, threads=1)
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    how = {"error": {"number": errno.EIO}, "flip": {"at": 100}}.get(fault, {})
    getattr(server.engine, fault)("read", **how, skip=1, times=1)
    again = server.serve(prompt)
    assert again.hit % 4 == 0 and again.hit < 24
    stats = server.cache.mover.stats
    assert stats.read_failures >= 1
    server.settle()
    server.check()
    # Refill: the recomputed pages went back behind their handles, and come from below HBM next time.
    assert server.table.count[State.LOST] == 0 and stats.refilled >= 1
    server.evict_hbm()
    assert server.serve(prompt).hit == 24


def test_c15_tenants_never_share(make_server) -> None:
    server = make_server(hbm=16, dram=32, nvme=128)
    prompt = server.prompt(3, 1)
    spaces = [(None, None), ("X", None), (None, "X"), ("a", "bc"), ("ab", "c")]
    for mine in spaces:
        assert server.serve(prompt, *mine).hit == 0
        server.settle()
    server.evict_hbm()
    server.demote_all()
    for mine in spaces:
        assert server.serve(prompt, *mine).hit == 12
    assert server.serve(prompt, "Y", None).hit == 0


def test_c23_a_page_whose_write_is_pending_is_served_from_dram(make_server) -> None:
    server = make_server(hbm=8, dram=8, nvme=64)
    held = server.engine.hold("write")
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle_transfers()
    assert held.wait(1)
    server.evict_hbm()
    again = server.serve(prompt)
    assert (again.host, again.storage) == (16, 0)
    held.release()
    server.settle()
    server.check()


def test_c24_holds_never_wedge_the_pool(make_server) -> None:
    server = make_server(hbm=16, dram=4, nvme=64)
    prompts = [server.prompt(3, s) for s in range(5)]
    for prompt in prompts:
        bring_to_nvme(server, prompt)
    server.prefill_rate(1_000_000)
    requests = [server.request(p) for p in prompts]
    for request in requests:
        server.arrive(request)
    assert server.table.held <= server.cache.mover.promotions.hold_limit
    done = server.serve_all(100_000)
    assert len(done) == 5 and server.table.held == 0
    server.settle()
    server.check()


def test_c25_memory_is_flat(make_server, monkeypatch) -> None:
    server = make_server(hbm=8, dram=8, nvme=32)
    # What is remembered for explanations and predictions is bounded far above this test.
    monkeypatch.setattr(ahead, "MOST_SESSIONS", 50)
    monkeypatch.setattr(server.cache.ahead, "_returns", Returns(50))
    monkeypatch.setattr(server.cache.explain, "history", History(50))
    prompts = [server.prompt(2, s) for s in range(40)]

    def round_of(n: int) -> int:
        for number in range(n):
            server.serve(prompts[number % 40])
        server.settle()
        gc.collect()
        return len(gc.get_objects())

    round_of(200)
    before = round_of(200)
    after = round_of(600)
    assert after - before < 400
    cache = server.cache
    assert not cache.waiting and not cache._loads and cache._remembered <= 1 << 20
    assert len(cache.mover.tree.runs) <= server.table.n_handles and not cache.mover._jobs


def test_c26_dram_smaller_than_hbm(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    hits = 0
    for number in range(40):
        hits += server.serve(server.prompt(3, number % 12)).storage
        server.settle()
        server.check()
    assert server.store.used_slots >= 30 and hits > 0
    long = server.prompt(7, 99)
    for _ in range(3):
        server.serve(long[:12])
        server.settle()
        done = server.serve(long)
        server.settle()
        server.evict_hbm()
    assert done.hit % 4 == 0


def test_c27_a_long_chain_does_not_pin_everything(make_server) -> None:
    server = make_server(hbm=8, dram=8, nvme=64)
    chain = server.prompt(7, 1)
    bring_to_dram(server, chain)
    others = [server.prompt(3, s) for s in (2, 3)]
    request = server.request(chain)
    server.arrive(request)
    server.events()
    assert server.admit(request)
    server.start_loads()
    server.forward(request)
    assert request.hit == 28
    for other in others:
        server.serve(other)
        server.settle()
    server.evict_hbm()
    assert not server.table.lease.any() and not server.table.hold.any()
    assert server.serve(chain).hit == 28
    server.settle()
    server.evict_hbm()
    assert [server.serve(other).hit for other in others] == [12, 12]


def test_c28_misses_cost_nothing(make_server) -> None:
    server = make_server(hbm=8, dram=8, nvme=64)
    for seed in range(4):
        bring_to_dram(server, server.prompt(2, seed))
    before = (vars(server.cache.mover.stats).copy(), server.table.epoch, counted(server.store))
    for seed in range(1000):
        request = server.request(server.prompt(2, 10_000 + seed))
        server.arrive(request)
        assert server.cache.check_prefetch_progress(request.handle)
        assert server.match(request).host_hit_length == 0
        server.abort(request)
    assert (vars(server.cache.mover.stats), server.table.epoch, counted(server.store)) == before


def test_c29_a_chunked_prompt_counts_once_and_comes_back(make_server) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    server = make_server(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(9, 1)
    request = server.request(prompt)
    rows = server.allocator.alloc(36)
    server.compute(request, rows, 0)
    for end in (12, 24, 36):
        server.cache.insert(
            InsertParams(
                key=request.key[:end], value=rows[:end].clone(), prev_prefix_len=end - 12, inserted_len=end - 12
            )
        )
        server.events()
    server.settle()
    assert server.cache.mover.stats.written == 9 and server.store.used_slots == 9
    server.evict_hbm()
    server.demote_all()
    assert server.serve(prompt).storage == 36


def test_c30_reads_exactly_what_is_missing(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(8, 1)
    server.serve(prompt[:20])
    server.settle()
    server.serve(prompt)
    server.settle()
    server.evict_hbm(3)
    server.demote_all()
    before = server.store.stats()["read_pages"]
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (20, 0, 12)
    assert server.store.stats()["read_pages"] - before == 3


def test_deadline_takes_what_has_arrived(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, threads=1)
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.prefill_rate(20)
    server.cache.mover.promotions.job_pages = 2
    held = server.engine.hold("read", skip=4)
    done = server.serve(prompt)
    assert done.storage == done.hit == 16
    held.release()
    server.settle()
    server.check()
    assert not server.table.hold.any()


def test_abort_releases_and_cancels(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, threads=1)
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert held.wait(1) and server.table.held == 6
    server.abort(request)
    held.release()
    server.settle()
    server.check()
    assert server.table.held == 0 and server.table.count[State.LOST] == 0
    assert server.serve(prompt).hit == 24


def test_eviction_while_queued_asks_again(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(5, 1)
    server.serve(prompt)
    server.settle()
    request = server.request(prompt)
    server.arrive(request)
    server.evict_hbm()
    server.demote_all()
    for _ in range(100_000):
        server.events()
        if server.admit(request):
            break
    server.start_loads()
    server.forward(request)
    assert (request.device, request.host, request.storage) == (0, 0, 20)


def test_dram_only_tier(make_either) -> None:
    server = make_either(hbm=8, dram=16, nvme=0)
    assert server.store is None and server.table.n_handles == 16
    for seed in range(10):
        server.serve(server.prompt(3, seed))
        server.settle()
        server.check()
    server.evict_hbm()
    assert server.serve(server.prompt(3, 9)).host == 12
    assert server.serve(server.prompt(3, 0)).hit == 0


def test_full_nvme_forgets_the_coldest_leaf_first(make_server) -> None:
    server = make_server(hbm=8, dram=8, nvme=16)
    for seed in range(20):
        server.serve(server.prompt(3, seed))
        server.settle()
        server.check()
    assert server.store.used_slots <= 16
    server.evict_hbm()
    assert server.serve(server.prompt(3, 19)).hit == 12
    assert server.serve(server.prompt(3, 0)).hit == 0


def test_dead_disk_keeps_serving_from_dram(make_server) -> None:
    server = make_server(hbm=8, dram=8, nvme=64)
    server.engine.error("write", errno.ENOSPC)
    mover = server.cache.mover
    server.serve(server.prompt(3, 0))
    for _ in range(10_000):
        server.events()
        if not server.store.writable:
            break
        mover.io_done.wait(0.005)
    assert mover.writes.failing and not mover.writes.hopeless
    now = mover._clock() + LOSSY_AFTER_S
    mover.writes._clock = lambda: now
    for seed in range(1, 12):
        server.serve(server.prompt(3, seed))
        server.settle_transfers()
    server.evict_hbm()
    assert server.serve(server.prompt(3, 11)).host == 12
    stats = mover.stats
    assert server.table.count[State.CLEAN] == 0 and stats.write_failures > 0 and stats.lost > 0
    server.check()


def test_controller_sees_handles_not_frames(make_server) -> None:
    server = make_server(hbm=8, dram=4, nvme=64)
    pool = server.cache._pool
    taken = pool.alloc(4 * 4)
    assert pool.available_size() == 64 * 4 and pool.alloc(4) is None
    domain = pool.shared_allocation_domain
    assert domain.alloc_many([("kv", 4), ("kv", 4)]) is None
    server.cache.mover.fill_failed(pool.pages_of(taken))
    pool.free(taken)
    got = domain.alloc_many([("kv", 4), ("kv", 8)])
    assert got is not None and [len(t) for t in got] == [4, 8]
    assert isinstance(got[0], torch.Tensor) and got[0].dtype == torch.int64
    for tokens in got:
        server.cache.mover.fill_failed(pool.pages_of(tokens))
        pool.free(tokens)
    with pytest.raises(AssertionError, match="double free"):
        pool.free(got[0])
    assert array("q", got[0].tolist())[0] % 4 == 0 and np.asarray(got[1]).shape == (8,)
