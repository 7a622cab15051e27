"""What prefill costs on this server, as a function of new tokens and of the context they attend to.

The law, for a batch of requests with ``n`` new tokens each behind ``c`` cached ones::

    seconds = overhead + linear * sum(n) + quadratic * sum(n*c + n*n/2)

The linear term is the weights' share (FLOPs per token), the quadratic one attention's (each new token reads all in
front of it), the overhead is paid once per batch. The coefficients are fitted to the batches seen
(:mod:`radixtier.policy.regression`); before the first, a fast machine is assumed, so that waits are short at first.

Where it loses: a batch's time is taken as it was, decoding and copies in it included, so a busy server looks slower
than an idle one; and the overhead of the further chunks of a long prefill is not charged to whoever is cut into them.
Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radixtier.policy.regression import Amount, TimeFit

EDGES = (256, 2048)
"""New tokens that separate small, middle and large batches."""


class Machine(NamedTuple):
    """Coefficients of prefill."""

    overhead: float
    """Seconds per batch."""
    linear: float
    """Seconds per new token."""
    quadratic: float
    """Seconds per new token and token in front of it."""


FAST = Machine(overhead=0.01, linear=1 / 5000, quadratic=1 / 5000 / 32768)
"""Assumed before evidence: 5,000 tokens/s; attention costs as much as the rest at 32,768 tokens (8B class)."""


class PrefillCost:
    """Running estimate of prefill time."""

    def __init__(self, prior: Machine = FAST) -> None:
        self._fit = TimeFit(prior, EDGES)

    def observe(self, batch: Sequence[tuple[int, int]], seconds: float) -> None:
        """Add one prefill batch.

        Parameters
        ----------
        batch
            ``(new, context)`` of each request: tokens computed, and cached tokens in front of them.
        seconds
            From the start of the batch to its end. Batches without tokens or time are ignored.
        """
        rows = [(n, c) for n, c in batch if n > 0 and c >= 0]
        tokens = sum(n for n, _ in rows)
        self._fit.add(tokens, (1.0, tokens, sum(n * (c + n / 2) for n, c in rows)), seconds)

    @property
    def machine(self) -> Machine:
        """The coefficients as believed now."""
        return Machine(*self._fit.theta.tolist())

    def shown(self) -> Machine:
        """Return :attr:`machine` for whoever only looks: to ask changes nothing."""
        return Machine(*self._fit.shown().tolist())

    @property
    def batches(self) -> int:
        """Batches seen."""
        return self._fit.seen

    def seconds(self, start: Amount, end: Amount) -> Amount:
        """Seconds to prefill tokens ``start .. end - 1`` of one request, without the batch's overhead.

        Never negative, 0 where ``end <= start``, and not falling in ``end``.
        """
        _, linear, quadratic = self.machine
        new = (end - start + abs(end - start)) / 2
        return linear * new + quadratic * new * (start + new / 2)

    def batch_seconds(self, batch: Sequence[tuple[int, int]]) -> float:
        """Seconds of a batch of ``(new, context)``, overhead included; 0 for an empty one."""
        if not batch:
            return 0.0
        return self.machine.overhead + sum(self.seconds(float(c), float(c + n)) for n, c in batch)
