"""Explanations from the real cache: tiers and causes add up to the prompt, and nodes say where they are and why."""

from __future__ import annotations

from harness import PAGE, SecondUse
from test_cases import hold_acks
from test_steering import below, give, press, store_all

from radixtier.explain import Reason
from radixtier.policy.hints import Kind


def whole(record) -> bool:
    """Whether tiers and causes account for every token of the prompt."""
    told = sum(cause.tokens for cause in record.causes)
    return record.hbm + record.dram + record.nvme + told == record.prompt_tokens


def test_tiers_and_causes_add_up(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    prompt = server.prompt(8, 1)
    first = server.serve(prompt[: 4 * PAGE])
    server.settle()
    record = server.record(first)
    assert [(cause.reason, cause.tokens) for cause in record.causes] == [(Reason.NEVER_SEEN, 16)] and whole(record)
    longer = server.serve(prompt)
    server.settle()
    record = server.record(longer)
    assert (record.hbm, record.dram, record.nvme, record.recomputed) == (16, 0, 0, 16)
    assert [(cause.reason, cause.tokens) for cause in record.causes] == [(Reason.NEVER_SEEN, 16)] and whole(record)
    server.evict_hbm()
    pages = below(server, prompt)
    server.cache.mover.give_up_frames(pages[5:])
    mixed = server.serve(prompt)
    record = server.record(mixed)
    assert (record.hbm, record.dram, record.nvme, record.recomputed) == (0, 20, 12, 0)
    assert record.causes == [] and whole(record)


def test_tokens_of_a_page_that_is_not_full_are_always_computed(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    prompt = [*server.prompt(4, 1), 7, 8]
    server.serve(prompt)
    server.settle()
    again = server.serve(prompt)
    server.settle()
    record = server.record(again)
    assert (record.prompt_tokens, record.hbm) == (18, 16)
    assert [(cause.reason, cause.tokens) for cause in record.causes] == [(Reason.ALWAYS, 2)]


def test_evicted_says_when_and_by_which_rule(make_server, clock) -> None:
    server = make_server(hbm=8, dram=8, nvme=16, clock=clock, chunk=2)
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    start = clock.time()
    press(server, pages=48)
    end = clock.time()
    again = server.serve(prompt)
    server.settle()
    record = server.record(again)
    (cause,) = record.causes
    assert (cause.reason, cause.tokens) == (Reason.EVICTED, 16) and whole(record)
    assert cause.rule and start - 1 <= cause.when <= end + 1


def test_lost_by_admission_says_so(make_server, clock) -> None:
    """Pages that may not be written are lost when DRAM needs their frames, and computed again behind their handles."""
    server = make_server(hbm=8, dram=8, nvme=64, admission=SecondUse, clock=clock, chunk=2)
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    press(server)
    assert server.cache.mover.stats.lost >= 4
    again = server.serve(prompt)
    server.settle()
    record = server.record(again)
    assert again.hit == 0 and {cause.reason for cause in record.causes} == {Reason.LOST} and whole(record)
    assert "NVMe" in record.causes[0].detail


def test_load_without_room_in_hbm_is_declined(make_server, clock) -> None:
    server = make_server(hbm=10, dram=16, nvme=64, clock=clock)
    prompt, other = server.prompt(4, 1), server.prompt(5, 2)
    store_all(server, prompt)
    running = server.request(other)
    server.arrive(running)
    assert server.admit(running)
    server.start_loads()
    stock = server.cache.cache_controller.load
    server.cache.cache_controller.load = lambda *args, **kwargs: None
    request = server.serve(prompt)
    server.cache.cache_controller.load = stock
    server.abort_running(running)
    server.settle()
    record = server.record(request)
    assert request.failed_load and (record.dram, record.nvme) == (0, 0)
    assert [(cause.reason, cause.tokens) for cause in record.causes] == [(Reason.DECLINED, 16)] and whole(record)


def test_requests_that_never_got_anywhere_are_not_recorded(make_server, clock) -> None:
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    prompt = server.prompt(4, 1)
    request = server.request(prompt)
    server.arrive(request)
    server.abort(request)
    check = server.request(prompt)
    check.stub.rid = f"{HEALTH_CHECK_RID_PREFIX}_1"
    check.handle = check.stub.cache_request_handle = type(check.handle)(check.stub.rid, 0)
    server.arrive(check)
    server.finish(check)
    server.settle()
    assert len(server.cache.explain.history) == 0


def test_node_says_where_it_is_and_how_it_got_there(make_server, clock) -> None:
    server = make_server(hbm=8, dram=16, nvme=64, clock=clock)
    prompt = server.prompt(6, 1)
    server.serve(prompt[: 4 * PAGE], session="chat")
    server.settle()
    server.serve(prompt, session="chat")
    server.settle()
    explain, tree = server.cache.explain, server.cache.mover.tree
    front, back = explain.node(0), explain.node(1)
    assert (front.parent, front.start_token, front.tokens, front.hits) == (None, 0, 16, 2)
    assert (back.parent, back.start_token, back.tokens, back.hits) == (0, 16, 8, 1)
    assert back.places == {"HBM": 8, "DRAM and NVMe": 8} and back.session == "chat" and front.session is None
    server.evict_hbm()
    give(server, Kind.PIN, prompt[: 4 * PAGE], ttl_s=50)
    server.cache.mover.give_up_frames(tree.pages_of(1))
    front, back = explain.node(0), explain.node(1)
    assert front.places == {"DRAM and NVMe": 16} and front.pinned == {"dram": 50.0}
    assert back.places == {"NVMe": 8} and back.pinned == {}
    assert [event.what for event in back.events] == ["written to NVMe", "left DRAM"]
    assert back.events[-1].why == "lru"
    server.serve(prompt)
    assert "came up to DRAM" in [event.what for event in explain.node(1).events]


def test_answer_is_no_recomputation(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    turn = server.prompt(6, 1)
    request = server.request(turn)
    key = request.key[: 4 * PAGE]  # two pages are the answer
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    request.stub.origin_input_ids = request.key.token_ids[: 4 * PAGE]
    server.cache.match_prefix(MatchPrefixParams(key=key, req=request.stub))
    server.waiting.append(request)
    assert server.admit(request)
    server.start_loads()
    server.forward(request)
    server.settle()
    record = server.record(request)
    assert record.prompt_tokens == 16 and whole(record)
    assert [(cause.reason, cause.tokens) for cause in record.causes] == [(Reason.NEVER_SEEN, 16)]


def test_flush_forgets_who_inserted_what(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    first = server.serve(server.prompt(4, 1))
    server.settle_transfers()
    assert server.record(first).recomputed == 16
    held = hold_acks(server)
    server.serve(server.prompt(4, 2))
    assert server.cache.explain._inserted
    server.cache.reset()
    server.allocator.clear()
    held.release()
    assert not server.cache.explain._inserted and len(server.cache.explain.history) == 2
    third = server.serve(server.prompt(4, 3))
    server.settle()
    assert [cause.tokens for cause in server.record(third).causes] == [16]
