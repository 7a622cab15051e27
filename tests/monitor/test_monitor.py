"""The monitor: one state a second, never a failed step, nothing left behind."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from monitor_rig import make_state

from radixtier.monitor import Monitor
from radixtier.monitor.monitor import INTERVAL_S, MOST_WAITING

PATIENCE_S = 30.0


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Server:
    """A server with a monitor, whose seconds pass when the test says so."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.began = clock.now
        self.reads = 0
        self.published: list[tuple[Any, Any]] = []
        self.failure: Exception | None = None
        self.refusal: Exception | None = None
        self.let_go = threading.Event()
        self.let_go.set()
        self.monitor = Monitor(self.read, lambda: [("read", 0.001, 1)], self)

    def read(self) -> dict[str, Any]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return make_state(self.clock.now - self.began, self.reads)

    def publish(self, state: Any, latencies: Any) -> None:
        assert threading.current_thread().name == "radixtier-monitor"
        self.let_go.wait(PATIENCE_S)
        self.published.append((state, latencies))
        if self.refusal is not None:
            raise self.refusal

    def run(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.monitor.step()
            self.clock.now += step


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    clock = Clock()
    monkeypatch.setattr("radixtier.monitor.monitor.time", clock)
    server = Server(clock)
    yield server
    server.let_go.set()
    server.monitor.close()


def test_one_state_a_second_goes_to_the_timeline_and_on(server: Server) -> None:
    server.run(2.95)
    until(lambda: len(server.published) == 3)
    assert server.reads == 3
    state, latencies = server.published[-1]
    assert state["requests"]["finished"] == 3 and latencies == [("read", 0.001, 1)]
    assert len(server.monitor.timeline.to_json(60)["at"]) == 2


def test_long_steps_are_not_made_up_for(server: Server) -> None:
    for _ in range(5):
        server.run(7, step=7)
        server.run(0.5)
    until(lambda: len(server.published) == server.reads)
    assert server.reads <= 2 * 5


def test_states_that_the_thread_has_no_time_for_are_left_out(server: Server) -> None:
    server.let_go.clear()
    server.run(100 * INTERVAL_S)
    assert server.reads <= MOST_WAITING + 1
    server.let_go.set()
    until(lambda: len(server.published) == server.reads)
    server.run(2 * INTERVAL_S)
    until(lambda: len(server.published) == server.reads)
    assert server.published[-1][0]["now"] > server.published[0][0]["now"] + 90


def test_a_state_that_cannot_be_read_is_told_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.failure = ZeroDivisionError("of a test")
    server.run(3)
    assert server.reads == 3 and len(caplog.records) == 1
    server.failure = None
    server.run(2)
    until(lambda: len(server.published) == 2)


def test_metrics_that_fail_are_given_up_with_one_warning(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.refusal = OSError("no space left")
    server.run(1)
    for points in range(1, 5):
        server.run(1)
        until(lambda points=points: len(server.monitor.timeline.to_json(60)["at"]) == points)
    assert len(server.published) == 1
    (record,) = [record for record in caplog.records if "metrics" in record.message]
    assert record.levelno == logging.WARNING and "no space left" in record.message
    assert "metrics" in server.monitor.events.to_json(1)["events"][0]["text"]


def test_nothing_runs_after_the_end(server: Server) -> None:
    server.run(1)
    server.monitor.close()
    assert not server.monitor._thread.is_alive()
    reads = server.reads
    server.run(3)
    server.monitor.close()
    assert server.reads == reads and server.monitor.events not in logging.getLogger("radixtier").handlers


def test_a_monitor_that_nobody_closes_ends_with_its_server() -> None:
    class Cache:
        def __init__(self) -> None:
            self.monitor = Monitor(self.read, list)

        def read(self) -> dict[str, Any]:
            return make_state()

    cache = Cache()
    thread, events, gone = cache.monitor._thread, cache.monitor.events, weakref.ref(cache)
    cache.monitor.step()
    del cache
    gc.collect()
    thread.join(PATIENCE_S)
    assert gone() is None and not thread.is_alive() and events not in logging.getLogger("radixtier").handlers
