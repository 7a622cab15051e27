"""A second server on the directory of the first: what comes back, and what must not (CASES C15 to C17, C21)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import PAGE, Server

from radixtier.tree.residency import State

SIZES = {"hbm": 24, "dram": 16, "nvme": 64}
WAIT_S = 20.0


def restore_all(server: Server) -> None:
    """Let the scheduler run until everything is back."""
    for _ in range(100_000):
        if server.cache._restoration is None:
            return
        server.events()
    raise AssertionError("the restoration never ended")


def stored_prompts(server: Server, n: int, pages: int) -> list[list[int]]:
    """Serve ``n`` prompts of ``pages`` pages each and let all of them reach NVMe."""
    prompts = [server.prompt(pages, seed) for seed in range(n)]
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    return prompts


def on_record(server: Server) -> None:
    """Wait until the journal knows of everything that was stored."""
    end = time.monotonic() + WAIT_S
    while server.store.stats()["journal_waiting"] and time.monotonic() < end:
        time.sleep(0.005)
    assert not server.store.stats()["journal_waiting"]


def restarted(first: Server, make_server: Any, **options: Any) -> Server:
    """Stop a server gracefully and start another on its directory."""
    first.cache.release_host_resources()
    return started(first.directory, make_server, **options)


def still_restoring(first: Server, make_server: Any, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Stop a server gracefully and start another that has nothing back yet."""
    first.cache.release_host_resources()
    monkeypatch.setattr("radixtier.sglang.restore.FIRST_S", 0.0)
    server: Server = make_server(**SIZES, directory=first.directory)
    assert server.cache._restoration is not None
    return server


def started(directory: Path, make_server: Any, **options: Any) -> Server:
    server: Server = make_server(**{**SIZES, "directory": directory, **options})
    restore_all(server)
    server.check()
    return server


@pytest.mark.parametrize("layout", ["page_first_direct", "layer_first"])
def test_prompts_come_back_whole_from_nvme_and_nothing_is_written_again(make_either: Any, layout: str) -> None:
    backend = {"layer_first": "kernel"}.get(layout, "direct")
    first = make_either(**SIZES, layout=layout, backend=backend)
    prompts = stored_prompts(first, 6, pages=5)
    server = restarted(first, make_either, layout=layout, backend=backend)
    assert server.table.count[State.COLD] == 30 == server.cache.mover.stats.restored
    for prompt in prompts:
        assert server.serve(prompt).storage == 20
    server.settle()
    server.check()
    assert server.cache.mover.stats.written == 0
    server.cache.sanity_check()


def test_c21_what_is_not_stored_yet_is_stored_by_a_graceful_stop(make_either: Any) -> None:
    first = make_either(**SIZES)
    held = first.engine.hold("write")
    root = first.prompt(4, 1)
    first.serve(root)
    first.settle_transfers()
    deep = root + first.prompt(4, 2)
    first.serve(deep)
    first.settle_transfers()
    assert first.table.count[State.CLEAN] == 0
    held.release()
    server = restarted(first, make_either)
    assert server.serve(deep).storage == 32


def test_a_drive_that_fails_during_the_stop_leaves_the_longest_prefix(make_server: Any) -> None:
    first = make_server(**SIZES)
    root = first.prompt(4, 1)
    first.serve(root)
    first.settle()
    first.engine.error("write", errno.EIO)
    deep = root + first.prompt(4, 2)
    first.serve(deep)
    first.settle_transfers()
    server = restarted(first, make_server)
    assert server.serve(deep).storage == 16


