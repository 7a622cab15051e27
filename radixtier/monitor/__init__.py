"""Figures of a running server over time: the last hours, the last log lines, and series for Prometheus."""

from radixtier.monitor.events import EventLog
from radixtier.monitor.monitor import Monitor, Publisher
from radixtier.monitor.ticks import Ticks
from radixtier.monitor.timeline import Timeline

__all__ = ["EventLog", "Monitor", "Publisher", "Ticks", "Timeline"]
