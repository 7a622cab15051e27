"""What comes up before anybody asks: for sessions that are expected back, by idle drives, after a restart."""

from __future__ import annotations

from harness import PAGE
from test_cache_restart import on_record
from test_steering import below, in_dram, store_all

from radixtier.mover import Trigger
from radixtier.policy.returns import LEAST


def run_of(server, prompt) -> int:
    return server.cache.mover.tree.run_of(int(below(server, prompt)[-1]))


def test_session_that_returns_at_a_regular_pace_finds_its_path_in_dram(make_server, clock) -> None:
    server = make_server(hbm=24, dram=32, nvme=256, clock=clock)
    chat, answer = server.prompt(4, 1), 2
    for turn in range(LEAST + 8):
        server.serve(chat, session="chat")
        server.settle()
        clock.advance(20.0)
        if turn % 8 == 7:  # a conversation does not get longer for ever here
            chat, answer = server.prompt(4, 100 + turn), answer + 1
        else:
            chat = chat + server.prompt(1, 1000 + turn)
    server.serve(chat, session="chat")
    server.settle()
    server.evict_hbm()
    server.demote_all()
    pages = len(chat) // PAGE
    clock.advance(10.0)
    for _ in range(3):
        server.settle()
    assert in_dram(server, chat) == 0, "it came up long before it was expected"
    clock.advance(9.0)
    for _ in range(3):
        server.settle()
    assert in_dram(server, chat) == pages
    before = server.store.stats()["read_pages"]
    done = server.serve(chat, session="chat")
    assert (done.host, done.storage) == (len(chat), 0) and server.store.stats()["read_pages"] == before
    stats = server.cache.mover.stats
    assert stats.promoted_by["return"] == stats.ahead_used["return"] == pages
    assert not stats.ahead_wasted


def test_nothing_warmer_leaves_for_what_is_only_expected(make_server, clock) -> None:
    server = make_server(hbm=16, dram=8, nvme=64, clock=clock)
    first, second = server.prompt(7, 1), server.prompt(7, 2)
    store_all(server, second)
    server.demote_all()
    store_all(server, first)
    tree, ahead = server.cache.mover.tree, server.cache.ahead
    tree.expect(run_of(server, first), clock.now + 5)
    tree.expect(run_of(server, second), clock.now + 10)
    assert ahead.bring(run_of(server, second), Trigger.RETURN) == 7
    server.settle()
    # The only free frame may be used, nothing else.
    assert in_dram(server, first) == 7 and in_dram(server, second) <= 1
    tree.expect(run_of(server, second), clock.now + 1)
    assert ahead.bring(run_of(server, second), Trigger.RETURN) >= 6
    server.settle()
    assert in_dram(server, second) == 7 and in_dram(server, first) <= 1
    server.check()


def test_demanded_pages_come_before_expected_ones(make_server, clock) -> None:
    server = make_server(hbm=16, dram=32, nvme=64, clock=clock, threads=1)
    wanted, expected = server.prompt(4, 1), server.prompt(4, 2)
    store_all(server, wanted, expected)
    server.demote_all()
    held = server.engine.hold("read")
    request = server.request(wanted)
    server.arrive(request)
    server.cache.ahead.bring(run_of(server, expected), Trigger.RETURN)
    for _ in range(20):
        server.events()
    assert held.wait(1) and not server.cache.mover.promotions._reading_ahead
    held.release()
    assert server.finish(request).storage == 16
    server.settle()
    assert in_dram(server, expected) == 4


def test_idle_drive_fills_free_frames_with_the_hottest_and_evicts_nothing(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock, idle=True)
    prompts = [server.prompt(4, seed) for seed in range(6)]
    for prompt in prompts:
        store_all(server, prompt)
        clock.advance(0.01)
    server.demote_all()
    demoted = server.cache.mover.stats.demoted
    for _ in range(40):
        clock.advance(0.2)
        server.settle()
    # One frame in sixteen is left to backups, and a path comes up whole or not at all.
    assert [in_dram(server, prompt) for prompt in prompts] == [0, 0, 0, 4, 4, 4]
    assert server.cache.mover.stats.demoted == demoted
    assert server.cache.mover.stats.promoted_by["idle"] == 12
    server.check()


def test_after_a_restart_the_hottest_come_up_before_the_first_request(make_server, clock, tmp_path) -> None:
    before = make_server(hbm=16, dram=16, nvme=64, clock=clock, directory=tmp_path / "store")
    prompts = [before.prompt(4, seed) for seed in range(6)]
    for prompt in prompts:
        store_all(before, prompt)
        clock.advance(5)
    on_record(before)  # what is not there yet cannot be told how warm it is
    store_all(before, prompts[1])
    before.close()
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock, directory=tmp_path / "store", idle=True)
    for _ in range(20):
        clock.advance(0.2)
        server.settle()
    there = [in_dram(server, prompt) for prompt in prompts]
    assert sum(there) == 12 and there[1] == 4 and there[0] == 0, there
    request = server.serve(prompts[1])
    assert (request.host, request.storage) == (16, 0)
    server.check()
