"""The way straight from NVMe to HBM on the real cache: which bytes, from where, whose frames, and every fault of it.

CASES by their numbers. Each runs with the landing zone of a server without a GPU, or on a GPU that is none behind the
stand-in for KvikIO (``landing_rig``).
"""

from __future__ import annotations

import errno
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from landing_rig import FAKES, LoadStream, Streams, kvikio_engine, use_fake_gpu

from radixtier.io import kvikio as kvikio_module
from radixtier.io.faults import FaultEngine
from radixtier.policy.landing import FAILURES, LONG_PAGES
from radixtier.sglang import landing
from radixtier.tree.residency import State

LONG = LONG_PAGES + 2
LAYOUTS = [
    ("page_first_direct", "direct"), ("page_first", "kernel"), ("layer_first", "direct"), ("layer_first", "kernel"),
]  # fmt: skip
Say = Callable[[str], None]


def forget_kvikio() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvikio"]:
        del sys.modules[name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(FAKES)
    monkeypatch.setenv(kvikio_module.LOG_VARIABLE, "/nowhere/cufile.log")
    monkeypatch.setattr(kvikio_module, "_is_set_up", False)
    monkeypatch.delenv("FAKE_KVIKIO", raising=False)
    forget_kvikio()
    yield importlib.import_module("kvikio")
    forget_kvikio()


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    return lambda words: monkeypatch.setenv("FAKE_KVIKIO", words)


@pytest.fixture
def streams(library: Any, monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr("harness.PosixEngine", lambda direct: kvikio_engine(None))
    return use_fake_gpu(monkeypatch)


def to_nvme(server: Any, *prompts: list[int]) -> None:
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    server.evict_hbm()
    server.demote_all()


def stats(server: Any) -> Any:
    return server.cache.mover.stats


def make(make_server: Any, **options: Any) -> Any:
    return make_server(**{"hbm": 48, "dram": 32, "nvme": 128, "landing": 16, **options})


# ---- bytes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "backend"), LAYOUTS)
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_a_long_prompt_that_is_used_once_takes_no_frame(
    make_server: Any, request: Any, layout: str, backend: str, gpu: bool
) -> None:
    """The harness compares every byte of a hit with what was computed."""
    if gpu:
        request.getfixturevalue("streams")
    server = make(make_server, layout=layout, backend=backend)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    free = server.table.free_frames
    again = server.serve(prompt)
    assert (again.device, again.host, again.storage) == (0, 0, 4 * LONG)
    assert stats(server).landed == LONG and server.table.free_frames == free == server.table.n_frames
    server.settle()
    assert server.table.free_landing == 16 and not server.table.lease.any() and not server.table.hold.any()
    server.check()


@pytest.mark.parametrize(("layout", "backend"), LAYOUTS)
def test_what_comes_from_both_ways_is_put_together(make_server: Any, layout: str, backend: str) -> None:
    server = make(make_server, layout=layout, backend=backend, landing=6)
    front = server.prompt(4, 1)
    prompts = [front + server.prompt(LONG, seed) for seed in (2, 3)]
    to_nvme(server, front, *prompts)
    again = server.serve(prompts[0])
    assert again.storage == len(prompts[0])
    assert stats(server).landed == 6 and stats(server).promoted == LONG + 4
    server.settle()
    server.check()


def test_the_second_use_comes_through_dram_and_stays(make_server: Any) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    for landed in (LONG, LONG, LONG):
        assert server.serve(prompt).storage == 4 * LONG
        server.settle()
        server.evict_hbm()
        server.demote_all()
        assert stats(server).landed == landed
    assert server.serve(prompt).hit == 4 * LONG and stats(server).landed == LONG


def test_a_restart_knows_what_may_land(make_server: Any) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    server.close()
    again = make(make_server, directory=server.directory)
    assert again.serve(prompt).storage == 4 * LONG and stats(again).landed == LONG
    again.check()


def test_rows_without_a_second_sum_come_through_dram(make_server: Any) -> None:
    server = make(make_server, landing=0)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    server.close()
    again = make(make_server, directory=server.directory)
    assert again.serve(prompt).storage == 4 * LONG and stats(again).landed == 0
    again.check()


def test_two_requests_for_one_path_share_what_landed(make_server: Any) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    requests = [server.request(prompt), server.request(prompt)]
    for each in requests:
        server.arrive(each)
    done = server.serve_all(100_000)
    assert {each.hit for each in done} == {4 * LONG} and stats(server).landed == LONG
    server.settle()
    server.check()


def test_an_aborted_request_gives_its_frames_back(make_server: Any) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert held.wait(1)
    server.abort(request)
    assert server.table.free_landing == 16 - LONG
    held.release()
    server.settle()
    assert server.table.free_landing == 16
    assert server.serve(prompt).storage == 4 * LONG


# ---- the order of streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_c1_landing_frames_stay_until_the_load_is_acknowledged(make_server: Any, request: Any, gpu: bool) -> None:
    """The load stream runs late; meanwhile another request wants the frames that it still reads."""
    if gpu:
        request.getfixturevalue("streams")
    server = make(make_server, landing=LONG)
    a, b = server.prompt(LONG, 1), server.prompt(LONG, 2)
    to_nvme(server, a, b)
    stream = LoadStream()
    stream.attach(server)
    first, second = server.request(a), server.request(b)
    server.arrive(first)
    while not server.admit(first):
        server.events()
    server.start_loads()
    assert len(stream.waiting) == 2 and server.table.free_landing == 0, "one copy per layer"
    server.arrive(second)
    while not server.admit(second):
        server.events()
    assert server.table.free_landing == 0 and stats(server).landed == LONG, "a frame was reused under its reader"
    stream.run()
    server.forward(first)
    server.events()
    assert server.table.free_landing == LONG
    server.start_loads()
    stream.run()
    server.forward(second)
    assert first.hit == second.hit == 4 * LONG
    server.settle()
    server.check()


def test_c10_what_landed_is_no_victim(make_server: Any) -> None:
    server = make(make_server, dram=12)
    a, b = server.prompt(LONG, 1), server.prompt(8, 2)
    to_nvme(server, a)
    request = server.request(a)
    server.arrive(request)
    while not server.admit(request):
        server.events()
    landed = np.flatnonzero(server.table.landed(np.arange(server.table.n_handles)))
    assert len(landed) == LONG and not set(server.cache.mover.tree.victims(50).tolist()) & set(landed.tolist())
    server.serve(b)
    server.settle_transfers()
    server.start_loads()
    server.forward(request)
    assert request.hit == 4 * LONG
    server.settle()
    server.check()


def test_c12_a_copy_down_never_reads_from_the_landing_zone(make_server: Any) -> None:
    """Staging copies from HBM what the zone has at the moment: into DRAM, not over the frame that is being read."""
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    request = server.request(prompt)
    server.arrive(request)
    while not server.admit(request):
        server.events()
    pages = np.flatnonzero(server.table.landed(np.arange(server.table.n_handles)))
    assert len(server.cache.mover.refill(pages)) == 0, "a page that landed was given another frame"
    server.start_loads()
    server.forward(request)
    server.settle()
    again = server.cache.mover.refill(pages)
    assert len(again) == LONG and (server.table.frame[again] < server.table.n_frames).all()
    server.cache.mover.fill_failed(again)
    server.check()


def test_a_sum_is_over_before_the_page_is_told_of(make_server: Any, streams: Streams) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    assert server.serve(prompt).storage == 4 * LONG
    assert streams.log[0] == "device", "registered before the allocation was at rest"
    assert 1 <= streams.log.count("new stream") <= server.threads, "an I/O thread has one stream of its own"


# ---- every fault, everywhere ----------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "lost"), [("device-read-fails", False), ("device-read-lies", True)])
def test_c13_a_library_that_fails_on_gpu_memory(
    make_server: Any, streams: Streams, say: Say, words: str, lost: bool
) -> None:
    """What fails comes through DRAM; a page whose bytes did not come, though they were counted, is corrupt and lost."""
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    say(words)
    again = server.serve(prompt)
    assert stats(server).landed == 0 and again.hit == (0 if lost else 4 * LONG)
    assert (stats(server).corrupt > 0) == lost and (stats(server).landing_failed > 0) == (not lost)
    server.settle()
    server.check()
    assert server.table.count[State.LOST] == 0, "lost pages are filled again from HBM"
    say("")
    server.evict_hbm()
    assert server.serve(prompt).hit == 4 * LONG


def test_a_short_read_is_finished_and_no_byte_is_taken_for_granted(
    make_server: Any, streams: Streams, say: Say
) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    say("device-read-short")
    assert server.serve(prompt).storage == 4 * LONG and stats(server).landed == LONG


@pytest.mark.parametrize("words", ["fail-at-open", "fail-at-write"])
def test_c14_a_library_that_gives_up_leaves_all_to_posix(
    make_server: Any, streams: Streams, say: Say, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "radixtier")
    say(words)
    server = make(make_server)
    prompts = [server.prompt(LONG, seed) for seed in range(FAILURES + 1)]
    to_nvme(server, *prompts)
    for prompt in prompts:
        assert server.serve(prompt).storage == 4 * LONG
        server.settle()
        server.check()
    assert stats(server).landed == 0 and stats(server).read_failures == 0
    told = [record.message for record in caplog.records]
    assert sum("using posix" in message for message in told) == 1
    assert sum("everything goes through DRAM from now on" in message for message in told) == 1


def test_c14_memory_that_cannot_be_registered_means_dram(
    make_server: Any, streams: Streams, say: Say, library: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "radixtier")
    say("fail-at-register")
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    assert server.serve(prompt).storage == 4 * LONG and stats(server).landed == 0
    assert server.table.n_landing == 0 and library.CALLS["register"] == 1
    told = [record.message for record in caplog.records if "cannot be read into" in record.message]
    assert len(told) == 1 and "no register today" in told[0]


DRIVE = [("error", {"number": errno.EIO}), ("short", {}), ("flip", {"at": 100}), ("tear", {})]


@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
@pytest.mark.parametrize("skip", [0, 1, 2], ids=["first", "middle", "late"])
@pytest.mark.parametrize(("fault", "how"), DRIVE, ids=[name for name, _ in DRIVE])
def test_c13_a_drive_that_fails_on_the_way(
    make_server: Any, request: Any, fault: str, how: dict[str, int], skip: int, gpu: bool
) -> None:
    """One fault, at the first, a middle and a late transfer; the harness sees every wrong byte."""
    if gpu:
        request.getfixturevalue("streams")
    server = make(make_server, threads=1)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    getattr(server.engine, fault)("read", **how, skip=skip, times=1)
    again = server.serve(prompt)
    s = stats(server)
    if fault in ("flip", "tear"):
        assert s.corrupt >= 1 and s.landing_failed == 0 and again.hit <= 8 * skip
    else:
        assert s.corrupt == 0 and 1 <= s.landing_failed <= LONG - 2 * skip and again.hit == 4 * LONG
        assert s.landed + s.landing_failed == LONG and s.read_failures == 0
    server.settle()
    server.check()
    assert server.table.free_landing == 16 and server.table.count[State.LOST] == 0
    server.evict_hbm()
    assert server.serve(prompt).hit == 4 * LONG
    server.check()


def test_a_flush_while_pages_land(make_server: Any) -> None:
    server = make(make_server)
    prompt = server.prompt(LONG, 1)
    to_nvme(server, prompt)
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert held.wait(1)
    server.abort(request)
    server.cache.reset()
    server.allocator.clear()
    held.release()
    server.settle()
    assert server.table.free_landing == 16 and server.serve(prompt).hit == 0
    server.check()


# ---- shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["page_first_direct", "page_first", "layer_first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("planes", [1, 2])
def test_scatter_puts_each_layer_where_it_belongs(layout: str, dtype: torch.dtype, planes: int) -> None:
    layers, tokens, heads, dim, n = 3, 4, 2, 8, 5
    shape = (planes, tokens, layers, heads, dim) if layout == "page_first" else (planes, layers, tokens, heads, dim)
    count = planes * layers * tokens * heads * dim
    page_bytes = count * dtype.itemsize
    zone = landing.HostLanding(n, page_bytes, lambda parts, seed: 0)
    rows = torch.frombuffer(zone.memory, dtype=torch.uint8).view(n, zone.row_bytes)
    images = torch.randint(0, 256, (n, page_bytes), dtype=torch.uint8)
    rows[:, :page_bytes] = images
    source = landing.Landing(zone, rows, (planes, layers, tokens, heads, dim), layout, dtype)
    pages = images.view(n, *shape, dtype.itemsize)
    pages = pages.transpose(2, 3) if layout == "page_first" else pages
    landed = landing.Landed(torch.tensor([4, 1]), torch.tensor([*range(8, 12), *range(4)]))
    for plane in range(planes):
        for layer in range(layers):
            target = torch.zeros(16, heads, dim, dtype=dtype)
            source.scatter(landed, plane, layer, target)
            got = target.view(torch.uint8).view(16, heads, dim, dtype.itemsize)
            assert torch.equal(got[8:12], pages[4, plane, layer]) and torch.equal(got[:4], pages[1, plane, layer])
            assert not got[4:8].any() and not got[12:].any()


def test_faults_reach_gpu_memory_too() -> None:
    """Else the cases above would prove little."""

    class Inner(kvikio_module.KvikioEngine):
        def read_device(self, buffers: Any, offset: int) -> int:
            return sum(each.nbytes for each in buffers)

    engine = FaultEngine(Inner())
    engine.error("read", times=1)
    with pytest.raises(OSError, match="Input/output error"):
        engine.read_device([torch.zeros(8, dtype=torch.uint8)], 0)
    assert engine.read_device([torch.zeros(8, dtype=torch.uint8)], 0) == 8
