"""A real server with ``--enable-metrics``: what ``/metrics`` says is what the answers say."""

from __future__ import annotations

import importlib.util
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_rig import ANSWER, DRAM, HBM, NVME, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts, tier_flags

from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.monitor.series import SERIES, Kind

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PATIENCE_S = 60.0
WITHOUT_BUDGET = {"radixtier_write_budget_left_bytes", "radixtier_write_budget_bytes_per_day"}
WITHOUT_LANDING = {"radixtier_landing_capacity_tokens", "radixtier_landing_used_tokens"}
LATER = {"radixtier_written_bytes_per_day"}
"""Of no server that is younger than ten minutes."""

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scrape(tiered: Tiered) -> Samples:
    """Return the samples of ``/metrics`` by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{tiered.server.url}/metrics", timeout=REQUEST_TIMEOUT_S) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def by(samples: Samples, name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: value for labels, value in samples.get(name, {}).items()}


def total(samples: Samples, name: str) -> float:
    return sum(samples.get(name, {}).values())


def wait_for(tiered: Tiered, true: Callable[[Samples], bool]) -> Samples:
    """Scrape until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not true(samples := scrape(tiered)):
        assert time.monotonic() < end, "/metrics never said so"
        time.sleep(0.5)
    return samples


@pytest.fixture(scope="module")
def tiered(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    directory = tmp_path_factory.mktemp("metrics")
    store = directory / "nvme"
    store.mkdir()
    flags = [*tier_flags(store, 16), "--served-model-name", "tiny", "--enable-metrics"]
    with Server("of the test", tiny_model, flags, directory / "log") as server:
        server.start(START_TIMEOUT_S)
        yield Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), 16, store)
        assert server.running(), server.failure("died during the tests")


def test_metrics_say_what_the_answers_say(tiered: Tiered) -> None:
    # The server's own first requests are over when it answers, and counted within a second or two.
    tiered.send_all(prompts(1, seed=1))
    wait_for(tiered, lambda now: total(now, "radixtier_requests_total") >= 1)
    time.sleep(3)
    before = scrape(tiered)
    batch = prompts(8, seed=2)
    replies = tiered.send_all([*batch, *reversed(batch)])
    finished = total(before, "radixtier_requests_total") + len(replies)
    after = wait_for(tiered, lambda now: total(now, "radixtier_requests_total") >= finished)
    assert total(after, "radixtier_requests_total") == finished
    name = "radixtier_prompt_tokens_total"
    grown = {source: value - by(before, name, "source")[source] for source, value in by(after, name, "source").items()}
    assert grown == {
        "hbm": sum(reply.hbm for reply in replies),
        "dram": sum(reply.dram for reply in replies),
        "nvme": sum(reply.nvme for reply in replies),
        "computed": sum(reply.recomputed for reply in replies),
    }
    assert all(grown.values()), "every tier was hit"
    told = wait_for(tiered, lambda now: total(now, "radixtier_computed_tokens_total") >= sum_of(now, "computed"))
    assert total(told, "radixtier_computed_tokens_total") == sum_of(told, "computed")
    assert by(told, "radixtier_computed_tokens_total", "reason")["never seen"] > 0


def sum_of(samples: Samples, source: str) -> float:
    return by(samples, "radixtier_prompt_tokens_total", "source")[source]


def test_every_series_is_there_beside_those_of_sglang(tiered: Tiered) -> None:
    samples = scrape(tiered)
    missing = {series.name for series in SERIES if series.kind is not Kind.HISTOGRAM} - set(samples)
    assert missing <= WITHOUT_BUDGET | WITHOUT_LANDING | LATER
    for name, found in samples.items():
        if name.startswith("radixtier_"):
            for labels in found:
                assert {("model_name", "tiny"), ("tp_rank", "0")} <= set(labels), name
    assert any(name.startswith("sglang:") for name in samples)
    transfers = by(samples, "radixtier_io_seconds_count", "kind")
    assert transfers["read"] > 0 and transfers["write"] > 0
    assert by(samples, "radixtier_drive_degraded", "directory") == {str(tiered.store): 0}
    assert by(samples, "radixtier_health_status", "status")["ok"] == 1
    assert by(samples, "radixtier_tier_capacity_tokens", "tier") == {"hbm": HBM, "dram": DRAM, "nvme": NVME}


def test_a_flush_takes_nothing_back(tiered: Tiered) -> None:
    before = scrape(tiered)
    tiered.client.flush()
    (prompt,) = prompts(1, seed=3)
    tiered.client.generate(prompt, ANSWER)
    finished = total(before, "radixtier_requests_total") + 1
    after = wait_for(tiered, lambda now: total(now, "radixtier_requests_total") >= finished)
    for series in SERIES:
        if series.kind is Kind.COUNTER:
            for labels, value in before.get(series.name, {}).items():
                assert after[series.name][labels] >= value, (series.name, labels)
