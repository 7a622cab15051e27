"""For how much a request waits, on a virtual clock with drives of every kind.

The server in here is one queue: a request arrives, is planned, waits tick by tick while a drive with a rate of its own
reads 8 MB jobs in order, is planned again at every tick, and then loads what came and recomputes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.policy.bandwidth import CopyRate, ReadRate
from radixtier.policy.prefill import Machine, PrefillCost
from radixtier.policy.promotion import (
    HEDGE,
    LEAST_GAIN_S,
    LONGEST_S,
    PROBE_LEAST_S,
    PROBE_MOST_S,
    PROBE_SHARE,
    Ask,
    Plan,
    Probe,
    Why,
    plan,
)

GPU = Machine(overhead=0.01, linear=1 / 10_000, quadratic=1 / 10_000 / 30_000)
CPU = Machine(overhead=0.02, linear=1 / 350, quadratic=1 / 350 / 4_000)
GPU_BYTES, CPU_BYTES = 128 << 10, 46 << 10
"""KV bytes per token of an 8B and of a 135M model (float32)."""

PAGE_TOKENS = 16
JOB_BYTES = 8 << 20
TICK_S = 0.02

RateAt = Callable[[float], float]


def ask(cold: list[int] | range, pages: int | None = None, **changes: int | bool) -> Ask:
    known: dict[str, int | bool] = {
        "prompt_tokens": 20_000, "hbm_tokens": 0, "page_tokens": PAGE_TOKENS, "page_bytes": PAGE_TOKENS * GPU_BYTES,
        "frames": 100_000, **changes,
    }  # fmt: skip
    return Ask(pages=len(cold) if pages is None else pages, cold=list(cold), **known)


def exact(machine: Machine, rate: float) -> tuple[PrefillCost, ReadRate, CopyRate]:
    """Estimators whose prior is the truth."""
    return PrefillCost(machine), ReadRate(1e-4, rate), CopyRate(1e-5, 20e9)


# ---- one plan ---------------------------------------------------------------------------------------


def test_a_fast_drive_is_waited_for_to_the_last_page() -> None:
    prefill, read, copy = exact(GPU, 5e9)
    it = plan(ask(range(1000)), prefill, read, copy)
    assert it.wait_pages == 1000 and it.why is Why.WORTH_IT
    assert it.expected_s == pytest.approx(1000 * PAGE_TOKENS * GPU_BYTES / 5e9, rel=0.01)
    assert it.expected_s < it.deadline_s < prefill.seconds(0.0, 16_000.0)


def test_a_drive_slower_than_recompute_is_not_waited_for() -> None:
    it = plan(ask(range(1000)), *exact(GPU, 0.5e9))
    assert it == Plan(0, 0.0, 0.0, Why.TOO_SLOW)


def test_what_is_queued_ahead_counts() -> None:
    assert plan(ask(range(1000)), *exact(GPU, 5e9)).wait_pages == 1000
    assert plan(ask(range(1000), queued_bytes=20_000_000_000), *exact(GPU, 5e9)).why is Why.TOO_SLOW


def test_nothing_is_waited_for_that_is_there_or_has_no_room() -> None:
    assert plan(ask([], pages=50), *exact(GPU, 5e9)) == Plan(0, 0.0, 0.0, Why.NOTHING_COLD)
    assert plan(ask(range(9), frames=0), *exact(GPU, 5e9)) == Plan(0, 0.0, 0.0, Why.NO_FRAMES)
    it = plan(ask(range(1000), frames=300), *exact(GPU, 5e9))
    assert (it.wait_pages, it.why) == (300, Why.NO_FRAMES)


def test_a_gain_of_less_than_a_pass_of_the_scheduler_is_no_reason_to_wait_nor_to_stop_waiting() -> None:
    assert plan(ask([0]), *exact(GPU, 5e9)).why is Why.TOO_SHORT
    assert plan(ask([0], waiting=True), *exact(GPU, 5e9)).wait_pages == 1


def test_one_cold_page_in_front_of_many_in_dram_is_worth_a_wait_that_it_is_not_worth_alone() -> None:
    slow = exact(GPU, 0.2e9)
    assert plan(ask(range(1)), *slow).wait_pages == 0
    it = plan(ask([0], pages=500), *slow)
    assert it.wait_pages == 1 and it.deadline_s == pytest.approx(GPU_SECONDS(0, 8000), rel=0.2)


def test_the_split_lies_in_front_of_cold_pages_with_nothing_behind_them() -> None:
    """Position 0 unlocks 500 pages; the 500 cold ones at the end unlock only themselves."""
    it = plan(ask([0, *range(500, 1000)]), *exact(GPU, 0.5e9))
    assert (it.wait_pages, it.why) == (1, Why.TOO_SLOW)


def test_deep_tokens_are_worth_a_wait_that_shallow_ones_are_not() -> None:
    drive = exact(GPU, 2.2e9 * 1.25 * 0.65)
    assert plan(ask(range(500), prompt_tokens=100_000), *drive).wait_pages == 500
    slow = exact(GPU, 1.2e9)
    assert plan(ask(range(500), prompt_tokens=100_000), *slow).wait_pages == 0
    assert plan(ask(range(500), prompt_tokens=100_000, hbm_tokens=60_000), *slow).wait_pages == 500


def test_the_last_token_of_a_prompt_is_computed_anyway() -> None:
    it = plan(ask(range(1000), prompt_tokens=16_000), *exact(GPU, 5e9))
    assert it.deadline_s < PrefillCost(GPU).seconds(0.0, 15_999.0)


def test_no_wait_is_endless() -> None:
    hopeless = Machine(0.1, 1.0, 1.0)
    it = plan(ask(range(1000)), PrefillCost(hopeless), ReadRate(1e-4, 10e6), CopyRate())
    assert it.deadline_s == LONGEST_S and 0 < it.wait_pages < 1000 and it.expected_s <= LONGEST_S


@given(
    cold=st.sets(st.integers(0, 60), max_size=30),
    hbm=st.integers(0, 2000),
    prompt=st.integers(0, 3000),
    frames=st.integers(0, 40),
    queued=st.integers(-10, 1 << 36),
    rate=st.floats(1e5, 1e11),
    slow=st.floats(1e-3, 1e3),
    waiting=st.booleans(),
)
def test_the_split_is_the_best_of_all(
    cold: set[int], hbm: int, prompt: int, frames: int, queued: int, rate: float, slow: float, waiting: bool
) -> None:
    """Against the definition: every split's time, one by one."""
    it = ask(
        sorted(cold), 61, prompt_tokens=prompt, hbm_tokens=hbm, frames=frames, queued_bytes=queued, waiting=waiting
    )
    prefill, read, copy = exact(Machine(0.1, slow / 5000, slow / 1e8), rate)
    got = plan(it, prefill, read, copy)
    stops = [*it.cold, it.pages]

    def start(j: int) -> float:
        return float(min(hbm + stops[j] * PAGE_TOKENS, max(0, prompt - 1)))

    def saved(j: int) -> float:
        copies = copy.seconds(float(stops[j] * it.page_bytes)) - copy.seconds(float(stops[0] * it.page_bytes))
        return prefill.seconds(start(0), start(j)) - copies

    def gain(j: int) -> float:
        wait = read.seconds(float(j * it.page_bytes), float(max(0, queued)))
        return saved(j) - wait * (1.0 if waiting else HEDGE) if wait <= LONGEST_S else -np.inf

    split, most = got.wait_pages, min(frames, len(cold))
    best = max((gain(j) for j in range(1, most + 1)), default=0.0)
    assert split <= most
    if split:
        assert gain(split) >= best - 1e-9 and (waiting or best >= LEAST_GAIN_S)
    else:
        assert best <= (1e-9 if waiting else LEAST_GAIN_S)
    assert got.deadline_s == pytest.approx(min(LONGEST_S, saved(split)) if split else 0.0, abs=1e-9)
    assert got.deadline_s <= prefill.seconds(start(0), start(split)) + 1e-12
    assert 0 <= got.expected_s <= max(got.deadline_s, 1e-12)


