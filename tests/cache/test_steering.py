"""Hints on the real cache: what each kind does, what it cannot do, and that nothing of it stays behind."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest
from harness import PAGE, SecondUse

from radixtier.control import Target
from radixtier.mover.promotions import SPARE_SHARE
from radixtier.policy.hints import TTL_S, Kind, Status, read_hint
from radixtier.policy.pins import Tier
from radixtier.tree.residency import State
from radixtier.units import BadValue


def envelope(*actions) -> SimpleNamespace:
    """What a request carries; each action is a kind and its fields."""
    return SimpleNamespace(
        actions=[
            SimpleNamespace(action_id=str(number), action_type=kind.value, action_version="1", payload=fields)
            for number, (kind, fields) in enumerate(actions)
        ]
    )


def give(server, kind: Kind, prompt=None, *, target: Target | None = None, **fields):
    """Give a hint about a prompt as the control endpoint does; returns its outcome."""
    steering = server.cache.steering
    path = steering.path_of(target or Target(array("q", prompt)))
    return steering.carry_out(read_hint(kind, "", fields), path)


def press(server, pages=None, seed=900) -> None:
    """Serve as much else as DRAM holds, twice."""
    for number in range(2 * (pages or server.table.n_frames) // 3 + 1):
        server.serve(server.prompt(3, seed + number))
        server.settle()
        server.clock.advance(0.2)  # else nothing that leaves HBM is copied down
    server.evict_hbm()


def below(server, prompt):
    return server.cache._path(server.match(server.request(prompt), with_req=False)).pages


def in_dram(server, prompt) -> int:
    pages = below(server, prompt)
    return int(server.table.in_dram(pages).sum())


def store_all(server, *prompts) -> None:
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    server.evict_hbm()


@pytest.fixture
def server(make_server, clock):
    return make_server(hbm=8, dram=16, nvme=64, clock=clock, chunk=2)


# ---- how they come ------------------------------------------------------------------------------


@pytest.mark.parametrize("sglangs_own", [False, True])
def test_hints_of_a_request_are_carried_out_when_its_turn_ends(server, sglangs_own) -> None:
    hints = envelope((Kind.PIN, {"ttl_s": 60}), (Kind.PREFETCH, {"by_s": 9}), (Kind.RELEASE, {"what": 1}))
    if sglangs_own:
        from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

        actions = [vars(action) for action in hints.actions]
        hints = decode_kv_hints_envelope({"protocol_version": "1", "message_id": "m", "actions": actions})
    prompt = server.prompt(4, 1)
    request = server.serve(prompt, session="chat", hints=hints)
    assert server.record(request).hints == []  # its backup is still to come
    server.settle()
    outcomes = {outcome["action_id"]: outcome for outcome in server.record(request).hints}
    assert outcomes["0"]["status"] == "accepted" and outcomes["0"]["tokens_granted"] == 16
    assert outcomes["1"]["status"] == "deferred"
    assert outcomes["2"]["status"] == "rejected" and "what" in outcomes["2"]["reason"]
    press(server)
    assert in_dram(server, prompt) == 4


def test_ways_to_name_a_path(server) -> None:
    prompt = server.prompt(4, 1)
    server.serve(prompt, "lora", session="chat")
    server.settle()
    steering = server.cache.steering
    by_tokens = steering.path_of(Target(array("q", prompt), extra_key="lora")).tolist()
    assert len(by_tokens) == 4
    assert steering.path_of(Target(session="chat")).tolist() == by_tokens
    run = server.cache.mover.tree.run_of(by_tokens[-1])
    assert steering.path_of(Target(node=run)).tolist() == by_tokens
    server.cache.tokenizer = SimpleNamespace(encode=lambda text: [int(word) for word in text.split()])
    text = " ".join(map(str, prompt))
    assert steering.path_of(Target(text=text, extra_key="lora")).tolist() == by_tokens
    assert len(steering.path_of(Target(text=text))) == 0  # another namespace
    assert give(server, Kind.PIN, target=Target(text=text)).status is Status.REJECTED


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Target(session="nobody"), "nobody"),
        (Target(node=77), "77"),
        (Target(text="1 2 3"), "no tokenizer"),
        (Target(array("q", [1, 2])), "less than a page"),
    ],
)
def test_targets_that_mean_nothing_are_told_so(server, target, says) -> None:
    with pytest.raises(BadValue, match=says):
        server.cache.steering.path_of(target)


# ---- pin and share ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.PIN, Kind.SHARE])
def test_pin_keeps_pages_in_dram_until_its_time_is_over(server, clock, kind) -> None:
    prompt, other = server.prompt(4, 1), server.prompt(4, 2)
    store_all(server, prompt, other)
    assert give(server, kind, prompt, ttl_s=60).status is Status.ACCEPTED
    press(server)
    assert (in_dram(server, prompt), in_dram(server, other)) == (4, 0)
    clock.advance(61)
    press(server, seed=700)
    assert in_dram(server, prompt) == 0
    assert server.cache.steering.pins.held(Tier.DRAM, clock.now) == 0


def test_pin_of_what_is_on_nvme_brings_it_up(server) -> None:
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    server.demote_all()
    assert give(server, Kind.PIN, prompt).status is Status.DEFERRED
    server.settle()
    assert in_dram(server, prompt) == 4
    assert server.cache.mover.stats.promoted_by["hint"] == 4


def test_pins_are_capped_and_do_not_push_out_earlier_ones(server) -> None:
    first, second = server.prompt(3, 1), server.prompt(6, 2)
    store_all(server, first, second)
    assert server.cache.steering.pins.cap(Tier.DRAM) == 4
    assert give(server, Kind.PIN, first).status is Status.ACCEPTED
    outcome = give(server, Kind.PIN, second)
    assert (outcome.status, outcome.granted, outcome.asked) == (Status.CLIPPED, PAGE, 6 * PAGE)
    assert "cap" in outcome.reason
    assert give(server, Kind.PIN, server.prompt(3, 900), target=Target(array("q", second))).granted == PAGE
    press(server)
    assert (in_dram(server, first), in_dram(server, second)) == (3, 1)


def test_pins_give_way_when_nothing_else_is_left(make_server, clock) -> None:
    server = make_server(hbm=16, dram=12, nvme=64, clock=clock)
    pinned, wanted = server.prompt(3, 1), server.prompt(12, 2)
    server.serve(wanted[:24])
    server.settle()
    store_all(server, wanted)
    server.demote_all()
    store_all(server, pinned)
    assert give(server, Kind.PIN, pinned).status is Status.ACCEPTED
    request = server.serve(wanted)
    assert request.storage == 11 * PAGE  # all that may be held at once, one page of what was pinned included
    server.settle()
    server.check()
    assert server.serve(pinned).hit == 3 * PAGE


def test_released_pin_is_none(server) -> None:
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    give(server, Kind.PIN, prompt)
    assert give(server, Kind.RELEASE, prompt).status is Status.ACCEPTED
    assert give(server, Kind.RELEASE, prompt).status is Status.REJECTED
    press(server)
    assert in_dram(server, prompt) == 0


def test_share_is_never_filtered_from_nvme(make_server, clock) -> None:
    server = make_server(hbm=8, dram=16, nvme=64, admission=SecondUse, clock=clock, chunk=2)
    shared, other = server.prompt(4, 1), server.prompt(4, 2)
    server.serve(shared, hints=envelope((Kind.SHARE, {})))
    server.serve(other)
    server.settle()
    assert server.cache.mover.stats.written == 4
    server.evict_hbm()
    press(server)
    clock.advance(TTL_S + 1)
    press(server, seed=700)
    assert server.serve(shared).hit == 16 and server.serve(other).hit == 0


def test_pin_of_what_was_forgotten_does_not_use_up_the_cap(make_server, clock) -> None:
    server = make_server(hbm=8, dram=8, nvme=8, clock=clock)
    gone = server.prompt(2, 1)
    store_all(server, gone)
    assert give(server, Kind.PIN, gone, ttl_s=80_000).status is Status.ACCEPTED
    give(server, Kind.DEMOTE, gone)
    server.settle()
    give(server, Kind.PIN, gone, ttl_s=80_000)
    server.cache.evict_host(64 * PAGE)
    assert server.serve(gone).hit == 0
    server.settle()
    here = server.prompt(2, 2)
    store_all(server, here)
    assert give(server, Kind.PIN, here).status is Status.ACCEPTED


# ---- retain -------------------------------------------------------------------------------------


def test_retained_path_survives_what_makes_the_tree_forget(make_server, clock) -> None:
    server = make_server(hbm=8, dram=8, nvme=24, clock=clock)
    kept, other = server.prompt(4, 1), server.prompt(4, 2)
    store_all(server, kept, other)
    assert give(server, Kind.RETAIN, kept, ttl_s=60).status is Status.ACCEPTED
    press(server, pages=48)
    assert server.cache.mover.tree.runs
    assert server.serve(other).hit == 0 and server.serve(kept).hit == 16
    server.settle()
    server.cache.sanity_check()
    clock.advance(61)
    press(server, pages=48, seed=700)
    assert server.serve(kept).hit == 0
    server.settle()
    server.check()


@pytest.mark.parametrize("ends", ["released", "over", "gave way", "split"])
def test_no_lock_is_left_behind(make_server, clock, ends) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    prompt = server.prompt(6, 1)
    store_all(server, prompt)
    assert give(server, Kind.RETAIN, prompt, ttl_s=60).status is Status.ACCEPTED
    if ends == "released":
        give(server, Kind.RELEASE, prompt)
    elif ends == "split":
        server.serve(prompt[:12] + server.prompt(3, 2))
        server.settle()
        give(server, Kind.RELEASE, prompt)
    elif ends == "over":
        clock.advance(61)
        server.events()
    else:
        for _ in range(3):
            server.cache._evict_leaves(64)
    server.settle()
    server.cache.sanity_check()
    server.evict_hbm()
    server.cache.evict_host(64 * PAGE)
    assert not server.cache.mover.tree.runs and not server.cache.steering._retained
    assert server.table.free_handles == server.table.n_handles
    server.cache.sanity_check()


def test_retains_are_capped(make_server, clock) -> None:
    server = make_server(hbm=8, dram=8, nvme=8, clock=clock)
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    outcome = give(server, Kind.RETAIN, prompt)
    assert (outcome.status, outcome.granted) == (Status.CLIPPED, 2 * PAGE)


def test_without_nvme_nothing_can_be_kept_there(make_server, clock) -> None:
    server = make_server(hbm=8, dram=8, nvme=0, clock=clock)
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    assert give(server, Kind.RETAIN, prompt).status is Status.REJECTED
    assert give(server, Kind.PIN, prompt).granted == 2 * PAGE
    assert give(server, Kind.PREFETCH, prompt).status is Status.ACCEPTED
    assert give(server, Kind.DEMOTE, prompt).status is not Status.ACCEPTED


def test_path_of_an_earlier_run_can_be_retained(make_server, clock, tmp_path) -> None:
    before = make_server(hbm=8, dram=8, nvme=24, clock=clock, directory=tmp_path / "store")
    kept = before.prompt(4, 1)
    store_all(before, kept)
    before.close()
    server = make_server(hbm=8, dram=8, nvme=24, clock=clock, directory=tmp_path / "store")
    server.events()
    assert give(server, Kind.RETAIN, kept, ttl_s=60).status is Status.ACCEPTED
    press(server, pages=48)
    assert server.serve(kept).hit == 16


# ---- demote and prefetch ------------------------------------------------------------------------


def test_demoted_path_gives_up_its_frames_at_once(server) -> None:
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    free = server.table.free_frames
    assert give(server, Kind.DEMOTE, prompt).status is Status.ACCEPTED
    assert server.table.free_frames == free + 4 and server.table.is_cold(below(server, prompt)).all()
    assert server.serve(prompt).storage == 16


def test_demote_writes_first(make_server, clock) -> None:
    server = make_server(hbm=8, dram=16, nvme=64, admission=SecondUse, clock=clock, chunk=2)
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle()
    assert server.cache.mover.stats.written == 0
    held = server.engine.hold("write")
    outcome = give(server, Kind.DEMOTE, prompt)
    assert outcome.status is Status.DEFERRED
    server.events()
    assert held.wait(1) and server.table.count[State.COLD] == 0
    held.release()
    server.settle()
    server.events()
    assert server.table.count[State.COLD] == 4 and server.cache.mover.stats.lost == 0
    server.evict_hbm()
    assert server.serve(prompt).storage == 16


def test_demoted_path_leaves_hbm_when_asked_to(server) -> None:
    prompt, other = server.prompt(4, 1), server.prompt(4, 2)
    server.serve(prompt)
    server.serve(other)
    server.settle()
    assert give(server, Kind.DEMOTE, prompt, hbm=True).status is Status.ACCEPTED
    assert server.table.is_cold(below(server, prompt)).all()
    server.check()
    again, untouched = server.serve(prompt), server.serve(other)
    assert (again.device, again.storage) == (0, 16) and untouched.device == 16


def test_demoted_path_keeps_in_hbm_what_others_have_there(server) -> None:
    shared = server.prompt(2, 1)
    prompt, other = shared + server.prompt(3, 2), shared + server.prompt(3, 3)
    server.serve(prompt)
    server.serve(other)
    server.settle()
    outcome = give(server, Kind.DEMOTE, prompt, hbm=True)
    assert outcome.status is Status.DEFERRED and "8 tokens" in outcome.reason
    again, untouched = server.serve(prompt), server.serve(other)
    assert (again.device, again.storage) == (8, 12) and untouched.device == 20
    server.check()


def test_demoted_path_leaves_hbm_when_its_request_ends(server) -> None:
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle()
    running = server.request(prompt + server.prompt(1, 2))
    server.arrive(running)
    assert server.admit(running)
    assert give(server, Kind.DEMOTE, prompt, hbm=True).status is Status.DEFERRED
    server.events()
    assert server.match(server.request(prompt), with_req=False).device_prefix_len == 16
    server.forward(running)
    server.settle()
    give(server, Kind.DEMOTE, prompt + server.prompt(1, 2), hbm=True)
    for _ in range(3):
        server.events()
    assert server.match(server.request(prompt), with_req=False).device_prefix_len == 0
    server.check()


def test_demote_ends_a_pin(server) -> None:
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    give(server, Kind.PIN, prompt)
    give(server, Kind.DEMOTE, prompt)
    assert in_dram(server, prompt) == 0 and server.cache.steering.pins.held(Tier.DRAM, server.clock.now) == 0


def test_prefetch_brings_a_path_up_now_or_in_time(server, clock) -> None:
    now, later = server.prompt(4, 1), server.prompt(4, 2)
    store_all(server, now, later)
    server.demote_all()
    assert give(server, Kind.PREFETCH, now).status is Status.DEFERRED
    assert give(server, Kind.PREFETCH, later, by_s=10).status is Status.DEFERRED
    server.settle()
    assert (in_dram(server, now), in_dram(server, later)) == (4, 0)
    clock.advance(9.0)
    server.settle()
    assert in_dram(server, later) == 0
    clock.advance(0.99999)
    server.settle()
    assert in_dram(server, later) == 4
    assert give(server, Kind.PREFETCH, later).status is Status.ACCEPTED
    assert (server.serve(now).host, server.serve(later).host) == (16, 16)
    assert server.cache.mover.stats.ahead_used["hint"] == 8


def test_span_limits_what_is_done(server) -> None:
    prompt = server.prompt(6, 1)
    store_all(server, prompt)
    outcome = give(server, Kind.PIN, prompt, end_token=2 * PAGE)
    assert (outcome.status, outcome.granted) == (Status.ACCEPTED, 2 * PAGE)
    press(server)
    assert in_dram(server, prompt) == 2
    assert give(server, Kind.PIN, prompt, start_token=100).status is Status.REJECTED


# ---- flush --------------------------------------------------------------------------------------


def test_flush_forgets_every_hint(server, clock) -> None:
    prompts = [server.prompt(3, seed) for seed in range(4)]
    store_all(server, *prompts)
    give(server, Kind.PIN, prompts[0])
    give(server, Kind.RETAIN, prompts[1])
    give(server, Kind.PREFETCH, prompts[2], by_s=5)
    held = server.engine.hold("write")
    server.serve(prompts[3] + server.prompt(2, 7))
    server.settle_transfers()
    give(server, Kind.DEMOTE, prompts[3] + server.prompt(2, 7))
    server.cache.reset()
    server.allocator.clear()
    held.release()
    steering = server.cache.steering
    assert not steering._retained and not steering._demoting and not steering._later
    assert steering.pins.figures(clock.now)["dram"]["held"] == 0
    server.settle()
    clock.advance(10)
    server.events()
    server.check()
    server.cache.sanity_check()
    for prompt in prompts:
        assert server.serve(prompt).hit == 0
        server.settle()
    server.evict_hbm()
    server.cache.evict_host(100 * PAGE)
    assert server.table.free_handles == server.table.n_handles


def test_a_prefetch_finds_room_where_dram_is_full_and_jobs_are_smaller_than_the_reserve(make_server, clock) -> None:
    server = make_server(hbm=8, dram=64, nvme=256, clock=clock, chunk=2)
    prompt = server.prompt(4, 1)
    store_all(server, prompt)
    for seed in range(50):
        server.serve(server.prompt(3, 900 + seed))
        server.settle()
        clock.advance(0.2)
    assert server.table.free_frames < server.table.n_frames // SPARE_SHARE and in_dram(server, prompt) == 0
    give(server, Kind.PREFETCH, prompt)
    for _ in range(5):
        server.events()
        server.settle()
    assert in_dram(server, prompt) == 4
    assert server.cache.mover.stats.promoted_by["hint"] == 4
