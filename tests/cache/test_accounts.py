"""Accounts of the whole cache: a request counts a node once, and one that goes away leaves everything as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness import PAGE, Moody, SecondUse

from radixtier.tree.residency import State

ABORTS = 10_000


def uses(server: Any) -> set[int]:
    return {run.uses for run in server.cache.mover.tree.runs.values()}


def outstanding(server: Any) -> dict[str, Any]:
    """Everything that is kept on behalf of requests."""
    cache, mover = server.cache, server.cache.mover
    promotions, admission = mover.promotions, mover.parking.admission
    return {
        "leases": int(server.table.lease.sum()),
        "held": (server.table.held, int(server.table.hold.sum())),
        "promotions": (len(promotions._demanded), len(promotions._reading), promotions.demanded_bytes),
        "records": (len(cache.waiting), len(cache._requests), len(cache._ended), len(cache._loads)),
        "inserted": len(cache.explain._inserted),
        "prefill": (len(cache.prefill._running), len(cache.prefill._next.requests)),
        "parked": len(mover.parking),
        "granted": getattr(admission, "granted", 0) - getattr(admission, "refunded", 0),
        "hbm": (server.allocator.available_size(), cache.protected_size()),
        "transfers": (len(cache.ongoing_load_back), len(cache.ongoing_write_through), len(cache._domain._pending)),
        "history": len(cache.explain.history),
        "sessions": (len(cache.ahead._sessions), len(cache.ahead._due)),
        "uses": uses(server),
    }


def test_a_request_counts_once_however_it_is_cut_and_however_often_it_is_admitted(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(6, 1)
    server.serve(prompt[: 3 * PAGE])
    server.settle()
    assert uses(server) == {1}
    request = server.request(prompt)
    server.arrive(request)
    for _ in range(3):
        # Matched many times while it waits.
        server.match(request)
    assert server.admit(request)
    server.start_loads()
    server.compute(request, request.rows, 3)
    server.retract(request)
    server.settle()
    front, back = (server.cache.mover.tree.runs[number] for number in (0, 1))
    assert (front.uses, back.uses) == (2, 1)
    server.finish(request)
    server.settle()
    # Retraction and admission once more: the same request.
    assert (front.uses, back.uses) == (2, 1)
    server.serve(prompt)
    assert (front.uses, back.uses) == (3, 2)
    server.check()


def test_aborted_request_counts_nowhere(make_server) -> None:
    server = make_server(hbm=16, dram=16, nvme=64)
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle()
    for _ in range(5):
        request = server.request(prompt)
        server.arrive(request)
        server.cache.check_prefetch_progress(request.handle)
        server.abort(request)
    assert uses(server) == {1}
    assert server.cache.explain.history.find("r2") is None


@pytest.mark.parametrize("admission", [SecondUse, Moody])
def test_10_000_aborts_leave_everything_as_it_was(make_server, clock, admission) -> None:
    server = make_server(hbm=24, dram=24, nvme=96, eviction="auto", admission=admission, clock=clock)
    chance = random.Random(5)
    prompts = [server.prompt(chance.randint(3, 5), seed) for seed in range(12)]
    for _ in range(3):
        for prompt in prompts:
            server.serve(prompt)
            server.settle()
        clock.advance(2.0)
        server.settle()
    server.evict_hbm()
    before = outstanding(server)
    assert before["history"] and not before["leases"]
    points = dict.fromkeys(("arrived", "asked", "blocked", "admitted", "loading"), 0)
    done = 0
    while done < (ABORTS if admission is SecondUse else ABORTS // 10):
        server.evict_hbm()
        if chance.random() < 0.2:
            server.settle_transfers()
            cold = np.flatnonzero(server.table.unused(np.arange(server.table.n_handles), State.CLEAN))
            server.cache.mover.give_up_frames(cold)
        requests = [server.request(chance.choice(prompts), session=chance.choice([None, "s"])) for _ in range(4)]
        for request in requests:
            server.arrive(request)
            if chance.random() < 0.2:
                points["arrived"] += 1
                server.abort(request)
        server.events()
        for request in list(server.waiting):
            if chance.random() < 0.3:
                points["asked"] += 1
                server.cache.check_prefetch_progress(request.handle)
                server.abort(request)
        admitted = [request for request in list(server.waiting) if server.admit(request)]
        for request in list(server.waiting):
            points["blocked"] += 1
            server.abort(request)
        server.start_loads()
        for request in admitted:
            points["loading" if request.host + request.storage else "admitted"] += 1
            server.abort_running(request)
        done += len(requests)
        if done % 20 == 0:
            server.table.check()
    server.settle()
    server.evict_hbm()
    after = outstanding(server)
    # A request is counted when it is admitted, whatever becomes of it.
    del before["uses"], after["uses"]
    assert after == before
    assert all(points.values()), points
    server.check()
    server.cache.sanity_check()
    server.clock.advance(2.0)
    assert all(server.serve(prompt).hit in range(0, len(prompt) + 1, PAGE) for prompt in prompts)
    print(points)


def test_declined_and_retried_requests_leave_no_trace(make_server) -> None:
    """HBM is full of running requests: a load finds no room, the request is let go and asks again."""
    server = make_server(hbm=8, dram=16, nvme=64)
    prompt, other = server.prompt(4, 1), server.prompt(6, 2)
    server.serve(prompt)
    server.settle()
    server.evict_hbm()
    server.demote_all()
    before = outstanding(server)
    running = server.request(other)
    server.arrive(running)
    assert server.admit(running)
    server.start_loads()
    for _ in range(20):
        request = server.request(prompt)
        server.arrive(request)
        while not server.admit(request):
            server.events()
        assert request.failed_load and request.rows is None
        server.start_loads()
        server.forward(request)
        server.settle_transfers()
    server.abort_running(running)
    server.settle()
    after = outstanding(server)
    del before["uses"], after["uses"]
    assert after == before
    server.check()
    assert server.serve(prompt).hit == 16