def test_a_revised_plan_only_ever_shortens_the_wait() -> None:
    first = Plan(10, 2.0, 0.1, Why.WORTH_IT)
    assert first.revised(Plan(8, 9.0, 0.3, Why.WORTH_IT), 0.5) == Plan(8, 2.0, 0.3, Why.WORTH_IT)
    assert first.revised(Plan(8, 0.5, 0.3, Why.WORTH_IT), 0.5).deadline_s == 1.0
    over = first.revised(Plan(0, 0.0, 0.0, Why.TOO_SLOW), 0.5)
    assert over.deadline_s == 0.5 and over.wait_pages == 0


def GPU_SECONDS(start: int, end: int) -> float:
    return PrefillCost(GPU).seconds(float(start), float(end))


# ---- probes -----------------------------------------------------------------------------------------


def test_probes_take_a_bounded_share_of_the_drive_and_run_one_at_a_time() -> None:
    probe = Probe()
    now, busy, started = 0.0, 0.0, 0
    while now < 3600:
        if probe.due(now):
            probe.started(now, 1.0)
            started += 1
            assert not probe.due(now + 0.99)
            now += 1.0
            busy += 1.0
            probe.finished(now, 1.0)
        now += 0.1
    assert busy / now <= PROBE_SHARE and started >= 3600 / (1.0 / PROBE_SHARE + 1.2)


