"""How long bytes take: from NVMe to DRAM, and from DRAM to HBM.

The law for reads: ``seconds = slowness * (latency + bytes / rate)``, over the bytes asked for and those queued ahead.
Latency and rate, the *shape*, are fitted to the jobs of the last while (:mod:`radixtier.policy.regression`), which a
single stall does not move. The *slowness* is what the last :data:`LAST` jobs took over what the shape says, on average
over their bytes. So:

* one job that took 100x as long makes it 34x slower; one that is overdue counts in full for as long as it runs, since
  whoever waits now waits for that one;
* :data:`LAST` jobs in a row that are fast again restore it;
* jobs count by their own bytes, not by those ahead of them: a small one that was late by chance changes little.

Until a read was seen, writes tell the shape; until a write was seen, a plain SATA SSD is assumed.

Where it loses: one stall of a drive (its garbage collection) makes the next few requests recompute. A drive half as
fast again as recompute, whose jobs vary e-fold at random, is waited for by half of the requests only. A drive whose
latency alone rises looks slow for large reads too, until about 20 jobs have corrected the shape. Scheduler thread only.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from radixtier.policy.regression import Amount, TimeFit, within_reason

EDGES = (256 << 10, 2 << 20)
"""Bytes that separate small, middle and large jobs."""

LAST = 3
"""Jobs that tell how the drive does now."""

PRIOR_LATENCY_S = 200e-6
PRIOR_READ_RATE = 500e6
"""Of NVMe before evidence, bytes/s."""

PRIOR_COPY_RATE = 10e9
"""Host to device before evidence, bytes/s: a PCIe 4 link, not all of it."""


class _Job(NamedTuple):
    nbytes: int
    moved: int
    """With the bytes ahead of it."""
    seconds: float


class _Shape(NamedTuple):
    latency: float
    per_byte: float

    def seconds(self, moved: Amount) -> Amount:
        return self.latency + self.per_byte * moved


class Shown(NamedTuple):
    """What is believed of a drive, to be shown."""

    rate: float
    """Bytes/s of a long read."""
    slowness: float
    """How much slower than usual the drive is now, 1 for as fast."""


class ReadRate:
    """Running estimate of how long a read from NVMe takes.

    Parameters
    ----------
    latency_s, rate
        Assumed before evidence, seconds and bytes/s.
    """

    def __init__(self, latency_s: float = PRIOR_LATENCY_S, rate: float = PRIOR_READ_RATE) -> None:
        self._reads = TimeFit((latency_s, 1 / rate), EDGES)
        self._writes = TimeFit((latency_s, 1 / rate), EDGES)
        self._last: deque[_Job] = deque(maxlen=LAST)
        self._open: _Job | None = None

    def observe(self, nbytes: int, queue_seconds: float, service_seconds: float, ahead: int = 0) -> None:
        """Add a read job that moved all its bytes; leave out those that failed or were cancelled.

        Parameters
        ----------
        nbytes
            Bytes moved.
        queue_seconds, service_seconds
            From the call to the first transfer, and from the first to the last.
        ahead
            Bytes of reads that were queued or running when the job was queued, and that moved before it. Without
            them only the service counts, which jobs side by side make look slower than the drive is.
        """
        seconds = service_seconds + (queue_seconds if ahead > 0 else 0.0)
        if nbytes <= 0 or not 0 < seconds < float("inf"):
            return
        job = _Job(nbytes, nbytes + max(0, ahead), within_reason(seconds))
        if self._open is not None:
            # Usually this very job, over at last; if not, what was overdue is evidence in its own right.
            if self._open.seconds > seconds:
                self._last.append(self._open)
            self._open = None
        self._last.append(job)
        self._reads.add(job.moved, (1.0, job.moved), job.seconds)

    def observe_write(self, nbytes: int, service_seconds: float) -> None:
        """Add a write job that moved all its bytes: counts until a read was seen."""
        self._writes.add(nbytes, (1.0, nbytes), service_seconds)

    def overdue(self, nbytes: int, seconds: float, ahead: int = 0) -> None:
        """Tell that a read job is still not over.

        Parameters
        ----------
        nbytes, ahead
            As for :meth:`observe`.
        seconds
            Since it was queued, or, without ``ahead``, since its first transfer. Says nothing before the estimate is
            exceeded, so it may be called at every tick, best with the oldest job.
        """
        if nbytes > 0 and self.seconds(float(nbytes), float(max(0, ahead))) < seconds < float("inf"):
            self._open = _Job(nbytes, nbytes + max(0, ahead), within_reason(seconds))

    @property
    def slowness(self) -> float:
        """How much slower than the shape the drive is now, 1 for as fast."""
        return self._slowness(self._shape)

    def _slowness(self, shape: _Shape) -> float:
        jobs = [*self._last, self._open] if self._open is not None else list(self._last)
        if not jobs:
            return 1.0
        late = [job.seconds / shape.seconds(float(job.moved)) for job in jobs]
        mean = sum(job.nbytes * each for job, each in zip(jobs, late, strict=True)) / sum(job.nbytes for job in jobs)
        return mean if self._open is None else max(mean, late[-1])

    @property
    def rate(self) -> float:
        """Bytes/s of a long read, as believed now."""
        return self._rate(self._shape)

    def _rate(self, shape: _Shape) -> float:
        return 1.0 / (self._slowness(shape) * shape.per_byte + 1e-18)

    def shown(self) -> Shown:
        """Return the estimate for whoever only looks: to ask changes nothing, where the rest may learn from it."""
        shape = _Shape(*self._fit.shown().tolist())
        return Shown(self._rate(shape), self._slowness(shape))

    @property
    def jobs(self) -> int:
        """Reads seen."""
        return self._reads.seen

    def seconds(self, nbytes: Amount, queued_bytes: float = 0.0) -> Amount:
        """Seconds until ``nbytes`` have arrived that are read after ``queued_bytes``; the latency even for 0 bytes."""
        shape = self._shape
        return self._slowness(shape) * shape.seconds(nbytes + queued_bytes)

    @property
    def _shape(self) -> _Shape:
        return _Shape(*self._fit.theta.tolist())

    @property
    def _fit(self) -> TimeFit:
        return self._reads if self._reads.seen or not self._writes.seen else self._writes


class CopyRate:
    """Running estimate of how long a copy from DRAM to HBM takes."""

    def __init__(self, latency_s: float = PRIOR_LATENCY_S, rate: float = PRIOR_COPY_RATE) -> None:
        self._fit = TimeFit((latency_s, 1 / rate), EDGES)

    def observe(self, nbytes: int, seconds: float) -> None:
        """Add a copy of ``nbytes`` that took ``seconds``."""
        self._fit.add(nbytes, (1.0, nbytes), seconds)

    @property
    def rate(self) -> float:
        """Bytes/s of a long copy, as believed now."""
        return 1.0 / (float(self._fit.theta[1]) + 1e-18)

    def shown(self) -> float:
        """Return :attr:`rate` for whoever only looks: to ask changes nothing."""
        return 1.0 / (float(self._fit.shown()[1]) + 1e-18)

    def seconds(self, nbytes: Amount) -> Amount:
        """Seconds to copy ``nbytes`` in one go; the latency even for 0 bytes."""
        return float(self._fit.theta[0]) + float(self._fit.theta[1]) * nbytes
