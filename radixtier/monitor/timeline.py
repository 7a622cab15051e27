"""The last minutes and hours of one server: rates and levels by second, and by ten seconds.

Owns the points, a bounded number of them. Laws: a point stands for the time since the one before it, so that no event
is missed and none is counted twice, however long a scheduler step took; a counter that went down has started over. The
monitor's thread adds, any thread reads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from radixtier.monitor.reading import Latencies, State, figure, grown, percentile

FINE_S, FINE_SPAN_S = 1.0, 900.0
COARSE_S, COARSE_SPAN_S = 10.0, 21_600.0
"""Seconds between two points, and how far back they go."""

SLACK_S = 0.3
"""Seconds by which a state may come early and still make a point: they are taken about once a second."""

MOST_LATENCIES = 8192
"""Transfers of one point that its percentiles are made of, the latest ones: sorting so many holds Python's lock for one
or two milliseconds, during which the scheduler thread waits."""


class _Interval(NamedTuple):
    """What a point is made from."""

    before: State
    now: State
    seconds: float
    latencies: Latencies

    def rate(self, path: str, factor: float = 1.0) -> float | None:
        delta = grown(figure(self.before, path), figure(self.now, path))
        return None if delta is None else factor * delta / self.seconds

    def tokens(self, counter: str) -> float | None:
        """Rate of a counter of pages, in tokens."""
        return self.rate(f"counters.{counter}", figure(self.now, "page_tokens") or 0.0)

    def tick_ms(self) -> float | None:
        ticks = grown(figure(self.before, "tick.count"), figure(self.now, "tick.count"))
        seconds = grown(figure(self.before, "tick.seconds"), figure(self.now, "tick.seconds"))
        return 1000 * seconds / ticks if ticks and seconds is not None else None

    def latency_ms(self, kind: str, share: float) -> float | None:
        found = percentile([seconds for each, seconds, _ in self.latencies if each == kind], share)
        return None if found is None else 1000 * found


FIGURES: dict[str, Callable[[_Interval], float | None]] = {
    "requests_per_s": lambda at: at.rate("requests.finished"),
    "hbm_tokens_per_s": lambda at: at.rate("requests.tokens.hbm"),
    "dram_tokens_per_s": lambda at: at.rate("requests.tokens.dram"),
    "nvme_tokens_per_s": lambda at: at.rate("requests.tokens.nvme"),
    "computed_tokens_per_s": lambda at: at.rate("requests.tokens.computed"),
    "hbm_used": lambda at: figure(at.now, "tiers.hbm.used"),
    "dram_used": lambda at: figure(at.now, "tiers.dram.used"),
    "nvme_used": lambda at: figure(at.now, "tiers.nvme.used"),
    "read_bytes_per_s": lambda at: at.rate("io.read.bytes"),
    "write_bytes_per_s": lambda at: at.rate("io.write.bytes"),
    "promoted_tokens_per_s": lambda at: at.tokens("promoted"),
    "demoted_tokens_per_s": lambda at: at.tokens("demoted"),
    "io_queue": lambda at: figure(at.now, "io.queue"),
    "waiting_requests": lambda at: figure(at.now, "requests.waiting_for_nvme"),
    "tick_ms": _Interval.tick_ms,
    "read_p50_ms": lambda at: at.latency_ms("read", 0.5),
    "read_p99_ms": lambda at: at.latency_ms("read", 0.99),
    "write_p99_ms": lambda at: at.latency_ms("write", 0.99),
    "corrupt_per_s": lambda at: at.rate("io.corrupt"),
    "lost_tokens_per_s": lambda at: at.tokens("lost"),
}
"""What a point says, by name: levels are those at its end, rates and latencies those since the point before it."""


class _Track:
    """Points that are ``step_s`` apart or more, and at most ``span_s`` old."""

    def __init__(self, step_s: float, span_s: float) -> None:
        self.step_s = step_s
        self._span_s = span_s
        self._points: deque[tuple[float, list[float | None]]] = deque(maxlen=int(span_s / step_s))
        self._before: State | None = None
        self._latencies: deque[Any] = deque(maxlen=MOST_LATENCIES)

    def add(self, state: State, now: float, latencies: Latencies) -> None:
        self._latencies.extend(latencies)
        before, then = self._before, None if self._before is None else figure(self._before, "now")
        if before is None or then is None or now <= then:
            self._before = state  # also where the clock was set back
            while self._points and self._points[-1][0] >= now:
                self._points.pop()
            return
        if now - then < self.step_s - SLACK_S:
            return
        interval = _Interval(before, state, now - then, tuple(self._latencies))
        self._points.append((now, [_rounded(read(interval)) for read in FIGURES.values()]))
        self._before = state
        self._latencies.clear()
        while self._points[0][0] < now - self._span_s:
            self._points.popleft()

    def since(self, when: float) -> list[tuple[float, list[float | None]]]:
        return [point for point in self._points if point[0] >= when]


class Timeline:
    """Points of one server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracks = (_Track(FINE_S, FINE_SPAN_S), _Track(COARSE_S, COARSE_SPAN_S))
        self._now = 0.0

    def add(self, state: State, latencies: Latencies) -> None:
        """Add a state, and the transfers that ended since the one before it; without a time it is ignored."""
        now = figure(state, "now")
        if now is None:
            return
        with self._lock:
            self._now = now
            for track in self._tracks:
                track.add(state, now, latencies)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the points of the last ``seconds``, counted from the newest state.

        Returns
        -------
        dict
            ``interval_s`` (1 up to :data:`FINE_SPAN_S`, else 10), ``at`` (Unix seconds, ascending), and ``series``: per
            name of :data:`FIGURES` as many numbers or nulls as ``at`` has.
        """
        track = self._tracks[0 if seconds <= FINE_SPAN_S else 1]
        with self._lock:
            points = track.since(self._now - seconds)
        columns = [[values[i] for _, values in points] for i in range(len(FIGURES))]
        return {
            "interval_s": track.step_s,
            "at": [round(at, 3) for at, _ in points],
            "series": dict(zip(FIGURES, columns, strict=True)),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
