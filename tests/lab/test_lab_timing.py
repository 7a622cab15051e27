"""The timing model: the server's cost model in O(1), queues against a slow way to say the same, percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.lab.rates import Rates
from radixtier.lab.timing import Costs, Drive, Gpu, Stack
from radixtier.policy.bandwidth import CopyRate, ReadRate
from radixtier.policy.prefill import FAST, Machine, PrefillCost
from radixtier.policy.promotion import Ask, plan

BLOCK_TOKENS, BLOCK_BYTES = 64, 8 << 20

RATES = st.builds(
    Rates,
    prefill=st.builds(Machine, st.just(0.01), st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-6)),
    copy=st.floats(1e8, 1e11),
    read=st.floats(1e7, 1e11),
    read_latency_s=st.floats(1e-5, 1.0),
)


@given(RATES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 60), st.integers(1, 70), st.integers(0, 10**12))
def test_the_split_is_that_of_the_server(rates: Rates, hbm: int, dram: int, cold: int, more: int, queued: int) -> None:
    costs = Costs(rates, BLOCK_TOKENS, BLOCK_BYTES)
    tokens = (hbm + dram + cold - 1) * BLOCK_TOKENS + more
    ask = Ask(
        prompt_tokens=tokens,
        hbm_tokens=hbm * BLOCK_TOKENS,
        pages=dram + cold,
        cold=range(dram, dram + cold),
        page_tokens=BLOCK_TOKENS,
        page_bytes=BLOCK_BYTES,
        frames=cold,
        queued_bytes=queued,
    )
    wanted = plan(
        ask, PrefillCost(rates.prefill), ReadRate(rates.read_latency_s, rates.read), CopyRate(rate=rates.copy)
    )
    split = costs.split(tokens, hbm + dram, cold, float(queued))
    if split != wanted.wait_pages:  # a tie within rounding
        assert gain(costs, tokens, hbm + dram, split, queued) == pytest.approx(
            gain(costs, tokens, hbm + dram, wanted.wait_pages, queued), rel=1e-9, abs=1e-9
        )


def gain(costs: Costs, tokens: int, loaded: int, blocks: int, queued: int) -> float:
    if not blocks:
        return 0.002
    rates = costs.rates
    saved = costs.prefill(costs.cached(tokens, loaded), costs.cached(tokens, loaded + blocks))
    saved -= blocks * BLOCK_BYTES / rates.copy
    return saved - 1.25 * (rates.read_latency_s + (queued + blocks * BLOCK_BYTES) / rates.read)


@given(RATES, st.integers(0, 10**5), st.integers(0, 10**5))
def test_prefill_costs_what_the_server_believes(rates: Rates, start: int, end: int) -> None:
    costs = Costs(rates, BLOCK_TOKENS, BLOCK_BYTES)
    assert costs.prefill(start, end) == pytest.approx(PrefillCost(rates.prefill).seconds(float(start), float(end)))


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20), st.floats(0, 5)), max_size=30))
def test_the_gpu_serves_whoever_is_ready_first(rows: list[tuple[float, float, float]]) -> None:
    """Against sorting all of them by the time at which they are ready."""
    now, jobs = 0.0, []
    gpu = Gpu()
    for pause, wait, seconds in rows:
        now += pause
        jobs.append((now + wait, len(jobs), now, seconds))
        gpu.arrive(now, now + wait, seconds)
    gpu.finish()
    free, expected = 0.0, []
    for ready, _, arrived, seconds in sorted(jobs):
        start = max(ready, free)
        free = start + seconds
        expected.append((start - arrived, seconds))
    assert list(gpu.queue) == pytest.approx([queue for queue, _ in expected], rel=1e-6, abs=1e-6)
    assert list(gpu.work) == pytest.approx([seconds for _, seconds in expected], rel=1e-6)
    assert gpu.busy == pytest.approx(sum(seconds for _, _, seconds in rows))


def test_a_drive_reads_in_the_order_of_asking() -> None:
    drive = Drive(Rates(read=100.0, read_latency_s=0.5))
    assert drive.queued(0.0) == 0.0
    assert drive.read(200, 1.0) == 3.5
    assert drive.queued(2.0) == 100.0
    assert drive.read(100, 2.0) == 4.5, "behind the one before"
    assert drive.read(100, 9.0) == 10.5


def stack(**rates: float) -> Stack:
    machine = Machine(overhead=0.0, linear=0.01, quadratic=1e-12)
    return Stack(Costs(Rates(prefill=machine, read_latency_s=0.0, **rates), 10, 100))


def test_what_is_found_is_not_computed_and_the_last_token_is() -> None:
    served = stack(copy=1e30, read=1e30)
    served.serve(0.0, 25, 1, 1, 0)
    served.serve(100.0, 25, 1, 1, 1)
    assert list(served.gpu.work) == pytest.approx([0.05, 0.01], rel=1e-4)
    assert (served.hits, served.tokens, served.passed) == (5, 45, 0)


def test_a_copy_that_is_longer_than_the_prefill_counts() -> None:
    served = stack(copy=100.0, read=1e30)
    served.serve(0.0, 25, 0, 2, 0)
    assert list(served.gpu.work) == pytest.approx([2.0])


def test_a_request_waits_for_what_is_worth_it_and_others_overtake_it() -> None:
    """Reading a block takes 1 s, computing it 10 s; the second request is served while the first one waits."""
    machine = Machine(overhead=0.0, linear=1.0, quadratic=1e-12)
    served = Stack(Costs(Rates(prefill=machine, copy=1e30, read=100.0, read_latency_s=0.0), 10, 100))
    served.serve(0.0, 21, 0, 0, 2)
    served.serve(1.0, 3, 0, 0, 0)
    served.gpu.finish()
    assert list(served.gpu.work) == pytest.approx([3.0, 1.0])
    assert list(served.gpu.queue) == pytest.approx([0.0, 4.0]), "ready after 2 s, free after 4"


def test_what_is_not_worth_the_wait_is_computed() -> None:
    served = stack(copy=1e30, read=1.0)
    served.serve(0.0, 21, 0, 0, 2)
    assert (served.hits, served.tokens, served.passed) == (2, 20, 20)
    assert list(served.gpu.work) == pytest.approx([0.21]) and list(served.gpu.queue) == [0.0]


def test_the_machine_of_the_defaults() -> None:
    assert Rates().prefill == FAST and Costs(Rates(), 64, 1).prefill(0, 5000) == pytest.approx(1.0763, abs=1e-4)