def test_a_probe_that_was_fast_is_followed_by_the_next_at_once() -> None:
    probe = Probe()
    probe.started(0.0, 1.0)
    probe.finished(0.01, 0.01)
    assert probe.due(0.01)
    probe.started(0.02, 0.01)
    probe.finished(0.03, 0.01)
    assert not probe.due(0.04) and probe.due(0.03 + PROBE_LEAST_S)


def test_a_probe_that_fails_or_hangs_is_not_the_last() -> None:
    probe = Probe()
    probe.started(0.0, 1.0)
    probe.finished(1.0, float("inf"))
    assert not probe.due(PROBE_MOST_S) and probe.due(1.0 + PROBE_MOST_S)
    probe.started(100.0, 1.0)
    assert not probe.due(100.0 + PROBE_MOST_S - 1) and probe.due(100.0 + PROBE_MOST_S)


# ---- a server on a virtual clock --------------------------------------------------------------------


@dataclass(eq=False)
class Job:
    nbytes: int
    pages: int
    ahead: int
    queued_at: float
    left: float
    started_at: float | None = None
    ended_at: float = 0.0


@dataclass
class Drive:
    """Reads jobs in order, at the rate that holds at the time."""

    rate: RateAt
    now: float = 0.0
    queue: list[Job] = field(default_factory=list)

    def submit(self, nbytes: int, pages: int) -> Job:
        ahead = int(sum(job.left for job in self.queue))
        job = Job(nbytes, pages, ahead, self.now, float(nbytes))
        self.queue.append(job)
        return job

    def cancel_waiting(self) -> None:
        self.queue = [job for job in self.queue if job.started_at is not None]

    def advance(self, until: float) -> list[Job]:
        """Move bytes until then, in steps of at most a tick; return the jobs that ended."""
        done = []
        while self.now < until:
            step = min(TICK_S, until - self.now)
            rate, spent = self.rate(self.now), 0.0
            while self.queue and spent < step:
                job = self.queue[0]
                job.started_at = self.now + spent if job.started_at is None else job.started_at
                takes = min(job.left / rate, step - spent)
                spent += takes
                job.left -= takes * rate
                if job.left < 1:
                    job.ended_at = self.now + spent
                    done.append(self.queue.pop(0))
            self.now += step
        return done


class Served(NamedTuple):
    waited: float
    ttft: float
    without: float
    """TTFT on a server without the tier."""
    recompute: float
    """True seconds to recompute what it waited for, by the first plan."""
    asked: int
    got: int


