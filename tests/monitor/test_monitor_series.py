"""The series against states: names, units, samples, and counters that never go down."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_rig import LATENCIES, drive, make_state, odd_states, without_nvme

from radixtier.monitor.prometheus import Advances
from radixtier.monitor.reading import grown, percentile
from radixtier.monitor.series import COMMON_LABELS, SERIES, Kind, Series

BY_NAME = {series.name: series for series in SERIES}
EACH = pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)


def samples(name: str, state: object) -> dict[tuple[str, ...], float]:
    return dict(BY_NAME[name].read(state))  # type: ignore[arg-type]


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(SERIES)


@EACH
def test_names_follow_the_conventions_of_prometheus(series: Series) -> None:
    assert re.fullmatch(r"radixtier_[a-z]+(_[a-z]+)*", series.name)
    assert series.name.endswith("_total") == (series.kind is Kind.COUNTER)
    base = series.name.removesuffix("_total")
    if series.unit in ("tokens", "bytes", "seconds", "ratio"):
        assert base.endswith(series.unit) or series.unit in base.split("_"), "the unit is in the name"
    assert not re.search(r"_(ms|milliseconds|mb|mib|gib|percent)(_|$)", series.name), "base units only"
    assert not set(series.labels) & {*COMMON_LABELS, "le", "pid"}


@EACH
def test_help_and_advice_are_sentences(series: Series) -> None:
    for text in (series.help, series.advice):
        assert text[0].isupper() or text[0] == "`" or text[0].isdigit(), text
        assert text.endswith("."), text
        assert "|" not in text and "\n" not in text, "they go into a table"


@EACH
def test_every_series_has_samples_on_a_server_with_all_tiers(series: Series) -> None:
    state = make_state(seconds=3600, pages=5)
    found = list(series.read(state)) if series.observe is None else [series.observe(("read", 0.5, 4096))]
    assert found
    for labels, value in found:
        assert len(labels) == len(series.labels) and all(isinstance(label, str) for label in labels)
        assert isinstance(value, float) and math.isfinite(value)
    assert len({labels for labels, _ in found}) == len(found)


@EACH
def test_a_server_without_nvme_has_what_applies(series: Series) -> None:
    for _, value in series.read(without_nvme()):
        assert math.isfinite(value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("radixtier_requests_total", {(): 5}),
        ("radixtier_prompt_tokens_total", {("hbm",): 5, ("dram",): 10, ("nvme",): 15, ("computed",): 20}),
        ("radixtier_tier_used_tokens", {("hbm",): 512, ("dram",): 1024, ("nvme",): 160}),
        ("radixtier_tier_used_bytes", {("hbm",): 512 * 512, ("dram",): 1024 * 512, ("nvme",): 160 * 512}),
        ("radixtier_demoted_tokens_total", {(): 80}),
        ("radixtier_ahead_used_tokens_total", {(t,): 80 for t in ("hint", "return", "idle", "probe")}),
        ("radixtier_awaited_tokens_total", {("in_time",): 80, ("late",): 0}),
        ("radixtier_writes_refused_tokens_total", {("rejected",): 80, ("throttled",): 80}),
        ("radixtier_io_bytes_total", {(kind,): 5 * 8192 for kind in ("read", "write", "verify")}),
        ("radixtier_health_status", {("ok",): 1, ("degraded",): 0, ("draining",): 0, ("drained",): 0}),
        ("radixtier_build_info", {("0.1.0", "0.5.23"): 1}),
        ("radixtier_pinned_pages", {("dram",): 4, ("nvme",): 4}),
    ],
)
def test_figures(name: str, expected: dict[tuple[str, ...], float]) -> None:
    assert samples(name, make_state(pages=5)) == expected


def test_drives_are_told_apart() -> None:
    drives = [drive("/a", reason="it hangs", kind="stalled", quarantined=3), drive("/b")]
    state = make_state(store={"drives": drives})
    assert samples("radixtier_drive_degraded", state) == {("/a",): 1, ("/b",): 0}
    assert samples("radixtier_drive_quarantined_slots", state) == {("/a",): 3, ("/b",): 0}
    assert samples("radixtier_drive_used_bytes", state) == {("/a",): 81920, ("/b",): 81920}


@pytest.mark.parametrize("status", ["degraded", "draining", "drained"])
def test_one_status_at_a_time(status: str) -> None:
    found = samples("radixtier_health_status", make_state(health={"status": status}))
    assert found[status,] == 1 and sum(found.values()) == 1


@settings(max_examples=200, deadline=None)
@given(state=odd_states())
def test_reading_never_raises_and_yields_numbers(state: dict[str, object]) -> None:
    for series in SERIES:
        for labels, value in series.read(state):
            assert len(labels) == len(series.labels) and not math.isnan(value)


@settings(max_examples=200, deadline=None)
@given(states=st.lists(odd_states(), max_size=8), latencies=LATENCIES)
def test_counters_never_go_down_whatever_states_come(states: list[dict[str, object]], latencies: object) -> None:
    advances = Advances()
    for state in states:
        for series in SERIES:
            if series.kind is Kind.COUNTER:
                for labels, value in series.read(state):
                    assert 0 <= advances.take((series.name, labels), value) < math.inf


@given(values=st.lists(st.integers(0, 1000)))
def test_a_counter_advances_by_what_it_grew_and_counts_on_after_a_restart(values: list[int]) -> None:
    advances = Advances()
    total = sum(advances.take(("x", ()), float(value)) for value in values)
    last, expected = 0, 0
    for value in values:
        expected += value - last if value >= last else value
        last = value
    assert total == expected


def test_growth_and_percentiles() -> None:
    assert (grown(None, 1.0), grown(1.0, None), grown(3.0, 5.0), grown(5.0, 3.0)) == (None, None, 2.0, 3.0)
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([], 0.5) is None and percentile([7.0], 0.99) == 7.0
