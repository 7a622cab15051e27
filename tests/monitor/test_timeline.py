"""The timeline: rates and levels are right whatever the steps, points are bounded, and any thread may read."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_rig import LATENCIES, START, make_state, odd_states, without_nvme

from radixtier.monitor.timeline import COARSE_SPAN_S, FIGURES, FINE_SPAN_S, Timeline

NAMES = (
    "requests_per_s", "hbm_tokens_per_s", "dram_tokens_per_s", "nvme_tokens_per_s", "computed_tokens_per_s",
    "hbm_used", "dram_used", "nvme_used", "read_bytes_per_s", "write_bytes_per_s", "promoted_tokens_per_s",
    "demoted_tokens_per_s", "io_queue", "waiting_requests", "tick_ms", "read_p50_ms", "read_p99_ms", "write_p99_ms",
    "corrupt_per_s", "lost_tokens_per_s",
)  # fmt: skip


def filled(seconds: int) -> Timeline:
    """A timeline of a server that moves one page of each kind per second."""
    timeline = Timeline()
    for second in range(seconds + 1):
        timeline.add(make_state(second, second), [("read", 0.002, 8192)])
    return timeline


def test_names_are_those_of_the_contract() -> None:
    assert tuple(FIGURES) == NAMES
    assert Timeline().to_json(60) == {"interval_s": 1.0, "at": [], "series": {name: [] for name in NAMES}}


def test_a_point_is_the_rate_since_the_one_before_and_the_level_at_its_end() -> None:
    found = filled(3).to_json(60)
    assert found["at"] == [START + 1, START + 2, START + 3]
    expected = {
        "requests_per_s": 1, "hbm_tokens_per_s": 1, "dram_tokens_per_s": 2, "nvme_tokens_per_s": 3,
        "computed_tokens_per_s": 4, "hbm_used": 512, "dram_used": 1024, "nvme_used": 160, "read_bytes_per_s": 8192,
        "write_bytes_per_s": 8192, "promoted_tokens_per_s": 16, "demoted_tokens_per_s": 16, "io_queue": 5,
        "waiting_requests": 1, "tick_ms": 2, "read_p50_ms": 2, "read_p99_ms": 2, "write_p99_ms": None,
        "corrupt_per_s": 0, "lost_tokens_per_s": 16,
    }  # fmt: skip
    assert found["series"] == {name: [value] * 3 for name, value in expected.items()}


def test_a_long_step_spreads_what_happened_over_its_time() -> None:
    timeline = filled(1)
    timeline.add(make_state(21, 41), [])
    found = timeline.to_json(60)
    assert found["at"] == [START + 1, START + 21]
    assert found["series"]["requests_per_s"] == [1, 2]


def test_states_that_come_too_early_make_no_point_and_lose_nothing() -> None:
    timeline = Timeline()
    for tenth in range(31):
        timeline.add(make_state(tenth / 10, tenth), [("write", tenth / 1000, 1)])
    found = timeline.to_json(60)
    assert sum(found["series"]["requests_per_s"]) / len(found["at"]) == pytest.approx(10, rel=0.01)
    assert found["series"]["write_p99_ms"][-1] is not None and len(found["at"]) <= 4


def test_percentiles_are_of_the_transfers_of_a_point() -> None:
    timeline = Timeline()
    timeline.add(make_state(0), [])
    timeline.add(make_state(1), [("read", ms / 1000, 1) for ms in range(1, 101)] + [("write", 5.0, 1)])
    timeline.add(make_state(2), [])
    series = timeline.to_json(60)["series"]
    assert series["read_p50_ms"] == [50, None] and series["read_p99_ms"] == [99, None]
    assert series["write_p99_ms"] == [5000, None]


def test_points_are_bounded_and_the_coarse_ones_reach_further() -> None:
    timeline = filled(2000)
    fine, coarse = timeline.to_json(FINE_SPAN_S), timeline.to_json(FINE_SPAN_S + 1)
    assert (fine["interval_s"], coarse["interval_s"]) == (1.0, 10.0)
    assert fine["at"] == [START + second for second in range(1101, 2001)]
    assert coarse["at"] == [START + second for second in range(1100, 2001, 10)]
    assert timeline.to_json(COARSE_SPAN_S)["at"] == [START + second for second in range(10, 2001, 10)]
    assert coarse["series"]["nvme_tokens_per_s"] == [3.0] * len(coarse["at"])
    assert coarse["series"]["read_p99_ms"] == [2.0] * len(coarse["at"])
    assert len(timeline.to_json(10)["at"]) == 11 and timeline.to_json(-5)["at"] == []


def test_six_hours_and_no_more() -> None:
    timeline = Timeline()
    for second in range(0, 30_000, 10):
        timeline.add(make_state(second, second), [])
    found = timeline.to_json(1e9)
    assert len(found["at"]) == COARSE_SPAN_S / 10 and found["at"][0] == START + 29_990 - COARSE_SPAN_S + 10


def test_a_counter_that_starts_over_and_a_clock_that_is_set_back() -> None:
    timeline = filled(5)
    timeline.add(make_state(6, 2), [])
    assert timeline.to_json(60)["series"]["requests_per_s"][-1] == 2
    timeline.add(make_state(3, 9), [])
    timeline.add(make_state(4, 10), [])
    found = timeline.to_json(60)
    assert found["at"] == sorted(set(found["at"])) and found["at"][-1] == START + 4
    assert found["series"]["requests_per_s"][-1] == 1


def test_a_server_without_nvme_has_nulls() -> None:
    timeline = Timeline()
    for second in range(3):
        timeline.add(without_nvme(second), [])
    series = timeline.to_json(60)["series"]
    assert series["read_bytes_per_s"] == series["io_queue"] == series["corrupt_per_s"] == [None, None]
    assert series["hbm_used"] == [512, 512]


@settings(max_examples=100, deadline=None)
@given(states=st.lists(st.tuples(odd_states(), LATENCIES), max_size=8))
def test_any_states_make_valid_json_in_order(states: list[tuple[dict[str, object], list[object]]]) -> None:
    timeline = Timeline()
    for state, latencies in states:
        timeline.add(state, latencies)  # type: ignore[arg-type]
    for seconds in (60.0, 7200.0):
        found = timeline.to_json(seconds)
        json.dumps(found, allow_nan=False)
        assert found["at"] == sorted(found["at"])
        assert {len(column) for column in found["series"].values()} == {len(found["at"])}


def test_readers_on_other_threads_see_whole_points() -> None:
    timeline, stop, wrong = Timeline(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            found = timeline.to_json(60)
            if any(len(column) != len(found["at"]) for column in found["series"].values()):
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for second in range(300):
        timeline.add(make_state(second, second), [])
    stop.set()
    for reader in readers:
        reader.join(30)
    assert not wrong and len(timeline.to_json(60)["at"]) == 61
