"""From a trace and a setup to a run in virtual time, and what came of it.

Owns the report. Tokens, bytes and seconds. One thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixtier.lab.rates import Rates
from radixtier.lab.report import Spread
from radixtier.lab.setup import Setup
from radixtier.lab.timed.cache import TimedCache
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.server import TimedServer
from radixtier.lab.timed.source import ClosedLoop, Source
from radixtier.lab.timed.turn import Turn
from radixtier.lab.traces.trace import Trace
from radixtier.mover.waiting_room import BY_COST
from radixtier.policy.admission import AdmitAll
from radixtier.policy.eviction import NAMES

CHUNK_TOKENS = 8192
"""Of a batch of prefill, as SGLang's default on large GPUs."""


@dataclass
class TimedReport:
    """What came of a run."""

    requests: int = 0
    refused: int = 0
    """Too long for HBM."""
    input_tokens: int = 0
    hbm: int = 0
    dram: int = 0
    nvme: int = 0
    """Tokens of prompts found in each tier at admission."""
    waited: int = 0
    """Requests that waited for pages from NVMe when they could have been admitted."""
    waited_s: float = 0.0
    """Of all of them."""
    seconds: float = 0.0
    """From the first arrival to the last answer."""
    busy_s: float = 0.0
    """Of them, of prefill and decode."""
    drive_busy_s: float = 0.0
    bytes: dict[str, int] = field(default_factory=dict)
    """By direction."""
    promoted: dict[str, int] = field(default_factory=dict)
    """Pages brought up from NVMe, by trigger."""
    ahead_used: dict[str, int] = field(default_factory=dict)
    ahead_wasted: dict[str, int] = field(default_factory=dict)
    """Pages brought up ahead of a request, that a request used, and that left again before one did."""
    interrupted: bool = False
    skipped: int = 0
    """Lines of the trace that were left out."""
    _ttft: array[float] = field(default_factory=lambda: array("f"), repr=False)
    _queue: array[float] = field(default_factory=lambda: array("f"), repr=False)

    def add(self, turn: Turn) -> None:
        """Count a request that is over."""
        self.requests += 1
        if turn.refused:
            self.refused += 1
            return
        self.input_tokens += turn.input_tokens
        self.hbm += turn.hbm
        self.dram += turn.dram
        self.nvme += turn.nvme
        self.waited += turn.waited_s > 0
        self.waited_s += turn.waited_s
        self._ttft.append(turn.first_token - turn.arrived)
        self._queue.append(turn.admitted - turn.arrived)

    @property
    def ttft(self) -> Spread:
        """From arrival to the first token."""
        return Spread.of(np.asarray(self._ttft, np.float64))

    @property
    def queue(self) -> Spread:
        """From arrival to admission."""
        return Spread.of(np.asarray(self._queue, np.float64))

    def as_dict(self) -> dict[str, Any]:
        """Return every figure, for JSON."""
        return {
            "requests": self.requests,
            "refused": self.refused,
            "tokens": {"input": self.input_tokens, "hbm": self.hbm, "dram": self.dram, "nvme": self.nvme},
            "ttft_s": self.ttft.rounded(),
            "queue_s": self.queue.rounded(),
            "waited": self.waited,
            "waited_s": round(self.waited_s, 6),
            "seconds": round(self.seconds, 6),
            "busy_s": round(self.busy_s, 6),
            "drive_busy_s": round(self.drive_busy_s, 6),
            "bytes": self.bytes,
            "promoted_pages": self.promoted,
            "ahead_used_pages": self.ahead_used,
            "ahead_wasted_pages": self.ahead_wasted,
            "skipped": self.skipped,
            "interrupted": self.interrupted,
        }


def make_cache(
    setup: Setup, page_tokens: int, chunk_tokens: int, rates: Rates, clock: Clock, law: str = BY_COST
) -> TimedCache:
    """Make the cache of a setup.

    Raises
    ------
    ValueError
        Where the server would not start with such a setup; the text says why.
    """
    if setup.eviction not in NAMES:
        raise ValueError(f"--eviction {setup.eviction}: not on a server; choose one of {', '.join(NAMES)}")
    if setup.nvme and not setup.dram:
        raise ValueError("--dram 0: NVMe needs DRAM to read into; give --dram a size, or --nvme 0")
    if setup.mirror:
        raise ValueError("--mirror: no such server; leave it out")
    page_bytes = page_tokens * setup.kv_bytes_per_token
    return TimedCache(
        setup.hbm, setup.dram, setup.nvme, page_tokens=page_tokens, page_bytes=page_bytes,
        chunk=max(1, chunk_tokens // page_tokens), eviction=setup.eviction,
        admission=setup.make_admission(page_bytes) if setup.nvme else AdmitAll(), rates=rates, clock=clock, law=law,
    )  # fmt: skip


def run_timed(
    trace: Trace,
    setup: Setup,
    rates: Rates,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    closed_loop: bool = False,
    stretch: float = 1.0,
    progress: Callable[[int], None] = lambda served: None,
) -> TimedReport:
    """Serve a trace in virtual time. An interrupt ends it, and the report is of what was served.

    Parameters
    ----------
    trace
        Opened.
    setup, rates
        The server.
    chunk_tokens
        Of a batch of prefill, a page at least.
    closed_loop
        Sessions ask again when they have thought, not when the trace says.
    stretch
        Arrivals (not think times) are so many times as far apart as in the trace.
    progress
        Called after each request with the number of those served.

    Raises
    ------
    ValueError
        See :func:`make_cache`.
    BadTrace, OSError
        When the trace cannot be read.
    """
    clock = Clock()
    chunk_tokens = max(chunk_tokens, trace.block_tokens)
    report = TimedReport()
    source = (ClosedLoop if closed_loop else Source)(_turns(trace, stretch))
    clock.now = began = source.next_time if math.isfinite(source.next_time) else 0.0
    cache = make_cache(setup, trace.block_tokens, chunk_tokens, rates, clock)
    server = TimedServer(cache, clock, rates, chunk_tokens)
    try:
        for turn in server.serve(source):
            report.add(turn)
            progress(report.requests)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds, report.busy_s, report.skipped = clock.now - began, server.busy_s, trace.skipped
    report.bytes = {"hbm_to_dram": cache.bytes_down, "dram_to_hbm": cache.bytes_up}
    if cache.drive is not None:
        report.drive_busy_s = cache.drive.busy_s
        report.bytes |= {"dram_to_nvme": cache.drive.bytes_written, "nvme_to_dram": cache.drive.bytes_read}
    if cache.mover is not None:
        stats = cache.mover.stats
        report.promoted = dict(stats.promoted_by)
        report.ahead_used, report.ahead_wasted = dict(stats.ahead_used), dict(stats.ahead_wasted)
    return report


def _turns(trace: Trace, stretch: float) -> Iterator[Turn]:
    for number, request in enumerate(trace.requests()):
        turn = Turn.of(number, request, trace.nodes, trace.block_tokens)
        turn.arrived *= stretch
        yield turn