@dataclass
class Server:
    machine: Machine
    drive: Drive
    prefill: PrefillCost
    read: ReadRate
    copy: CopyRate
    token_bytes: int
    probe: Probe = field(default_factory=Probe)
    probing: Job | None = None

    def serve(self, prompt: int, hbm: int, cold: list[int], pages: int, frames: int = 1 << 30) -> Served:
        """Serve one request; returns what it cost."""
        page_bytes = PAGE_TOKENS * self.token_bytes
        true = PrefillCost(self.machine)
        self._tell(self.drive.advance(self.drive.now))
        queued = int(sum(job.left for job in self.drive.queue))
        it = Ask(prompt, hbm, pages, cold, PAGE_TOKENS, page_bytes, frames, queued)
        first = current = plan(it, self.prefill, self.read, self.copy)
        stops = [*cold, pages]
        start, reach = self._start(it, stops[0]), self._start(it, stops[first.wait_pages])
        per_job = max(1, JOB_BYTES // page_bytes)
        jobs = []
        for lo in range(0, first.wait_pages, per_job):
            n = min(per_job, first.wait_pages - lo)
            jobs.append(self.drive.submit(n * page_bytes, n))
        came_at, arrived = self.drive.now, 0
        while arrived < first.wait_pages and self.drive.now - came_at < current.deadline_s:
            done = self.drive.advance(self.drive.now + TICK_S)
            self._tell(done)
            arrived += sum(job.pages for job in done if job in jobs)
            if self.drive.queue:
                oldest = self.drive.queue[0]
                self.read.overdue(oldest.nbytes, self.drive.now - oldest.queued_at, oldest.ahead)
            rest = Ask(prompt, hbm, pages, cold[arrived:], PAGE_TOKENS, page_bytes, first.wait_pages - arrived,
                       waiting=True)  # fmt: skip
            current = current.revised(plan(rest, self.prefill, self.read, self.copy), self.drive.now - came_at)
        waited = self.drive.now - came_at if first.wait_pages else 0.0
        self.drive.cancel_waiting()
        if first.why is Why.TOO_SLOW and self.probe.due(self.drive.now) and self.probing is None:
            n = min(per_job, len(cold))
            self.probing = self.drive.submit(n * page_bytes, n)
            self.probe.started(self.drive.now, self.read.seconds(float(n * page_bytes)))
        loaded = stops[arrived]
        final = self._start(it, loaded)
        rest_s = true.batch_seconds([(prompt - int(final), int(final))])
        self._tell(self.drive.advance(self.drive.now + rest_s))
        self.prefill.observe([(prompt - int(final), int(final))], rest_s)
        self.copy.observe(max(1, loaded * page_bytes), 1e-5 + loaded * page_bytes / 20e9)
        copies = loaded * page_bytes / 20e9
        without = true.batch_seconds([(prompt - int(start), int(start))]) + stops[0] * page_bytes / 20e9
        return Served(waited, waited + copies + rest_s, without, true.seconds(start, reach), len(cold), arrived)

    @staticmethod
    def _start(it: Ask, loadable: int) -> float:
        return float(min(it.hbm_tokens + loadable * PAGE_TOKENS, max(0, it.prompt_tokens - 1)))

    def _tell(self, done: list[Job]) -> None:
        for job in done:
            assert job.started_at is not None
            waited, service = job.started_at - job.queued_at, job.ended_at - job.started_at
            self.read.observe(job.nbytes, waited, service, job.ahead)
            if job is self.probing:
                self.probing = None
                self.probe.finished(self.drive.now, waited + service)


PHASES = st.lists(st.tuples(st.floats(0.05, 20.0), st.floats(4.0, 10.5)), min_size=1, max_size=4)
"""Of a drive: seconds, and the decimal logarithm of the rate, bytes/s."""


def rate_of(phases: list[tuple[float, float]]) -> RateAt:
    ends = np.cumsum([seconds for seconds, _ in phases])

    def rate(now: float) -> float:
        return float(10.0 ** phases[min(int(np.searchsorted(ends, now)), len(phases) - 1)][1])

    return rate


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.sets(st.integers(0, 250), max_size=120).map(sorted),
        st.integers(1, 3000),
        st.floats(0.0, 5.0),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=5,
)
"""Tokens in HBM, cold pages among 251, tokens behind them, pause in seconds, frames."""


@settings(max_examples=60, deadline=None)
@given(
    PHASES, REQUESTS, st.sampled_from([GPU, CPU]), st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(1e-4, 9.0)))
)
def test_no_request_waits_longer_than_recomputing_takes_whatever_the_drive_does(
    phases: list[tuple[float, float]],
    requests: list[tuple[int, list[int], int, float, int]],
    machine: Machine,
    lies: list[tuple[int, float]],
) -> None:
    """The estimate of prefill is exact; of the drive anything may have been seen before."""
    server = Server(machine, Drive(rate_of(phases)), PrefillCost(machine), ReadRate(), CopyRate(1e-5, 20e9), GPU_BYTES)
    for nbytes, seconds in lies:
        server.read.observe(nbytes, 0.0, seconds)
    for hbm, cold, tail, pause, frames in requests:
        server._tell(server.drive.advance(server.drive.now + pause))
        served = server.serve(hbm + 251 * PAGE_TOKENS + tail, hbm, cold, 251, frames)
        assert served.waited <= min(LONGEST_S, served.recompute) + TICK_S * 1.001
        assert served.ttft <= served.without + served.recompute + 2 * TICK_S


