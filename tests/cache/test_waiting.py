"""How long requests wait for NVMe, for what, and in which order their pages come up.

Recompute takes 4 s per page here (1 token/s), by the cache's belief; the clock stands still unless told otherwise.
"""

from __future__ import annotations

import pytest
from harness import PAGE

from radixtier.explain import Reason
from radixtier.mover import promotions
from radixtier.policy.promotion import PROBE_MOST_S, Why

TOO_SLOW = "recomputing"


def bring_to_nvme(server, *prompts) -> None:
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    server.evict_hbm()
    server.demote_all()


def reads(server) -> int:
    return server.store.stats()["read_pages"]


def waiting_of(server, request):
    return server.cache.waiting.get(request.handle)


def causes(server, request) -> dict[Reason, int]:
    return {cause.reason: cause.tokens for cause in server.record(request).causes}


@pytest.fixture
def server(make_server, clock):
    return make_server(hbm=16, dram=16, nvme=64, threads=1, clock=clock)


def half_cold(server, prompt, cold) -> None:
    """Bring a prompt to DRAM, but for the pages at ``cold``, which are on NVMe only."""
    bring_to_nvme(server, prompt)
    assert server.serve(prompt).storage == len(prompt)
    server.settle()
    server.evict_hbm()
    pages = server.cache._path(server.match(server.request(prompt), with_req=False)).pages
    server.cache.mover.give_up_frames(pages[cold])


# ---- for what -----------------------------------------------------------------------------------


def test_split_waits_for_what_pays_and_recomputes_the_rest(server) -> None:
    prompt = server.prompt(10, 1)
    half_cold(server, prompt, [0, 7, 8, 9])
    # Slower than recompute, but one page opens the way to six more.
    server.drive(5.0, learns=False)
    server.cache.waiting._probe._next = float("inf")
    before = reads(server)
    request = server.request(prompt)
    server.arrive(request)
    plan = waiting_of(server, request).plan
    assert (plan.wait_pages, plan.why) == (1, Why.TOO_SLOW)
    assert plan.deadline_s == pytest.approx(7 * 4.0, rel=0.01)
    assert server.table.held == 7
    server.finish(request)
    assert (request.host, request.storage) == (6 * PAGE, PAGE) and reads(server) - before == 1
    record = server.record(request)
    assert (record.dram, record.nvme, record.recomputed) == (24, 4, 12)
    (cause,) = record.causes
    assert (cause.reason, cause.tokens) == (Reason.NOT_WORTH_WAITING, 12) and TOO_SLOW in cause.detail


def test_frames_bound_what_a_request_waits_for(make_server, clock) -> None:
    server = make_server(hbm=16, dram=8, nvme=64, clock=clock)
    prompt = server.prompt(10, 1)
    server.serve(prompt[: 5 * PAGE])
    server.settle()
    bring_to_nvme(server, prompt)
    before = reads(server)
    request = server.serve(prompt)
    assert server.cache.mover.promotions.hold_limit == 7
    assert request.hit == request.storage == 7 * PAGE and reads(server) - before == 7
    assert causes(server, request) == {Reason.DECLINED: 12}
    server.settle()
    server.check()


def test_request_whose_pages_arrive_takes_all_of_them(server) -> None:
    prompt = server.prompt(8, 1)
    bring_to_nvme(server, prompt)
    request = server.serve(prompt)
    assert request.storage == 32 and server.record(request).nvme == 32
    assert server.record(request).causes == [] and server.record(request).recomputed == 0


# ---- how long -----------------------------------------------------------------------------------


