"""The server in virtual time: its accounts hold, and times follow from the rates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.cli.lab import main
from radixtier.lab.rates import Rates
from radixtier.lab.setup import Setup
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.drive import Drive
from radixtier.lab.timed.run import TimedReport, make_cache, run_timed
from radixtier.lab.timed.server import TimedServer
from radixtier.lab.timed.source import Source
from radixtier.lab.timed.turn import Turn
from radixtier.lab.traces.trace import ROOT, Nodes, Request
from radixtier.policy.prefill import Machine, PrefillCost
from radixtier.store.jobs import Priority

BLOCK = 64
SIZES = ("hbm_pages", "dram_pages", "nvme_pages")
KV = 1024
RATES = Rates(prefill=Machine(0.001, 1e-4, 1e-12), decode_s=0.01, copy=1e9, read=1e8, read_latency_s=1e-4, write=1e8)


class Load:
    """A trace in memory: sessions of the given turns, one block more each."""

    block_tokens = BLOCK
    skipped = 0
    first_bad = None

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._requests: list[Request] = []
        self._path: dict[int, list[int]] = {}

    def turn(self, time: float, session: int, blocks: int, *, output: int = 8, think_s: float | None = None) -> None:
        path = self._path.setdefault(session, [])
        for _ in range(blocks):
            path.append(self.nodes.add(path[-1] if path else ROOT, 1))
        tokens = len(path) * BLOCK + 1
        self._requests.append(Request(time, session, list(path), tokens, output, think_s))

    def requests(self) -> Iterator[Request]:
        return iter(self._requests)


def serve(load: Load, setup: Setup, rates: Rates = RATES, **options: Any) -> TimedReport:
    return run_timed(load, setup, rates, **options)


def test_an_idle_server_takes_what_the_machine_takes() -> None:
    load = Load()
    load.turn(0.0, 1, 10)
    load.turn(100.0, 1, 1)
    report = serve(load, Setup(100, 50, 100, kv_bytes_per_token=KV))
    cost = PrefillCost(RATES.prefill)
    first, second = cost.batch_seconds([(641, 0)]), cost.batch_seconds([(65, 640)])
    assert sorted(report._ttft) == pytest.approx(sorted([first, second]), abs=2e-3)
    assert (report.hbm, report.dram, report.nvme) == (640, 0, 0)


def test_what_is_on_nvme_comes_up_before_the_prefill_where_that_is_faster() -> None:
    def chats(rates: Rates) -> TimedReport:
        load = Load()
        for turn in range(2):
            for session in range(8):
                load.turn(100.0 * (8 * turn + session), session, 10)
        return serve(load, Setup(24, 12, 300, kv_bytes_per_token=KV, admission="all"), rates)

    fast = chats(RATES)
    assert fast.nvme > 0 and fast.promoted["arrival"] * BLOCK >= fast.nvme
    slow = chats(Rates(prefill=RATES.prefill, copy=1e9, read=1e4, read_latency_s=1e-4, write=1e8))
    assert slow.ttft.p99 < 2 * PrefillCost(RATES.prefill).batch_seconds([(1281, 0)]), "no longer than computing twice"


def test_sessions_that_think_come_back_after_the_answer() -> None:
    def load() -> Load:
        made = Load()
        made.turn(0.0, 1, 10, output=1000)
        made.turn(1.0, 1, 1, think_s=5.0)
        return made

    setup = Setup(100, 50, 100, kv_bytes_per_token=KV)
    as_recorded, thinking = serve(load(), setup), serve(load(), setup, closed_loop=True)
    assert as_recorded.hbm == thinking.hbm == 640
    assert thinking.seconds > as_recorded.seconds + 4.9


def test_what_is_longer_than_hbm_is_refused_and_the_others_are_served() -> None:
    load = Load()
    load.turn(0.0, 1, 50)
    load.turn(1.0, 2, 5)
    report = serve(load, Setup(20, 10, 10, kv_bytes_per_token=KV))
    assert (report.requests, report.refused, report.input_tokens) == (2, 1, 321)


def test_without_a_tier_what_leaves_hbm_is_computed_again() -> None:
    load = Load()
    for n in range(12):
        load.turn(100.0 * n, n % 3, 8)
    report = serve(load, Setup(40, kv_bytes_per_token=KV))
    assert report.dram == report.nvme == 0 and 0 < report.hbm < report.input_tokens
    assert report.bytes == {"hbm_to_dram": 0, "dram_to_hbm": 0}


def test_time_begins_with_the_trace() -> None:
    load = Load()
    load.turn(1.7e9, 1, 10)
    load.turn(1.7e9 + 10, 1, 1)
    report = serve(load, Setup(100, 50, 100, kv_bytes_per_token=KV))
    assert report.hbm == 640 and report.seconds < 11


def test_what_was_used_once_is_not_written_under_second_hit_however_it_moves() -> None:
    """HBM loses pages that DRAM gave up while they were in HBM: copying them down again is no second use."""
    load = Load()
    for session in range(40):
        load.turn(20.0 * session, session, 10)
    report = serve(load, Setup(64, 40, 600, kv_bytes_per_token=KV, admission="second-hit"))
    assert report.bytes["dram_to_nvme"] == 0 and report.bytes["hbm_to_dram"] > 0


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 40), st.floats(0, 3)), min_size=1, max_size=40
    ),
    sizes=st.tuples(st.integers(30, 60), st.integers(4, 40), st.integers(0, 150)),
    eviction=st.sampled_from(["lru", "next_use", "auto"]),
)
def test_accounts_hold_after_every_request(
    turns: list[tuple[int, int, int, float]], sizes: tuple[int, int, int], eviction: str
) -> None:
    load, now = Load(), 0.0
    for session, blocks, output, gap in turns:
        now += gap
        load.turn(now, session, blocks, output=output)
    clock = Clock()
    cache = make_cache(Setup(*sizes, eviction=eviction, kv_bytes_per_token=KV), BLOCK, 256, RATES, clock)
    made = [Turn.of(n, request, load.nodes, BLOCK) for n, request in enumerate(load.requests())]
    served = 0
    for turn in TimedServer(cache, clock, RATES, 256).serve(Source(made)):
        cache.check()
        served += 1
        found = turn.hbm + turn.dram + turn.nvme
        assert found <= turn.input_tokens - 1 and found % BLOCK == 0
        assert turn.refused or turn.arrived <= turn.admitted <= turn.first_token <= turn.ended
    assert served == len(turns) and cache.held == 0 and cache.tree.locked_pages <= cache.tree.used_pages


def test_a_drive_does_what_is_demanded_first_and_one_job_at_a_time() -> None:
    clock = Clock()
    drive = Drive(16, 1000, Rates(read=1e6, write=1e6, read_latency_s=0.0), clock)
    slots = [drive.alloc(2) for _ in range(4)]
    for tag, pages in enumerate(slots):
        assert pages is not None
        if tag < 2:
            drive.write(pages, pages, pages.astype("u8"), tag)
        else:
            priority = Priority.SPECULATIVE if tag == 2 else Priority.DEMANDED
            drive.read(pages, pages, pages.astype("u8"), pages.astype("u8"), tag, priority)
    drive.cancel(1)
    clock.now = 0.0041
    done = {job.tag: job for job in drive.poll()}
    assert list(done) == [1, 0, 3] and done[1].cancelled and not done[1].ok.any()
    assert done[3].queue_seconds == pytest.approx(0.002) and done[3].service_seconds == pytest.approx(0.002)
    assert drive.next_end == pytest.approx(0.006)


# ---- the commands ---------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What a server might have recorded: a chat of two turns, and what it found."""
    file = tmp_path / "recorded.jsonl"
    keys = [f"{n:016x}" for n in range(1, 9)]
    rows = [
        {"radixtier_trace": 1, "page_tokens": 16, "page_bytes": 4096, **dict.fromkeys(SIZES, 64)},
        {"t": 1.0, "arrive": 0, "session": 0, "in": 65, "keys": keys[:4]},
        {"t": 1.1, "start": 0, "hit": [0, 0, 0]},
        {"t": 2.0, "end": 0, "out": 8, "after": keys[3], "keys": []},
        {"t": 9.0, "arrive": 1, "session": 0, "in": 100, "after": keys[3], "keys": keys[4:6]},
        {"t": 9.1, "start": 1, "hit": [64, 0, 0]},
        {"t": 9.9, "end": 1, "out": 4, "after": keys[5], "keys": []},
    ]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_recording_is_compared_request_by_request(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(recording)]) == 0
    assert capsys.readouterr().out.startswith("2 requests: 2 equal on every tier, 2 in HBM, 2 in all\n")
    recording.write_text(recording.read_text().replace("[64, 0, 0]", "[0, 64, 0]"))
    assert main(["compare", str(recording), "--json", "-"]) == 1
    pairs = json.loads(capsys.readouterr().out)
    assert (pairs["equal"], pairs["equal_total"], pairs["tokens_apart"]) == (1, 2, 64)
    assert main(["compare", str(recording), "--hbm", "4"]) == 1
    assert "2 requests had no room" in capsys.readouterr().out


def test_the_timed_report_on_the_screen_and_as_json(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timed", str(recording), "--json", str(tmp_path / "r.json")]) == 0
    assert "2 requests" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["tokens"] == {"input": 165, "hbm": 64, "dram": 0, "nvme": 0}
    assert report["requests"] == 2 and not report["interrupted"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--stretch", "0"], "--stretch 0.0: no factor"),
        (["--chunk", "0"], "--chunk 0: no batch"),
        (["--dram", "0"], "--dram 0: NVMe needs DRAM"),
        (["--eviction", "oracle"], "--eviction oracle: not on a server"),
        (["--mirror"], "--mirror: no such server"),
        (["--hbm", "0"], "--hbm 0:"),
    ],
)
def test_what_a_server_would_refuse(
    recording: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timed", str(recording), *flags]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_trace_that_no_server_recorded_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "hash_ids": [1]}\n')
    assert main(["compare", str(file), "--hbm", "4"]) == 2
    assert "--radix-tier-record" in capsys.readouterr().err
