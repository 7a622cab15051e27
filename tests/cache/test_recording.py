"""The recording: read back, it has requests, paths and hits as the server saw them, and nothing that tells a prompt."""

from __future__ import annotations

import errno
import json
import logging
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import GEOMETRY, PAGE, Request, Server

from radixtier.config import Origin, RadixTierConfig
from radixtier.identity import chain, namespace_seed
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.recorded import RecordedTrace
from radixtier.sglang import bench_recording, factory
from radixtier.sglang import recording as recording_module
from radixtier.sglang.recording import Recording, Sessions

START = 1 << 19
"""Of the token ids, so that no other number in a trace is one."""

FULL, MISTAKE = OSError(errno.ENOSPC, "No space left on device"), ValueError("a mistake")


@dataclass
class Turn(Request):
    """A request as SGLang has it: all of the prompt but its last token is looked up, and the answer is behind it."""

    input: int = 0

    @property
    def key(self) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(Request.key.fget(self).token_ids[: self.input - 1], self.extra_key, cache_salt=self.cache_salt)

    @property
    def output(self) -> int:
        return len(self.stub.output_ids)

    def prefix(self, pages: int) -> tuple[Any, ...]:
        """What the key of its page number ``pages`` stands for."""
        return (self.extra_key, self.cache_salt, *self.tokens[: pages * PAGE])


@pytest.fixture
def record(tmp_path: Path, clock: Any) -> Callable[[Server], Path]:
    """Start a recording of a server."""

    def start(server: Server) -> Path:
        file = tmp_path / f"trace{server.nvme}-{random.random()}.jsonl"
        server.cache.recording = Recording(server.cache, file, clock=clock.monotonic)
        return file

    return start


def some(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(START, 2 * START, count).tolist()


def turn(server: Server, prompt: Sequence[int], answer: Sequence[int], *space: str | None, **options: Any) -> Turn:
    """Make a request; the last token of its answer is sampled and never computed."""
    made = server.request([*prompt, *answer[:-1]], *space, **options)
    made.stub.origin_input_ids, made.stub.output_ids = array("q", prompt), array("q", answer)
    return Turn(made.tokens, made.extra_key, made.cache_salt, made.handle, made.stub, input=len(prompt))


def serve(server: Server, prompt: Sequence[int], answer: Sequence[int], *space: str | None, **options: Any) -> Turn:
    made = turn(server, prompt, answer, *space, **options)
    server.arrive(made)
    server.finish(made)
    return made


def read(server: Server, file: Path) -> tuple[RecordedTrace, list[Any]]:
    server.cache.recording.close()
    trace = open_trace(file)
    assert isinstance(trace, RecordedTrace)
    return trace, list(trace.requests())


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()][1:]


def kinds(file: Path) -> list[str]:
    return [next(name for name in ("arrive", "start", "end", "abort") if name in event) for event in events(file)]


def assert_same(turns: Sequence[Turn], requests: Sequence[Any]) -> None:
    """Requests, hits and lengths are equal, and two pages have one node just if namespace and tokens are the same."""
    assert len(turns) == len(requests)
    nodes: dict[tuple[Any, ...], int] = {}
    for made, found in zip(turns, requests, strict=True):
        assert (found.input_tokens, found.output_tokens) == (made.input, made.output)
        assert (found.served.hbm, found.served.dram, found.served.nvme) == (made.device, made.host, made.storage)
        assert len(found.path) == (made.input - 1) // PAGE
        pages = [*found.path, *found.answer]
        assert len(pages) == (made.input + made.output - 1) // PAGE
        for place, node in enumerate(pages, start=1):
            assert nodes.setdefault(made.prefix(place), node) == node
    assert len(set(nodes.values())) == len(nodes)