def test_deadline_is_what_recomputing_would_take(server, clock) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.drive(0.5)
    server.cache.mover.promotions.job_pages = 2
    held = server.engine.hold("read", skip=4)
    request = server.request(prompt)
    server.arrive(request)
    clock.advance(1000.0)  # before the scheduler asks nobody waits
    assert not server.admit(request)
    while len(server.cache.mover.promotions._reading) > 1:  # two jobs arrive, the third does not
        server.cache.mover._jobs.poll()
    plan = waiting_of(server, request).plan
    assert plan.deadline_s == pytest.approx(6 * PAGE * 1.0, rel=0.01)
    clock.advance(plan.deadline_s - 0.01)
    assert not server.admit(request)
    clock.advance(0.02)
    assert server.admit(request)
    server.start_loads()
    server.forward(request)
    assert request.hit == request.storage == 16
    record = server.record(request)
    assert record.waited_s == pytest.approx(plan.deadline_s, abs=0.1)
    assert causes(server, request) == {Reason.NOT_WORTH_WAITING: 8}
    held.release()
    server.settle()
    server.check()
    assert not server.table.hold.any()


def test_drive_that_collapses_under_a_wait_is_given_up_early(server, clock) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.drive(0.1)
    server.cache.mover.promotions.job_pages = 1
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert not server.admit(request)
    deadline = waiting_of(server, request).plan.deadline_s
    waited = 0.0
    while not server.admit(request):
        clock.advance(0.1)
        waited += 0.1
        server.events()
    assert 0.6 < waited < deadline / 2
    server.start_loads()
    server.forward(request)
    assert request.hit == 0 and causes(server, request) == {Reason.NOT_WORTH_WAITING: 24}
    held.release()
    server.settle()
    server.check()


def test_lost_page_ends_the_wait(server) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.cache.mover.promotions.job_pages = 1
    server.engine.error("read", skip=3)
    request = server.serve(prompt)
    assert request.hit == request.storage == 12 and server.record(request).waited_s == 0.0
    server.engine.clear()
    server.settle()
    assert causes(server, request) == {Reason.LOST: 12}


# ---- drives not worth waiting for ---------------------------------------------------------------


def test_slow_drive_is_asked_for_probes_only(server, clock) -> None:
    prompts = [server.prompt(4, seed) for seed in range(4)]
    bring_to_nvme(server, *prompts)
    server.drive(100.0)
    server.cache.mover.promotions.job_pages = 1
    held = server.engine.hold("read")
    before = held.hits
    for number in range(12):
        request = server.serve(prompts[number % 4])
        assert request.hit == 0 and causes(server, request) == {Reason.NOT_WORTH_WAITING: 16}
        server.settle_transfers()
        server.evict_hbm()
        cold = [server.cache._path(server.match(server.request(p), with_req=False)).pages for p in prompts]
        for pages in cold:
            server.cache.mover.give_up_frames(pages[server.table.unused(pages, 3)])
    assert held.wait(1) and held.hits - before == 1
    clock.advance(PROBE_MOST_S + 1)
    assert server.serve(prompts[1]).hit == 0
    server.events()
    held.release()
    server.settle()
    assert server.cache.mover.stats.promoted_by["probe"] == 2 == server.cache.mover.stats.promoted
    server.check()


def test_drive_that_recovered_is_used_again(server) -> None:
    prompts = [server.prompt(4, seed) for seed in range(3)]
    bring_to_nvme(server, *prompts)
    server.drive(100.0)
    server.cache.mover.promotions.job_pages = 1
    hits = []
    for number in range(12):
        hits.append(server.serve(prompts[number % 3]).storage)
        server.settle()
        server.evict_hbm()
        server.demote_all()
    assert hits[0] == 0 and hits[-1] == 16
    assert server.cache.mover.stats.promoted_by["probe"] >= 1
    assert hits == sorted(hits)


# ---- in which order -----------------------------------------------------------------------------


