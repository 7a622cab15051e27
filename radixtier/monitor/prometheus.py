"""The series as objects of prometheus_client, for the ``/metrics`` of SGLang's server.

Owns the metrics of one process and what counters were at last. SGLang runs prometheus_client in its multiprocess mode:
every process keeps its values in files, and the server adds the files up; collectors of one's own do not work there.
Laws: a counter is advanced by how much the state's figure grew, so it never goes down, and one that started over counts
on; a gauge whose figure is gone is NaN, since it cannot be taken back. One thread at a time; what touches files happens
in :meth:`Prometheus.publish` only.
"""

from __future__ import annotations

import math
import os
from typing import Any

from radixtier.monitor.reading import Latencies, State, grown
from radixtier.monitor.series import COMMON_LABELS, SERIES, Kind, Series

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client keeps the files; SGLang sets it before it starts its processes."""

Key = tuple[str, tuple[str, ...]]
"""Name of a series and values of its own labels."""


class Advances:
    """By how much counters grew, given what they are."""

    def __init__(self) -> None:
        self._last: dict[Key, float] = {}

    def take(self, key: Key, value: float) -> float:
        """Return what to add for a counter that is at ``value``, from 0 the first time; a negative one is none."""
        if value < 0:
            return 0.0
        delta = grown(self._last.get(key, 0.0), value)
        self._last[key] = value
        return delta or 0.0


class Prometheus:
    """Publishes states of one rank.

    Raises
    ------
    RuntimeError
        When the process is not set up for metrics.
    ImportError
        When prometheus_client is not there.
    """

    def __init__(self, *, model_name: str, tp_rank: int) -> None:
        if not os.environ.get(DIRECTORY):
            raise RuntimeError(f"{DIRECTORY} is not set, so nobody would see them")
        from prometheus_client import CollectorRegistry

        self._common = (model_name, str(tp_rank))
        self._advances = Advances()
        registry = CollectorRegistry()  # the files are what counts; a second cache of a process is no clash
        self._metrics: dict[str, Any] = {series.name: _metric(series, registry) for series in SERIES}
        self._children: dict[Key, Any] = {}
        self._gauges: set[Key] = set()
        """Those that have a value."""

    def publish(self, state: State, latencies: Latencies) -> None:
        """Bring every series up to a state."""
        there: set[Key] = set()
        for series in SERIES:
            if series.observe is not None:
                for each in latencies:
                    labels, value = series.observe(each)
                    self._child((series.name, labels)).observe(value)
                continue
            for labels, value in series.read(state):
                key = (series.name, labels)
                if series.kind is Kind.COUNTER:
                    self._child(key).inc(self._advances.take(key, value))
                else:
                    self._child(key).set(value)
                    there.add(key)
        for key in self._gauges - there:
            self._child(key).set(math.nan)
        self._gauges = there

    def _child(self, key: Key) -> Any:
        child = self._children.get(key)
        if child is None:
            name, labels = key
            child = self._children[key] = self._metrics[name].labels(*self._common, *labels)
        return child


def _metric(series: Series, registry: Any) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    names = (*COMMON_LABELS, *series.labels)
    if series.kind is Kind.COUNTER:
        return Counter(series.name, series.help, names, registry=registry)
    if series.kind is Kind.GAUGE:
        return Gauge(series.name, series.help, names, registry=registry, multiprocess_mode="mostrecent")
    return Histogram(series.name, series.help, names, registry=registry, buckets=series.buckets)