def test_load_reads_back_as_it_was(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    rng = random.Random(4)
    system = some(9, seed=1)
    chats: list[tuple[list[int], tuple[str | None, str | None], str | None]] = [
        ([*system, *some(rng.randrange(1, 9), seed=seed)], ((None, "x", None)[seed % 3], ("y", None)[seed % 2]), name)
        for seed, name in enumerate([None, "a", None, "b", None, None, "c"])
    ]
    turns: list[Turn] = []
    for step in range(60):
        clock.advance(0.25)
        place = rng.randrange(len(chats))
        context, space, name = chats[place]
        prompt = [*context, *some(rng.randrange(1, 7), seed=100 + step)]
        turns.append(serve(server, prompt, some(rng.randrange(1, 9), seed=200 + step), *space, session=name))
        # Most go on from the whole turn, some from the middle of it, some from the start.
        cut = rng.choice([len(prompt) + turns[-1].output] * 4 + [len(prompt) // 2, 9])
        chats[place] = ([*prompt, *turns[-1].stub.output_ids][:cut], space, name)
        if len(chats[place][0]) > 60:
            chats[place] = (context[:9], space, name)
        server.settle()
        if step % 9 == 5:
            server.demote_all()
        if step % 5 == 3:
            server.evict_hbm()
    _, requests = read(server, file)
    assert_same(turns, requests)
    assert min(sum(made.device for made in turns), sum(made.host for made in turns)) > 0
    assert sum(made.storage for made in turns) > 0
    assert [found.time for found in requests] == pytest.approx([0.25 * (step + 1) for step in range(60)])


def test_header_tells_the_server(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    serve(server, some(9, 1), some(3, 2))
    trace, _ = read(server, file)
    page_bytes = 2 * GEOMETRY["layers"] * GEOMETRY["heads"] * GEOMETRY["head_dim"] * 4 * PAGE
    assert trace.recorded == {
        "page_tokens": PAGE, "page_bytes": page_bytes, "hbm_pages": 24, "dram_pages": 32, "nvme_pages": 160,
    }  # fmt: skip


def test_short_prompt_and_answer_of_one_token(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=0, clock=clock)
    file = record(server)
    turns = [serve(server, some(n, n), some(1, 7)) for n in (1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE)]
    _, requests = read(server, file)
    assert_same(turns, requests)
    assert [(len(found.path), len(found.answer)) for found in requests] == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)]


def test_aborts(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    prompt = some(14, 1)
    waits = turn(server, prompt, some(4, 2))
    server.arrive(waits)
    server.abort(waits)
    runs = turn(server, prompt, some(4, 3))
    server.arrive(runs)
    server.events()
    assert server.admit(runs)
    server.abort_running(runs)
    answers = serve(server, prompt, some(6, 4))  # SGLang ends a request whose client has left as if it had stopped
    server.cache.release_aborted_request(answers.handle)
    server.cache.release_aborted_request(waits.handle)
    _, requests = read(server, file)
    assert kinds(file) == ["arrive", "abort", "arrive", "start", "abort", "arrive", "start", "end"]
    assert [(found.output_tokens, len(found.path), len(found.answer)) for found in requests] == [(0, 3, 0), (6, 3, 1)]
    assert requests[0].served.ended is None


def test_retraction_is_one_request(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    made = turn(server, some(14, 1), some(7, 2))
    server.arrive(made)
    server.events()
    assert server.admit(made)
    server.start_loads()
    server.compute(made, made.rows, 0)
    server.retract(made)
    server.finish(made)
    assert made.device == 12  # when it was admitted again
    _, (found,) = read(server, file)
    assert kinds(file) == ["arrive", "start", "end"]
    assert (found.served.hbm, found.served.dram, found.output_tokens) == (0, 0, 7)
    assert (len(found.path), len(found.answer)) == (3, 2)


def test_chunked_prefill_is_one_request(make_server: Any, record: Any, clock: Any) -> None:
    import torch

    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    made = turn(server, some(30, 1), some(7, 2))
    server.arrive(made)
    server.events()
    assert server.admit(made)
    server.start_loads()
    server.compute(made, made.rows, 0)
    prefix = server.cache.path_device_indices(made.lock[0])
    server.insert(made, torch.cat([prefix, made.rows]), chunks=3)
    _, requests = read(server, file)
    assert kinds(file) == ["arrive", "start", "end"]
    assert_same([made], requests)


def test_end_without_an_insert(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    made = turn(server, some(14, 1), some(7, 2))
    server.arrive(made)
    server.events()
    assert server.admit(made)
    made.stub.finished = lambda: False
    server.cache.on_release(made.stub, checkpointed=False)  # a retraction
    made.stub.finished = lambda: True
    server.cache.on_release(made.stub, checkpointed=False)
    server.abort_running(made)
    _, (found,) = read(server, file)
    assert kinds(file) == ["arrive", "start", "end"]
    assert (found.output_tokens, len(found.path), len(found.answer)) == (7, 3, 0)


def test_end_of_reasoning_that_is_not_kept(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    made = turn(server, some(13, 1), some(9, 2))
    server.arrive(made)
    made.stub.full_untruncated_fill_ids = made.stub.origin_input_ids + made.stub.output_ids
    server.events()
    assert server.admit(made)
    server.cache.recording.ended(made.stub, 13)
    server.abort_running(made)
    _, (found,) = read(server, file)
    assert (found.output_tokens, len(found.path), len(found.answer)) == (9, 3, 0)


def test_flush_ends_what_is_on_its_way(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    waits = turn(server, some(14, 1), some(4, 2))
    server.arrive(waits)
    server.cache.reset()
    server.allocator.clear()
    server.waiting.clear()
    serve(server, some(14, 1), some(4, 2))
    _, requests = read(server, file)
    assert kinds(file) == ["arrive", "abort", "arrive", "start", "end"]
    assert len(requests) == 1


def test_health_checks_are_none(make_server: Any, record: Any, clock: Any) -> None:
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    check = turn(server, some(9, 1), some(4, 2))
    check.stub.rid = f"{HEALTH_CHECK_RID_PREFIX}_1"
    check.handle = check.stub.cache_request_handle = type(check.handle)(check.stub.rid, 0)
    server.arrive(check)
    server.finish(check)
    server.cache.recording.close()
    assert events(file) == []


def test_sessions_and_think_times(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=40, dram=40, nvme=160, clock=clock)
    file = record(server)

    def ask(prompt: list[int], seed: int, name: str | None = None) -> list[int]:
        made = serve(server, prompt, some(6, seed), session=name)
        clock.advance(2.0)
        return [*prompt, *made.stub.output_ids]

    first, second = ask(some(14, 1), 2), ask(some(14, 3), 4)
    ask([*first, *some(9, 5)], 6)
    longer = ask([*second, *some(9, 7)], 8)
    ask(some(14, 9), 10, "Ada")
    ask(some(14, 11), 12, "Ada")
    ask([*longer, *some(9, 13)], 14)
    ask(some(14, 15), 16, "Grace")
    _, requests = read(server, file)
    assert [found.session for found in requests] == [0, 1, 0, 1, 2, 2, 1, 3]
    assert [found.think_s for found in requests] == [None, None, 4.0, 4.0, None, 2.0, 6.0, None]


def test_sessions_are_bounded() -> None:
    def keys(*values: int) -> Any:
        return np.array(values, np.uint64)

    sessions = Sessions(b"salt", most=2)
    assert [sessions.number(name, keys()) for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    assert [sessions.number(name, keys()) for name in ("a", "b")] == [0, 3], "b was seen longest ago"
    for key, number in ((7, 0), (8, 3), (9, 2)):
        sessions.ended(number, keys(1, key))
    sessions.ended(5, keys())
    assert sessions.number(None, keys(1, 9, 8, 4)) == 3, "the longest"
    assert sessions.number(None, keys(1, 7)) == 4, "forgotten"


def numbers_in(value: Any) -> set[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*map(numbers_in, value)) if isinstance(value, list) else {value}


def test_nothing_tells_a_prompt_or_a_name(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=40, dram=40, nvme=160, clock=clock)
    file = record(server)
    prompt, answer = some(33, 1), some(9, 2)
    for space in ((None, None), ("adapter7", None), (None, "tenant7")):
        serve(server, prompt, answer, *space, session="Ada Lovelace")
    server.cache.recording.close()
    text = file.read_text()
    for name in ("Ada", "Lovelace", "adapter7", "tenant7", "r1"):
        assert name not in text
    assert not numbers_in(events(file)) & {*prompt, *answer}
    for digest in chain(namespace_seed(), prompt, PAGE):
        assert digest.tobytes().hex()[:16] not in text
        assert f"{int.from_bytes(digest.tobytes()[:8], 'little'):016x}" not in text
    keys = [key for event in events(file) for key in event.get("keys", [])]
    pages = (len(prompt) + len(answer) - 1) // PAGE
    assert len(set(keys)) == len(keys) == 3 * pages, "no two namespaces share a key"

    other = record(server)
    serve(server, prompt, answer)
    server.cache.recording.close()
    assert not {key for event in events(other) for key in event.get("keys", [])} & set(keys), "nor do two files"


def test_what_tokens_do_not_tell_has_keys_of_its_own(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=40, dram=40, nvme=160, clock=clock)
    file = record(server)
    for _ in range(2):
        made = turn(server, some(14, 1), some(2, 2))
        made.stub.skip_radix_cache_insert = True
        server.arrive(made)
        server.abort(made)
    server.cache.recording.close()
    first, second = (set(event["keys"]) for event in events(file) if "arrive" in event)
    assert len(first) == len(second) == 3 and not first & second


@pytest.mark.parametrize(
    ("at", "error"),
    [*product(("arrive", "start", "end", "abort", "flush", "close"), [FULL]), *product(("arrive", "end"), [MISTAKE])],
)
def test_failure_ends_the_recording_and_nothing_else(
    make_server: Any, record: Any, clock: Any, caplog: pytest.LogCaptureFixture, at: str, error: Exception
) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    prompt = some(14, 1)
    first = serve(server, prompt, some(3, 2))
    writer = server.cache.recording._writer

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    setattr(writer, at, fail)
    with caplog.at_level(logging.WARNING):
        clock.advance(2.0)
        gone = turn(server, some(14, 3), some(3, 4))
        server.arrive(gone)
        server.abort(gone)
        assert serve(server, prompt, some(3, 2)).device == 12
        assert serve(server, prompt, some(3, 2)).device == 12
        server.cache.recording.close()
        server.cache.recording.close()
    warnings = [line for line in caplog.messages if "the recording ends here" in line]
    assert len(warnings) == 1
    assert isinstance(error, ValueError) or f"{file} cannot be written (No space left on device)" in warnings[0]
    assert server.cache.recording.over and not server.cache.recording._flights
    if at != "close":
        assert_same([first], list(open_trace(file).requests())[:1])


def test_bounds(
    make_server: Any, record: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    monkeypatch.setattr(recording_module, "MOST_BYTES", 2000)
    file = record(server)
    turns = []
    while not server.cache.recording.over:
        turns.append(serve(server, some(14, len(turns)), some(3, 2)))
        clock.advance(0.5)
        server.events()
    assert 2000 <= file.stat().st_size < 2000 + 1200
    assert "which is the most for one" in caplog.text
    assert_same(turns, read(server, file)[1])


def test_moving_the_file_away_ends_it_whole(
    make_server: Any, record: Any, clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    first = serve(server, some(14, 1), some(3, 2))
    moved = file.rename(tmp_path / "moved.jsonl")
    second = serve(server, some(14, 1), some(3, 2))
    clock.advance(1.0)
    server.events()
    assert f"{file} was moved away" in caplog.text
    serve(server, some(14, 1), some(3, 2))
    assert not file.exists()
    assert_same([first, second], list(open_trace(moved).requests()))


def test_nothing_stays_in_memory_for_long(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = record(server)
    serve(server, some(14, 1), some(3, 2))
    clock.advance(0.9)
    server.events()
    assert file.read_text() == ""
    clock.advance(0.1)
    server.events()
    assert kinds(file) == ["arrive", "start", "end"]


def test_graceful_stop_closes_it(make_server: Any, record: Any, clock: Any) -> None:
    server = make_server(hbm=24, dram=32, nvme=0, clock=clock)
    file = record(server)
    serve(server, some(14, 1), some(3, 2))
    server.cache.release_host_resources()
    assert server.cache.recording.over
    assert kinds(file) == ["arrive", "start", "end"]


def test_requests_in_flight_are_bounded(
    make_server: Any, record: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    monkeypatch.setattr(recording_module, "MOST_IN_FLIGHT", 2)
    file = record(server)
    waiting = [turn(server, some(9, seed), some(3, 2)) for seed in range(3)]
    for made in waiting:
        server.arrive(made)
    assert len(server.cache.recording._flights) == 2
    for made in waiting:
        server.abort(made)
    server.cache.recording.close()
    assert [event["abort"] for event in events(file) if "abort" in event] == [0, 1, 2]


def test_nothing_is_written_over(make_server: Any, clock: Any, tmp_path: Path) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    file = tmp_path / "trace"
    file.write_text("precious")
    with pytest.raises(FileExistsError):
        Recording(server.cache, file)
    origin = {"record": Origin("RADIXTIER_RECORD", "trace")}
    with pytest.raises(ValueError, match=r"^radixtier: RADIXTIER_RECORD trace: cannot be made \(File exists\)\. Name"):
        factory._recording(RadixTierConfig(enable=True, record=str(file), origin=origin), server.cache)
    assert file.read_text() == "precious"


def test_configuration_becomes_the_header(make_server: Any, clock: Any, tmp_path: Path) -> None:
    server = make_server(hbm=24, dram=32, nvme=160, clock=clock)
    assert factory._recording(RadixTierConfig(enable=True), server.cache) is None
    asked = RadixTierConfig(
        enable=True, eviction="slru", admission="all", write_budget="2GB", nvme_path=(str(tmp_path),),
        record=str(tmp_path / "trace"),
    )  # fmt: skip
    server.cache.recording = factory._recording(asked, server.cache)
    serve(server, some(9, 1), some(3, 2))
    told = read(server, tmp_path / "trace")[0].recorded
    assert (told["eviction"], told["admission"], told["write_budget"]) == ("slru", "all", "2000000000B/day")


@pytest.mark.parametrize(("nvme", "recorded"), [(160, False), (0, False), (0, True)])
def test_scheduler_tells_arrivals(make_server: Any, record: Any, clock: Any, nvme: int, recorded: bool) -> None:
    """Without the gate, a server without NVMe would see a request only when it is about to be admitted."""
    server = make_server(hbm=24, dram=32, nvme=nvme, clock=clock)
    if recorded:
        record(server)
        server.cache.tells_arrivals = True
    scheduler = SimpleNamespace(tree_cache=server.cache, enable_hicache_storage=False)
    factory.open_gate(scheduler)
    assert scheduler.enable_hicache_storage == (nvme > 0 or recorded)


def test_benchmark_measures() -> None:
    found = bench_recording.measure(16, 64, requests=2)
    assert list(found) == ["new", "known", "admitted", "ended", "bytes"]
    assert all(value > 0 for value in found.values())