@pytest.fixture
def one_at_a_time(server, monkeypatch):
    """Let one page be on its way at a time; returns the list to which the slots of each read are added."""
    monkeypatch.setattr(promotions, "READ_JOB_BYTES", server.cache.mover.page_bytes // 2)
    monkeypatch.setattr(promotions, "AHEAD_S", 0.0)
    server.cache.mover.promotions.job_pages = 1
    stock, order = server.store.read, []

    def read(frames, slots, *rest):
        order.append(slots.tolist())
        return stock(frames, slots, *rest)

    monkeypatch.setattr(server.store, "read", read)
    return order


def queue_of(server, n):
    """Requests for ``n`` prompts of 3 pages on NVMe, and which of them each slot belongs to."""
    prompts = [server.prompt(3, seed) for seed in range(n)]
    bring_to_nvme(server, *prompts)
    requests = [server.request(prompt) for prompt in prompts]
    whose = {}
    for number, request in enumerate(requests):
        pages = server.cache._path(server.match(request, with_req=False)).pages
        whose |= dict.fromkeys(server.table.slot[pages].tolist(), number)
    return requests, whose


def run_until_read(server, order, queue, n) -> None:
    """Let the scheduler pass over its queue until ``n`` reads have begun."""
    for _ in range(100_000):
        for request in queue:
            if request in server.waiting:
                server.cache.check_prefetch_progress(request.handle)
        server.events()
        if len(order) >= n:
            return
    raise AssertionError("it stopped reading")


def test_pages_come_up_in_the_order_of_admission(server, one_at_a_time) -> None:
    requests, whose = queue_of(server, 4)
    for request in requests:
        server.arrive(request)
    run_until_read(server, one_at_a_time, requests, 12)
    assert [whose[slot] for (slot,) in one_at_a_time] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert all(server.finish(request).storage == 12 for request in requests)


def test_whoever_moves_to_the_front_is_read_first(server, one_at_a_time) -> None:
    requests, whose = queue_of(server, 4)
    for request in requests:
        server.arrive(request)
    queue = [requests[number] for number in (2, 0, 3, 1)]
    run_until_read(server, one_at_a_time, queue, 12)
    # The first page of the first to arrive was on its way before the scheduler said who comes first.
    assert [whose[slot] for (slot,) in one_at_a_time] == [0, 2, 2, 2, 0, 0, 3, 3, 3, 1, 1, 1]


def test_reads_are_cancelled_with_the_request(server, one_at_a_time) -> None:
    requests, whose = queue_of(server, 3)
    for request in requests:
        server.arrive(request)
    run_until_read(server, one_at_a_time, requests, 4)
    server.abort(requests[1])
    run_until_read(server, one_at_a_time, requests, 7)
    assert [whose[slot] for (slot,) in one_at_a_time] == [0, 0, 0, 1, 2, 2, 2]
    for request in (requests[0], requests[2]):
        assert server.finish(request).storage == 12
    server.settle()
    assert len(one_at_a_time) == 7 and not server.table.hold.any()
    server.check()


def test_reads_go_on_while_others_prefill(server) -> None:
    requests, _ = queue_of(server, 2)
    held = server.engine.hold("read", skip=3)
    for request in requests:
        server.arrive(request)
    while not server.admit(requests[0]):
        server.events()
    server.start_loads()
    assert held.wait(1) and waiting_of(server, requests[1]).promotion.tags
    held.release()
    while not server.admit(requests[1]):
        server.events()
    assert requests[0].lock is not None  # still prefilling
    server.start_loads()
    for request in requests:
        server.forward(request)
    assert [request.storage for request in requests] == [12, 12]


def test_prefill_is_learnt_from_batches(make_server, clock) -> None:
    server = make_server(hbm=64, dram=64, nvme=64, clock=clock, learns=True)
    for seed in range(40):
        request = server.request(server.prompt(8, seed))
        server.arrive(request)
        assert server.admit(request)
        server.start_loads()
        clock.advance(3.2)  # 0.1 s per token
        server.forward(request)
        server.settle_transfers()
        server.evict_hbm()
    assert server.cache.prefill.cost.batches == 40
    assert server.cache.prefill.cost.batch_seconds([(32, 0)]) == pytest.approx(3.2, rel=0.1)
    assert not server.cache.prefill._running
