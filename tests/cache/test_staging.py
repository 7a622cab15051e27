"""Staging: DRAM and HBM hold different pages, and what leaves HBM is in DRAM by then."""

from __future__ import annotations

import numpy as np
import pytest
from harness import PAGE
from test_cases import hold_acks

from radixtier.tree.residency import COPY, HBM, State


@pytest.fixture
def server(make_server, clock):
    return make_server(hbm=16, dram=32, nvme=256, clock=clock, chunk=2)


def in_hbm(server) -> set[int]:
    return set(np.flatnonzero(server.table.mark & HBM).tolist())


def really_in_hbm(server, prompts) -> set[int]:
    """Handles of the pages that HBM has, by SGLang's own word."""
    found: set[int] = set()
    for prompt in prompts:
        result = server.match(server.request(prompt), with_req=False)
        pages = server.cache.last_pages(result.best_match_node, len(prompt) // PAGE)
        found |= set(pages[: result.device_prefix_len // PAGE].tolist())
    return found


def test_steady_load_keeps_dram_for_what_hbm_has_not(server, clock) -> None:
    """D=16 H=32 S=256, 24 prompts of 3 pages: half as much again as both can hold."""
    prompts = [server.prompt(3, seed) for seed in range(24)]
    left = found = both = steps = 0
    for number in range(120):
        prompt = prompts[(number * 7) % 24]
        before = in_hbm(server)
        request = server.request(prompt)
        server.arrive(request)
        while not server.admit(request):
            server.events()
        gone = np.array(sorted(before - in_hbm(server)), np.int64)
        server.start_loads()
        server.forward(request)
        server.settle()
        server.check()
        clock.advance(0.2)
        server.settle()
        if number >= 48:
            left += len(gone)
            found += int(server.table.in_dram(gone).sum())
            both += int(((server.table.mark & HBM != 0) & (server.table.frame >= 0)).sum())
            steps += 1
    assert left > 100
    assert found == left, "pages left HBM that were not in DRAM"
    assert both / steps <= 8, "more than what leaves HBM next is in DRAM as well"
    assert in_hbm(server) == really_in_hbm(server, prompts)
    stats = server.cache.mover.stats
    assert stats.staged > 100 and stats.lost == 0 and stats.written == 72
    print(left, found, both / steps, stats)


def test_a_node_that_leaves_hbm_whole_is_in_dram_whole(server, clock) -> None:
    """Prompts of 7 pages, more than the margin that is kept copied."""
    prompts = [server.prompt(7, seed) for seed in range(5)]
    left = found = 0
    for number in range(30):
        before = in_hbm(server)
        server.serve(prompts[number % 5])
        gone = np.array(sorted(before - in_hbm(server)), np.int64)
        left += len(gone) * (number >= 10)
        found += int(server.table.in_dram(gone).sum()) * (number >= 10)
        server.settle()
        clock.advance(0.2)
        server.settle()
    assert left >= 100
    assert found == left, "pages left HBM that were not in DRAM"


def test_copies_do_not_push_each_other_out_for_ever(make_server, clock) -> None:
    """D=24 H=16: a request that waits holds 10 frames, and HBM is about to lose more pages than the others can take."""
    server = make_server(hbm=24, dram=16, nvme=200, clock=clock, chunk=6)
    prompts = [server.prompt(10, 0), *(server.prompt(3, seed) for seed in range(1, 12))]
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    server.arrive(server.request(prompts[0]))
    staged = []
    for _ in range(30):
        clock.advance(0.2)
        server.settle()
        staged.append(server.cache.mover.stats.staged)
    assert server.table.held == 10 and staged[-1] == staged[10]


def test_together_they_hold_more_than_a_mirror_would(server, clock) -> None:
    """14 prompts of 3 pages fit into HBM and DRAM together, not into DRAM alone: nothing is read from NVMe."""
    prompts = [server.prompt(3, seed) for seed in range(14)]
    for number in range(14 * 4):
        server.serve(prompts[number % 14])
        server.settle()
        clock.advance(0.2)
        server.settle()
    before = server.store.stats()["read_pages"]
    for prompt in prompts:
        assert server.serve(prompt).hit == 12
        server.settle()
        clock.advance(0.2)
        server.settle()
    reads = server.store.stats()["read_pages"] - before
    assert reads == 0, f"{reads} pages were read"


def nearly_cold(server, pages=4):
    """A prompt in HBM whose pages are on NVMe only, as far as DRAM goes."""
    prompt = server.prompt(pages, 1)
    server.serve(prompt)
    server.settle()
    run = server.cache.mover.tree.run_of(server.cache.last_page(server.match(server.request(prompt)).best_match_node))
    handles = server.cache.mover.tree.pages_of(run)
    server.cache.mover.give_up_frames(handles)
    assert server.table.is_cold(handles).all()
    return prompt, run, handles


def test_copy_has_the_right_bytes_and_keeps_its_slot(server) -> None:
    prompt, run, handles = nearly_cold(server)
    slots = server.table.slot[handles].copy()
    assert server.cache.copy_down(run, handles[1:3]) == 2
    assert (server.table.flight[handles[1:3]] & COPY).all()
    server.check()
    server.settle()
    assert (server.table.state[handles] == [State.COLD, State.CLEAN, State.CLEAN, State.COLD]).all()
    assert (server.table.slot[handles] == slots).all()
    server.evict_hbm()
    done = server.serve(prompt)  # compares every byte
    assert (done.host, done.storage) == (8, 8)
    assert server.cache.mover.stats.staged == 2 and server.cache.mover.stats.written == 4
    server.check()


def test_no_frames_no_copy(make_server, clock) -> None:
    server = make_server(hbm=16, dram=4, nvme=64, clock=clock, chunk=2)
    _, run, handles = nearly_cold(server)
    other = server.prompt(4, 2)
    held = server.engine.hold("write")  # so that nothing in DRAM is clean
    server.serve(other)
    server.settle_transfers()
    assert server.table.free_frames == 0
    assert server.cache.copy_down(run, handles) == 0
    assert not server.table.flight[handles].any() and server.table.is_cold(handles).all()
    server.check()
    held.release()
    server.settle()
    assert server.cache.copy_down(run, handles) == 4
    server.settle()
    server.check()


def test_page_in_use_is_not_copied(server) -> None:
    _, run, handles = nearly_cold(server)
    server.table.acquire_hold(handles[:2])
    assert server.cache.copy_down(run, handles) == 2
    server.settle()
    assert server.table.is_cold(handles[:2]).all()
    server.table.release_hold(handles[:2])
    assert server.cache.copy_down(run, handles[:2]) == 2
    # And not twice while it is under way.
    assert server.cache.copy_down(run, handles[:2]) == 0
    server.settle()
    server.check()


def test_what_left_hbm_meanwhile_is_not_copied(server) -> None:
    _, run, handles = nearly_cold(server)
    server.evict_hbm()
    assert server.cache.copy_down(run, handles) == 0
    assert not in_hbm(server)
    server.check()


def test_node_being_copied_stays_in_hbm(server) -> None:
    prompt, run, handles = nearly_cold(server)
    held = hold_acks(server)
    assert server.cache.copy_down(run, handles) == 4
    server.evict_hbm()
    assert server.match(server.request(prompt), with_req=False).device_prefix_len == 16
    held.release()
    server.settle()
    assert server.table.in_dram(handles).all()
    server.evict_hbm()
    assert server.match(server.request(prompt), with_req=False).device_prefix_len == 0
    server.check()
    server.cache.sanity_check()


def test_request_for_a_page_that_is_being_copied(server) -> None:
    prompt, run, handles = nearly_cold(server)
    held = hold_acks(server)
    assert server.cache.copy_down(run, handles) == 4
    request = server.request(prompt)
    server.arrive(request)
    assert server.admit(request) and request.device == 16
    server.start_loads()
    aborted = server.request(prompt)
    server.arrive(aborted)
    server.abort(aborted)
    held.release()
    server.forward(request)
    server.settle()
    server.check()
    assert server.table.in_dram(handles).all() and not server.table.hold.any()


def test_flush_during_a_copy(server) -> None:
    prompt, run, handles = nearly_cold(server)
    held = hold_acks(server)
    assert server.cache.copy_down(run, handles) == 4
    server.cache.reset()
    server.allocator.clear()
    held.release()
    server.settle()
    server.check()
    assert server.table.free_frames == 32 and server.table.free_handles == server.table.n_handles
    assert server.cache.mover.stats.staged == 0
    assert server.serve(prompt).hit == 0
    server.settle()
    server.check()


def test_what_is_being_copied_is_not_forgotten(server) -> None:
    """The tree cannot free what is locked; once the copy is over it can."""
    prompt, run, handles = nearly_cold(server)
    held = hold_acks(server)
    assert server.cache.copy_down(run, handles) == 4
    assert server.cache.evict_host(64 * PAGE) == 0
    held.release()
    server.settle()
    server.evict_hbm()
    assert server.cache.evict_host(64 * PAGE) == 16
    server.check()
    assert server.serve(prompt).hit == 0


def test_copying_is_no_use_and_comes_to_an_end(server, clock) -> None:
    """What is copied is not warmer for it; without requests, what is about to leave is copied, and then nothing."""
    for seed in range(14):
        server.serve(server.prompt(3, seed))
        server.settle()
    tree, stats = server.cache.mover.tree, server.cache.mover.stats
    uses = {number: (run.uses, run.used) for number, run in tree.runs.items()}
    order = list(tree.above)
    for _ in range(50):
        clock.advance(0.2)
        server.settle()
    assert 0 < stats.staged <= 4
    assert {number: (run.uses, run.used) for number, run in tree.runs.items()} == uses
    assert list(tree.above) == order
    server.check()


def test_hbm_has_what_was_computed_instead_of_read(server) -> None:
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle()
    server.evict_hbm()
    server.demote_all()
    server.drive(1000.0, learns=False)
    server.cache.waiting._probe._next = float("inf")
    assert not in_hbm(server)
    assert server.serve(prompt).hit == 0
    assert in_hbm(server) == really_in_hbm(server, [prompt]) and len(in_hbm(server)) == 4
    server.evict_hbm()
    assert not in_hbm(server)
