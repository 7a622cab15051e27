"""The monitor of one server: takes a state once a second and gives it to those who make figures of it.

Owns the timeline, the events and a thread that feeds the timeline and the metrics. Invariants: the scheduler thread
only takes states, which it hands over without waiting; whatever goes wrong here ends in one warning, never in a failed
step; a state that the thread has no time for is left out, which loses nothing, since figures come from differences.
:meth:`Monitor.step` is the scheduler's, all else for any thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from radixtier.monitor.events import EventLog
from radixtier.monitor.reading import Latencies, State
from radixtier.monitor.timeline import Timeline

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two states."""

LEAST_S = 0.75
"""The same at least, when one came late."""

MOST_WAITING = 4
"""States that wait for the thread at most."""


class Publisher(Protocol):
    """Takes every state elsewhere; called on the monitor's thread."""

    def publish(self, state: State, latencies: Latencies) -> None:
        """Take a state, and the transfers that ended since the one before it."""


class Monitor:
    """Watches one server from its construction to :meth:`close`, or until nobody holds it any more.

    Parameters
    ----------
    read_state
        Returns the figures of now, which nobody changes later. Called in :meth:`step`.
    drain_latencies
        Returns the transfers that ended since its last call. Called on the monitor's thread.
    publish
        Where states go beside the timeline, if anywhere.
    events
        Has listened to the log already; closed with the monitor. A new one by default.

    Attributes
    ----------
    timeline : Timeline
        Of the last hours.
    events : EventLog
        The last lines of the log.
    """

    def __init__(
        self,
        read_state: Callable[[], State],
        drain_latencies: Callable[[], Latencies],
        publish: Publisher | None = None,
        events: EventLog | None = None,
    ) -> None:
        self._read_state = read_state
        self._due = time.monotonic()
        self._told = False
        self._states: queue.SimpleQueue[State | None] = queue.SimpleQueue()
        self.timeline = Timeline()
        self.events = events or EventLog()
        feed = _Feed(self.timeline, drain_latencies, publish)
        self._thread = threading.Thread(target=feed.run, args=(self._states,), name="radixtier-monitor", daemon=True)
        # Neither the thread nor the log holds the monitor, so that one that nobody closes ends as well.
        self._end = weakref.finalize(self, _end, self._states, self.events)
        self._end.atexit = False
        self._thread.start()

    def step(self) -> None:
        """Take a state if one is due: once a second, as near to that as the scheduler's steps are."""
        now = time.monotonic()
        if now < self._due or not self._end.alive:
            return
        # In time with the clock, but never two in a row after a long step.
        self._due = max(self._due + INTERVAL_S, now + LEAST_S)
        if self._states.qsize() >= MOST_WAITING:
            return
        try:
            self._states.put(self._read_state())
        except Exception:  # figures are no reason to end a scheduler
            if not self._told:
                logger.exception("radixtier: the figures of this server cannot be read")
            self._told = True

    def close(self, timeout: float = 2.0) -> None:
        """Stop watching, once what waits is through or ``timeout`` seconds are over."""
        self._end()
        self._thread.join(timeout)


class _Feed:
    """Feeds states on, on a thread of its own."""

    def __init__(self, timeline: Timeline, drain_latencies: Callable[[], Latencies], publish: Publisher | None) -> None:
        self._timeline = timeline
        self._drain = drain_latencies
        self._publish = publish
        self._told = False

    def run(self, states: queue.SimpleQueue[State | None]) -> None:
        """Feed until None comes."""
        while (state := states.get()) is not None:
            try:
                latencies = self._drain()
                self._timeline.add(state, latencies)
            except Exception:
                if not self._told:
                    logger.exception("radixtier: the timeline of this server has a gap")
                self._told = True
                latencies = ()
            self._export(state, latencies)

    def _export(self, state: State, latencies: Latencies) -> None:
        if self._publish is None:
            return
        try:
            self._publish.publish(state, latencies)
        except Exception as error:
            self._publish = None
            logger.warning(
                "radixtier: no metrics at /metrics from now on, serving goes on: %s: %s", type(error).__name__, error
            )


def _end(states: queue.SimpleQueue[State | None], events: EventLog) -> None:
    states.put(None)
    events.close()
