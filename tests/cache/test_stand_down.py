"""After ranks were found to have decided differently: nothing goes by what is below HBM, which each knows otherwise."""

from __future__ import annotations

import pytest
from test_waiting import bring_to_nvme

from radixtier.tree.residency import State


@pytest.fixture
def server(make_server):
    """With one prompt on NVMe, for which a request waits that the drive lets wait, and one in HBM."""
    server = make_server(hbm=16, dram=16, nvme=64)
    bring_to_nvme(server, server.prompt(4, seed=1))
    server.serve(server.prompt(4, seed=2))
    server.settle()
    server.hold = server.engine.hold("read")
    server.arrive(server.request(server.prompt(4, seed=1)))
    server.cache.ranks.diverged = True
    server.cache._stand_down()
    yield server
    server.hold.release()


def test_who_waits_is_admitted_at_once_and_computed(server) -> None:
    [request] = server.waiting
    server.events()
    assert server.admit(request)
    server.start_loads()
    server.forward(request)
    assert request.hit == 0


def test_hbm_goes_on_and_nothing_is_backed_up(server) -> None:
    server.abort(server.waiting[0])
    handles = server.table.free_handles
    for seed in (3, 4, 3):
        server.serve(server.prompt(4, seed=seed))
        server.events()
        assert not server.cache.ongoing_write_through and not server.cache.ongoing_load_back
    assert server.serve(server.prompt(4, seed=3)).device == 16
    server.evict_hbm()
    assert server.serve(server.prompt(4, seed=2)).hit == 0, "its backup is not served"
    assert server.table.free_handles == handles
    assert server.cache.protected_size() == 0


def test_nothing_leaves_hbm_or_comes_down_by_what_is_stored(server) -> None:
    cache = server.cache
    node = server.match(server.request(server.prompt(4, seed=2))).last_device_node
    pages = cache.last_pages(node, 4)
    assert server.table.state[pages].tolist() == [State.CLEAN] * 4
    cache.mover.give_up_frames(pages)
    assert cache.copy_down(cache.mover.tree.run_of(int(pages[0])), pages) == 0
    cache.leave_hbm(pages)
    assert server.match(server.request(server.prompt(4, seed=2))).device_prefix_len == 16