@settings(max_examples=40, deadline=None)
@given(PHASES, REQUESTS, st.sampled_from([GPU, CPU]), st.lists(st.tuples(st.integers(1, 9999), st.floats(1e-4, 99.0))))
def test_with_any_estimate_of_prefill_nobody_waits_longer_than_that_says(
    phases: list[tuple[float, float]],
    requests: list[tuple[int, list[int], int, float, int]],
    machine: Machine,
    lies: list[tuple[int, float]],
) -> None:
    server = Server(machine, Drive(rate_of(phases)), PrefillCost(), ReadRate(), CopyRate(), GPU_BYTES)
    for tokens, seconds in lies:
        server.prefill.observe([(tokens, 0)], seconds)
    for hbm, cold, tail, pause, frames in requests:
        server._tell(server.drive.advance(server.drive.now + pause))
        believed = server.prefill.seconds(float(hbm), float(hbm + 251 * PAGE_TOKENS))
        served = server.serve(hbm + 251 * PAGE_TOKENS + tail, hbm, cold, 251, frames)
        assert served.waited <= min(LONGEST_S, believed) + TICK_S * 1.001


LOADS = [(GPU, GPU_BYTES, 5e9), (GPU, GPU_BYTES, 3e9), (CPU, CPU_BYTES, 0.5e9), (CPU, CPU_BYTES, 0.2e9)]


def conversation(server: Server, n: int, seed: int) -> list[Served]:
    """Serve ``n`` requests of 1,600 to 12,800 tokens, most of them on NVMe only."""
    random = np.random.default_rng(seed)
    served = []
    for _ in range(n):
        pages = int(random.integers(100, 800))
        front = int(random.integers(0, pages // 3))
        tail = int(random.integers(20, 600))
        server._tell(server.drive.advance(server.drive.now + float(random.exponential(0.2))))
        served.append(server.serve(pages * PAGE_TOKENS + tail, 0, list(range(front, pages)), pages))
    return served


def fresh(machine: Machine, token_bytes: int, rate: RateAt) -> Server:
    return Server(machine, Drive(rate), PrefillCost(), ReadRate(), CopyRate(), token_bytes)


def whole(served: list[Served]) -> int:
    """Count the requests that got every page they had on NVMe."""
    return sum(s.got == s.asked for s in served)


def p95(served: list[Served]) -> float:
    """How much slower the 95th percentile of TTFT is than on a server without the tier."""
    return float(np.quantile([s.ttft for s in served], 0.95) / np.quantile([s.without for s in served], 0.95))


@pytest.mark.parametrize(("machine", "token_bytes", "rate"), LOADS)
@pytest.mark.parametrize("seed", range(2))
def test_a_drive_100_times_slower_costs_the_p95_less_than_a_tenth(
    machine: Machine, token_bytes: int, rate: float, seed: int
) -> None:
    served = conversation(fresh(machine, token_bytes, lambda _: rate / 100), 60, seed)
    assert p95(served) <= 1.05
    assert max(s.ttft / s.without for s in served) <= 2.05


@pytest.mark.parametrize(("machine", "token_bytes", "rate"), LOADS)
def test_a_drive_that_collapses_is_given_up_and_one_that_recovers_is_taken_up_again(
    machine: Machine, token_bytes: int, rate: float
) -> None:
    factor = [1.0]
    server = fresh(machine, token_bytes, lambda _: rate * factor[0])
    good = conversation(server, 40, 1)
    assert whole(good[10:]) >= 27
    factor[0] = 0.01
    bad = conversation(server, 60, 2)
    assert p95(bad) <= 1.05
    # Nobody pays for a whole deadline: overdue jobs tell before it is over.
    assert max(s.ttft / s.without for s in bad) <= 1.5
    factor[0] = 1.0
    server._tell(server.drive.advance(server.drive.now + PROBE_MOST_S))
    again = conversation(server, 40, 3)
    assert whole(again[15:]) >= 22