def test_branches_share_their_trunk_after_a_restart(make_either: Any) -> None:
    first = make_either(**{**SIZES, "nvme": 128})
    trunk = first.prompt(6, 1)
    branches = [trunk[: 4 * PAGE * (1 + seed % 2) // 2] + first.prompt(3, 10 + seed) for seed in range(6)]
    first.serve(trunk)
    for branch in branches:
        first.serve(branch)
        first.settle()
    used = first.store.used_slots
    server = restarted(first, make_either, nvme=128)
    assert server.store.used_slots == used
    for branch in branches:
        assert server.serve(branch).hit == len(branch)
        server.settle()
    assert server.cache.mover.stats.written == 0
    server.cache.sanity_check()


def test_namespaces_stay_apart_after_a_restart(make_server: Any) -> None:
    first = make_server(**{**SIZES, "nvme": 128})
    prompt = first.prompt(3, 1)
    spaces = [(None, None), ("a", None), (None, "a"), ("a", "bc"), ("ab", "c")]
    for space in spaces:
        first.serve(prompt, *space)
        first.settle()
    server = restarted(first, make_server, nvme=128)
    for space in spaces:
        assert server.serve(prompt, *space).storage == 12, space
    assert server.serve(prompt, "b", None).hit == 0
    assert server.serve(prompt, None, "bc").hit == 0


@pytest.mark.parametrize("other", ["other weights", None])
def test_c17_other_weights_find_nothing(make_server: Any, other: str | None) -> None:
    first = make_server(**SIZES)
    prompt = first.prompt(4, 1)
    first.serve(prompt)
    first.settle()
    server = restarted(first, make_server, weights=other)
    assert server.serve(prompt).hit == 0
    server.settle()
    again = restarted(server, make_server)
    assert again.serve(prompt).hit == 0, "what the others stored is not ours either"


def test_after_a_flush_a_restart_finds_nothing(make_server: Any) -> None:
    first = make_server(**SIZES)
    prompt, later = first.prompt(4, 1), first.prompt(4, 2)
    first.serve(prompt)
    first.settle()
    first.cache.reset()
    first.allocator.clear()
    first.serve(later)
    first.settle()
    server = restarted(first, make_server)
    assert server.serve(prompt).hit == 0
    assert server.serve(later).storage == 16


def test_after_a_weight_update_a_restart_finds_nothing_old_or_new(make_server: Any) -> None:
    first = make_server(**SIZES)
    prompt, later = first.prompt(4, 1), first.prompt(4, 2)
    first.serve(prompt)
    first.settle()
    first.cache.seal_store("weights were updated")
    first.serve(later)
    first.settle()
    first.evict_hbm()
    first.demote_all()
    assert first.serve(later).storage == 16, "in this process everything goes on"
    server = restarted(first, make_server)
    assert server.table.count[State.COLD] == 0
    assert server.serve(prompt).hit == 0 and server.serve(later).hit == 0


def test_a_flush_during_the_restoration_forgets_all_of_it(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_server(**SIZES)
    prompts = stored_prompts(first, 8, pages=4)
    server = still_restoring(first, make_server, monkeypatch)
    server.cache.reset()
    server.settle()
    server.check()
    assert server.table.count[State.FREE] == server.table.n_handles
    wait_for_slots(server)
    for prompt in prompts:
        assert server.serve(prompt).hit == 0


def test_a_graceful_stop_during_the_restoration_loses_nothing(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_server(**SIZES)
    stored_prompts(first, 12, pages=4)
    second = still_restoring(first, make_server, monkeypatch)
    second.cache.release_host_resources()
    third = started(first.directory, make_server)
    assert third.table.count[State.COLD] == 48


def test_a_full_store_forgets_nothing_while_its_paths_come_back(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_server(**SIZES)
    prompts = stored_prompts(first, 16, pages=4)
    on_record(first)
    first.serve(prompts[0])
    first.cache.release_host_resources()
    monkeypatch.setattr("radixtier.sglang.restore.FIRST_S", 0.0)
    monkeypatch.setattr("radixtier.sglang.cache.IDLE_STEP_S", 0.0)
    monkeypatch.setattr("radixtier.sglang.cache.STEP_S", 0.0)
    server = make_server(**SIZES, directory=first.directory)
    for seed in range(100, 103):
        server.serve(server.prompt(4, seed))
        server.settle_transfers()
    assert server.cache.mover.slots_wanted > 0 and server.cache._restoration is not None
    monkeypatch.setattr("radixtier.sglang.cache.IDLE_STEP_S", 0.1)
    restore_all(server)
    server.settle()
    server.evict_hbm()
    assert server.serve(prompts[0]).hit == 16, "the hottest is still there"
    server.check()


def wait_for_slots(server: Server) -> None:
    """Wait until the journal has forgotten what was freed."""
    end = time.monotonic() + WAIT_S
    while server.store.used_slots and time.monotonic() < end:
        server.events()
        time.sleep(0.01)
    assert server.store.used_slots == 0


def test_requests_are_served_while_the_rest_comes_back(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_server(**{**SIZES, "nvme": 256})
    prompts = stored_prompts(first, 40, pages=4)
    first.cache.release_host_resources()
    monkeypatch.setattr("radixtier.sglang.restore.FIRST_S", 0.0)
    monkeypatch.setattr("radixtier.sglang.cache.IDLE_STEP_S", 0.0001)
    monkeypatch.setattr("radixtier.sglang.cache.STEP_S", 0.0001)
    server = make_server(**{**SIZES, "nvme": 256}, directory=first.directory)
    hits = [server.serve(prompt).hit for prompt in prompts]
    restore_all(server)
    server.settle()
    server.check()
    assert set(hits) <= {0, 16}
    # What was computed before its turn came took over its slots, or gave them back.
    assert [server.serve(prompt).hit for prompt in prompts] == [16] * 40
    server.check()
    server.cache.sanity_check()


def test_the_hottest_come_back_first_and_are_evicted_last(make_server: Any) -> None:
    first = make_server(**SIZES)
    prompts = stored_prompts(first, 16, pages=4)
    on_record(first)
    first.serve(prompts[0])
    server = restarted(first, make_server)
    for seed in range(100, 106):
        server.serve(server.prompt(4, seed))
        server.settle()
        server.check()
    server.evict_hbm()
    assert server.serve(prompts[0]).hit == 16
    assert server.serve(prompts[1]).hit == 0, "the coldest made room"


def test_a_smaller_tier_takes_what_fits(make_server: Any) -> None:
    first = make_server(**SIZES)
    prompts = stored_prompts(first, 12, pages=4)
    server = restarted(first, make_server, nvme=20)
    assert 0 < server.table.count[State.COLD] <= 20
    for prompt in prompts:
        server.serve(prompt)
        server.check()
    server.settle()
    server.cache.sanity_check()


VICTIM = """
import sys, time
import time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from harness import Server
server = Server(Path(sys.argv[2]), 24, 16, 64)
prompts = [server.prompt(5, seed) for seed in range(9)]
for prompt in prompts:
    server.serve(prompt)
    server.settle()
while server.store.stats()["journal_waiting"]:
    time.sleep(0.01)
time.sleep(0.1)
print("ready", flush=True)
for seed in range(9, 1000):
    server.serve(server.prompt(5, seed))
"""


def test_c21_after_kill_9_the_longest_valid_prefixes_come_back(make_server: Any, tmp_path: Path) -> None:
    directory = tmp_path / "killed"
    directory.mkdir()
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(Path(__file__).parent), str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert victim.stdout is not None
        assert "ready\n" in iter(victim.stdout.readline, "")
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(WAIT_S)
    server = started(directory, make_server)
    assert server.table.count[State.COLD] >= 40, "all that was stored before the kill"
    hits = [server.serve(server.prompt(5, seed)).hit for seed in range(9)]
    assert all(hit % PAGE == 0 for hit in hits) and sum(hits) > 0
    server.check()


def test_slots_of_a_restored_tree_are_where_the_journal_says(make_server: Any) -> None:
    first = make_server(**SIZES)
    prompt = first.prompt(6, 1)
    first.serve(prompt)
    first.settle()
    before = np.sort(first.table.slot[first.table.slot >= 0])
    server = restarted(first, make_server)
    assert np.array_equal(np.sort(server.table.slot[server.table.slot >= 0]), before)
