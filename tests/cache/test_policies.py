"""The shared list of faults (CASES) with every policy in charge: eviction by name, admission by what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from harness import PAGE, Moody, SecondUse, counted

from radixtier.policy.admission import AdmitAll
from radixtier.policy.eviction import NAMES
from radixtier.tree.residency import State

POLICIES = [(name, AdmitAll) for name in NAMES] + [
    (name, kind) for name in ("lru", "auto") for kind in (SecondUse, Moody)
]
every_policy = pytest.mark.parametrize(
    ("eviction", "admission"), POLICIES, ids=[f"{name}-{kind.name}" for name, kind in POLICIES]
)


def push_down(server, prompt) -> None:
    """Use a prompt until all of it is on NVMe, then let it leave HBM and DRAM."""
    for _ in range(60):
        server.serve(prompt)
        server.settle()
        server.clock.advance(1.0)
        server.evict_hbm()
        server.demote_all()
        result = server.match(server.request(prompt), with_req=False)
        if result.host_hit_length == len(prompt) and not result.device_prefix_len:
            pages = server.cache._path(result).pages
            if server.table.is_cold(pages).all():
                return
    raise AssertionError("the prompt never got to NVMe")


def granted_is_written(server) -> bool:
    """Whether what the admission policy granted and did not get back is what was written."""
    admission = server.cache.mover.parking.admission
    written = server.cache.mover.stats.written * server.cache.mover.page_bytes
    return not isinstance(admission, SecondUse) or admission.granted - admission.refunded == written


@every_policy
def test_c24_holds_never_wedge_the_pool(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=16, dram=4, nvme=64, eviction=eviction, admission=admission, clock=clock)
    prompts = [server.prompt(3, s) for s in range(4)]
    for prompt in prompts:
        push_down(server, prompt)
    requests = [server.request(p) for p in prompts]
    for request in requests:
        server.arrive(request)
    assert server.table.held <= server.cache.mover.promotions.hold_limit
    done = server.serve_all(20_000)
    assert [r.storage for r in sorted(done, key=lambda r: r.handle.rid)] == [12] * len(prompts)
    assert server.table.held == 0
    server.settle()
    server.check()
    assert granted_is_written(server)


@every_policy
def test_c26_dram_smaller_than_hbm(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=8, dram=4, nvme=64, eviction=eviction, admission=admission, clock=clock)
    hits = 0
    for number in range(48):
        hits += server.serve(server.prompt(3, number % 12)).storage
        server.settle()
        server.check()
        clock.advance(1.0)
    if admission is AdmitAll:
        assert server.store.used_slots == 36 and hits >= 12 * 3 * PAGE
    push_down(server, server.prompt(3, 99))
    assert server.serve(server.prompt(3, 99)).storage == 12
    server.settle()
    server.check()
    assert granted_is_written(server)


@every_policy
def test_c27_a_long_chain_does_not_pin_everything(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=8, dram=8, nvme=64, eviction=eviction, admission=admission, clock=clock)
    chain, others = server.prompt(7, 1), [server.prompt(3, s) for s in (2, 3)]
    push_down(server, chain)
    for other in others:
        push_down(server, other)
    request = server.request(chain)
    server.arrive(request)
    waiting = [server.request(other) for other in others]
    for other in waiting:
        server.arrive(other)
    assert server.finish(request).storage == 28
    assert [server.finish(other).hit for other in waiting] == [12, 12]
    server.settle()
    server.check()
    assert not server.table.lease.any() and not server.table.hold.any()
    # No sole copy was dropped: there is room below.
    if admission is AdmitAll:
        assert server.table.count[State.LOST] == 0 and server.cache.mover.stats.lost == 0
    server.evict_hbm()
    assert [server.serve(p).hit for p in (chain, *others)] == [28, 12, 12]


@every_policy
def test_c28_misses_cost_nothing(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=8, dram=8, nvme=64, eviction=eviction, admission=admission, clock=clock)
    for seed in range(4):
        push_down(server, server.prompt(2 + seed % 2, seed))
    cache = server.cache

    def figures():
        return cache.mover.stats.to_json(), server.table.epoch, counted(server.store), len(cache.mover.tree.order)

    before = figures()
    for seed in range(300):
        request = server.request(server.prompt(2, 10_000 + seed))
        server.arrive(request)
        assert cache.check_prefetch_progress(request.handle)
        assert server.match(request).host_hit_length == 0
        server.abort(request)
    assert figures() == before
    assert not cache.waiting and not cache._requests


@every_policy
def test_c29_a_chunked_prompt_counts_once_and_comes_back(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, eviction=eviction, admission=admission, clock=clock)
    prompt = server.prompt(9, 1)
    request = server.request(prompt)
    server.arrive(request)
    server.events()
    assert server.admit(request)
    server.start_loads()
    server.compute(request, request.rows, 0)
    server.insert(request, request.rows, chunks=3)
    server.settle()
    runs = server.cache.mover.tree.runs.values()
    assert sum(run.live for run in runs) == 9 and {run.uses for run in runs} == {1}
    server.serve(prompt)
    assert {run.uses for run in runs} == {2}
    push_down(server, prompt)
    assert server.serve(prompt).storage == 36
    assert granted_is_written(server)


@every_policy
def test_c30_reads_exactly_what_is_missing(make_server, clock, eviction, admission) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, eviction=eviction, admission=admission, clock=clock)
    prompt = server.prompt(8, 1)
    push_down(server, prompt[: 5 * PAGE])
    push_down(server, prompt)
    assert server.serve(prompt[: 5 * PAGE]).storage == 5 * PAGE
    before = server.store.stats()["read_pages"]
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (20, 0, 12)
    assert server.store.stats()["read_pages"] - before == 3


@every_policy
def test_what_leaves_dram_first_is_in_hbm_and_what_stays_is_a_prefix(make_server, clock, eviction, admission) -> None:
    """Under pressure frames of pages that HBM has go first; then leaves before their parents, whatever the policy."""
    server = make_server(hbm=64, dram=12, nvme=64, eviction=eviction, admission=admission, clock=clock)
    chats = [server.prompt(2, s) for s in range(3)]
    for turn in range(3):
        for number, chat in enumerate(chats):
            chats[number] = chat + server.prompt(1, 100 + 10 * turn + number)
            push_down(server, chats[number])
    for chat in chats[:2]:
        assert server.serve(chat).storage == 20
        server.evict_hbm()
    server.settle()
    server.serve(chats[2])  # 5 pages more than there is room for: some of the others go
    server.settle()
    for chat in chats[:2]:
        pages = server.cache._path(server.match(server.request(chat), with_req=False)).pages
        there = server.table.in_dram(pages)
        assert (np.sort(there)[::-1] == there).all(), "a page left before one behind it"
    server.check()
