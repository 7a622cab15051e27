"""How long a request takes until its first token, on the machine that the lab imagines.

Owns the queue of one server and of its drive. The laws:

- *Prefill.* One at a time, each at the speed of the machine alone: ``overhead + linear n + quadratic n (c + n/2)``
  seconds for ``n`` new tokens behind ``c`` cached ones. What comes from DRAM or NVMe is copied to HBM layer by layer
  meanwhile, so the longer of the two counts. First ready, first served.
- *NVMe.* Pages are read from the arrival on, one request after the other. A request waits for as many of its pages as
  the server's cost model says (:mod:`radixtier.policy.promotion`, with the true rates), and computes the rest; it is
  ready when they are there. Others overtake it until then.
- *First token.* One decoding step after the prefill.

Where it is wrong: a real server batches prefills, cuts long ones into chunks between which others come in, and
decodes on the same GPU, so short prompts wait less behind long ones than here and all wait more while many answers are
written. The next turn of a session arrives when it did in the trace, however late the answer is here. The cost model
does not see that a wait leaves the GPU to others, neither here nor on the server. Writes do not slow the reads.

Seconds and bytes. One thread.
"""

from __future__ import annotations

import heapq
from array import array
from math import inf

from radixtier.lab.rates import Rates
from radixtier.policy.promotion import HEDGE, LEAST_GAIN_S, LONGEST_S


class Costs:
    """What the machine takes for one request.

    Parameters
    ----------
    rates
        Of the machine.
    block_tokens, block_bytes
        Of a block.
    """

    def __init__(self, rates: Rates, block_tokens: int, block_bytes: int) -> None:
        self.rates = rates
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes

    def prefill(self, start: int, end: int) -> float:
        """Seconds for tokens ``start .. end - 1``, without the overhead; the law of `PrefillCost.seconds`."""
        _, linear, quadratic = self.rates.prefill
        new = max(0, end - start)
        return linear * new + quadratic * new * (start + new / 2)

    def service(self, tokens: int, cached: int, copied: int) -> float:
        """Seconds of the GPU for a prompt of which ``cached`` tokens are there, ``copied`` blocks of them below HBM."""
        compute = self.rates.prefill.overhead + self.prefill(cached, tokens)
        return max(compute, copied * self.block_bytes / self.rates.copy)

    def cached(self, tokens: int, blocks: int) -> int:
        """Tokens that ``blocks`` blocks in front save; the last one of a prompt is always computed."""
        return min(blocks * self.block_tokens, tokens - 1)

    def split(self, tokens: int, loaded: int, cold: int, queued: float) -> int:
        """Return for how many of ``cold`` blocks behind ``loaded`` others a request waits.

        The law of :func:`radixtier.policy.promotion.plan` in O(1). The gain is convex in the blocks waited for but for
        the last one, of which the prompt may have a part only: it is highest with all, all but one, or none.

        Parameters
        ----------
        queued
            Bytes of reads that are ahead.
        """
        rates, nbytes = self.rates, self.block_bytes
        most = min(cold, int(((LONGEST_S - rates.read_latency_s) * rates.read - queued) / nbytes))
        start = self.cached(tokens, loaded)
        best, gain = 0, 0.0
        for blocks in (most - 1, most):
            if blocks > 0:
                saved = self.prefill(start, self.cached(tokens, loaded + blocks)) - blocks * nbytes / rates.copy
                wait = rates.read_latency_s + (queued + blocks * nbytes) / rates.read
                if saved - HEDGE * wait > gain:
                    best, gain = blocks, saved - HEDGE * wait
        return best if gain >= LEAST_GAIN_S else 0


class Drive:
    """Reads, one after the other in the order in which they were asked for."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._free = 0.0

    def queued(self, now: float) -> float:
        """Bytes that are still to be read."""
        return max(0.0, self._free - now) * self._rates.read

    def read(self, nbytes: int, now: float) -> float:
        """Queue a read; returns when it will be done."""
        self._free = max(self._free, now) + nbytes / self._rates.read
        return self._free + self._rates.read_latency_s


class Gpu:
    """Prefills, one at a time: first ready, first served. What it remembers is 8 bytes a request."""

    def __init__(self) -> None:
        self.queue = array("f")
        """Seconds from arrival to the start of the prefill, in the order in which they started."""
        self.work = array("f")
        """Seconds of each prefill, likewise."""
        self.busy = 0.0
        """Seconds of work."""
        self._free = 0.0
        self._waiting: list[tuple[float, int, float, float]] = []
        """When ready, number, arrival and seconds of those that are not ready yet."""
        self._number = 0

    def arrive(self, arrived: float, ready: float, seconds: float) -> None:
        """Add a request, at the time it arrives."""
        self.busy += seconds
        self._until(arrived)
        self._number += 1
        one = (ready, self._number, arrived, seconds)
        if ready <= arrived:
            self._start(one)
        else:
            heapq.heappush(self._waiting, one)

    def finish(self) -> None:
        """Serve those that still wait."""
        self._until(inf)

    def _until(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            self._start(heapq.heappop(self._waiting))

    def _start(self, one: tuple[float, int, float, float]) -> None:
        ready, _, arrived, seconds = one
        start = max(ready, self._free)
        self._free = start + seconds
        self.queue.append(start - arrived)
        self.work.append(seconds)


class Stack:
    """A server with some of the tiers, and what its requests found and took.

    Parameters
    ----------
    costs
        Of its machine.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.gpu = Gpu()
        self.hits = 0
        """Blocks found."""
        self.tokens = 0
        """Tokens found."""
        self.passed = 0
        """Tokens of them that were on NVMe and not worth the wait."""
        self._drive = Drive(costs.rates)

    def serve(self, arrived: float, tokens: int, hbm: int, dram: int, nvme: int) -> None:
        """Serve a prompt of ``tokens`` tokens that finds so many blocks in each tier; in the order of arrival."""
        costs = self.costs
        found = hbm + dram + nvme
        self.hits += found
        self.tokens += min(found * costs.block_tokens, tokens)
        waited, ready = 0, arrived
        if nvme:
            waited = costs.split(tokens, hbm + dram, nvme, self._drive.queued(arrived))
            if waited:
                ready = self._drive.read(waited * costs.block_bytes, arrived)
        cached = costs.cached(tokens, hbm + dram + waited)
        if waited < nvme:
            self.passed += costs.cached(tokens, found) - cached
        self.gpu.arrive(arrived, ready, costs.service(tokens, cached, dram + waited))
