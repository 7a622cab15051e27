"""Builds the monitor of one scheduler process: what it reads, and whether its figures go to SGLang's ``/metrics``.

Owns nothing. Scheduler thread, while the cache is built.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_observability, get_parallel, get_serving

from radixtier.monitor import EventLog, Monitor, Publisher
from radixtier.monitor.prometheus import Prometheus

logger = logging.getLogger(__name__)


def make_monitor(cache: Any, events: EventLog) -> Monitor:
    """Build the monitor of a cache, which has its store and its figures by now; ``events`` listens already."""
    store = cache.mover.store
    return Monitor(cache.figures.read, list if store is None else store.take_latencies, _publisher(), events)


def _publisher() -> Publisher | None:
    """With SGLang's ``--enable-metrics``, every rank exports its own series."""
    if not get_observability().enable_metrics:
        return None
    try:
        return Prometheus(model_name=get_serving().served_model_name, tp_rank=get_parallel().tp_rank)
    except Exception as error:  # a missing package, or no place for its files: no reason not to serve
        logger.warning("radixtier: none of our series will be at /metrics: %s: %s", type(error).__name__, error)
        return None
