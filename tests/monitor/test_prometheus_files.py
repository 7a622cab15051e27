"""Prometheus in multiprocess mode: real processes, real files, and the collector that SGLang's server uses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from monitor_rig import drive, make_state, without_nvme

from radixtier.monitor.prometheus import DIRECTORY, Prometheus
from radixtier.monitor.series import COMMON_LABELS, SERIES, Kind

pytest.importorskip("prometheus_client", reason="pip install prometheus-client, which SGLang brings along")

CHILD = Path(__file__).with_name("prometheus_child.py")
SAMPLES = "import sys, json; from prometheus_client import CollectorRegistry, multiprocess; r = CollectorRegistry(); "
SAMPLES += "multiprocess.MultiProcessCollector(r); "
SAMPLES += "print(json.dumps([[m.name, m.type, m.documentation, s.name, s.labels, s.value] "
SAMPLES += "for m in r.collect() for s in m.samples]))"
"""What the server's process does when somebody asks for ``/metrics``."""

PATIENCE_S = 60.0


class Rank:
    """One process that publishes."""

    def __init__(self, directory: Path, rank: int = 0, model: str = "tiny") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), model, str(rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, DIRECTORY: str(directory)},
        )  # fmt: skip

    def publish(self, state: Any, latencies: Any = ()) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([state, latencies]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def make(*args: Any) -> Rank:
        ranks.append(Rank(tmp_path, *args))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.end()


def collect(directory: Path) -> list[tuple[str, str, str, str, dict[str, str], float]]:
    env = {**os.environ, DIRECTORY: str(directory)}
    run = subprocess.run(
        [sys.executable, "-c", SAMPLES], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return [tuple(row) for row in json.loads(run.stdout)]  # type: ignore[misc]


def values(path: Path, name: str, **labels: str) -> list[float]:
    return [
        value for _, _, _, sample, found, value in collect(path) if sample == name and labels.items() <= found.items()
    ]


def test_every_series_is_exported_with_its_type_help_and_labels(start: Callable[..., Rank], tmp_path: Path) -> None:
    start().publish(make_state(3600, 5), [("read", 0.003, 4 << 20)])
    rows = collect(tmp_path)
    by_name = {row[0]: row for row in rows}
    for series in SERIES:
        _, kind, text, _, labels, _ = by_name[series.name.removesuffix("_total")]
        assert (kind, text) == (series.kind.value, series.help)
        assert set(labels) - {"le"} == {*COMMON_LABELS, *series.labels}
        assert (labels["model_name"], labels["tp_rank"]) == ("tiny", "0")
    assert len(by_name) == len(SERIES)
    samples = {row[3] for row in rows}
    assert {series.name for series in SERIES if series.kind is not Kind.HISTOGRAM} <= samples


def test_counters_count_gauges_follow_and_histograms_fill(start: Callable[..., Rank], tmp_path: Path) -> None:
    rank = start()
    rank.publish(make_state(1, 5), [("read", 0.003, 4096), ("read", 0.3, 8192)])
    rank.publish(make_state(2, 8, nodes=9), [("read", 0.003, 4096), ("write", 1.0, 1 << 22)])
    assert values(tmp_path, "radixtier_prompt_tokens_total", source="nvme") == [24]
    assert values(tmp_path, "radixtier_promoted_tokens_total", trigger="arrival") == [128]
    assert values(tmp_path, "radixtier_nodes") == [9]
    assert values(tmp_path, "radixtier_io_seconds_bucket", kind="read", le="0.005") == [2]
    assert values(tmp_path, "radixtier_io_seconds_bucket", kind="read", le="+Inf") == [3]
    assert values(tmp_path, "radixtier_io_seconds_sum", kind="write") == [1.0]
    assert values(tmp_path, "radixtier_io_size_bytes_sum", kind="read") == [4096 + 8192 + 4096]


def test_counting_that_starts_over_never_goes_down(start: Callable[..., Rank], tmp_path: Path) -> None:
    rank = start()
    seen = []
    for finished in (10, 4, 6, 6):
        rank.publish(make_state(1, finished))
        seen += values(tmp_path, "radixtier_requests_total")
    assert seen == [10, 14, 16, 16]


def test_a_gauge_whose_figure_is_gone_is_nan(start: Callable[..., Rank], tmp_path: Path) -> None:
    rank = start()
    rank.publish(make_state())
    rank.publish(without_nvme())
    (left,) = values(tmp_path, "radixtier_write_budget_left_bytes")
    assert math.isnan(left)
    rank.publish(make_state())
    assert values(tmp_path, "radixtier_write_budget_left_bytes") == [float(1 << 30)]


def test_ranks_and_drives_are_told_apart(start: Callable[..., Rank], tmp_path: Path) -> None:
    bad = make_state(store={"drives": [drive("/a", reason="it hangs"), drive("/b")]})
    start(0).publish(bad)
    start(1).publish(make_state(1, 7))
    degraded = "radixtier_drive_degraded"
    assert values(tmp_path, degraded, tp_rank="0", directory="/a") == [1]
    assert values(tmp_path, degraded, tp_rank="0", directory="/b") == [0]
    assert values(tmp_path, degraded, tp_rank="1", directory="/mnt/nvme0") == [0]
    assert values(tmp_path, "radixtier_requests_total", tp_rank="1") == [7]


def test_a_process_that_starts_again_counts_on(start: Callable[..., Rank], tmp_path: Path) -> None:
    first = start()
    first.publish(make_state(1, 5))
    first.end()
    start().publish(make_state(1, 2, nodes=3))
    assert values(tmp_path, "radixtier_requests_total") == [7]
    assert values(tmp_path, "radixtier_nodes") == [3]


def test_without_a_directory_there_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    with pytest.raises(RuntimeError, match=DIRECTORY):
        Prometheus(model_name="tiny", tp_rank=0)


FAILING = """
import logging, sys, time
sys.path.insert(0, sys.argv[1])
from monitor_rig import make_state
from radixtier.monitor import Monitor
from radixtier.monitor.prometheus import Prometheus
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
seconds = iter(range(100))
monitor = Monitor(lambda: make_state(next(seconds)), list, Prometheus(model_name="tiny", tp_rank=0))
end = time.monotonic() + 30
for points in range(3):
    monitor._due = 0.0
    monitor.step()
    while len(monitor.timeline.to_json(60)["at"]) < points and time.monotonic() < end:
        time.sleep(0.01)
print("points", len(monitor.timeline.to_json(60)["at"]))
monitor.close()
"""


def test_a_directory_that_is_gone_costs_one_warning_and_nothing_else(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAILING, str(CHILD.parent)],
        env={**os.environ, DIRECTORY: str(tmp_path / "gone")}, capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    warning, points = run.stdout.splitlines()
    assert warning.startswith("WARNING radixtier: no metrics at /metrics from now on") and "gone" in warning
    assert points == "points 2" and not run.stderr
