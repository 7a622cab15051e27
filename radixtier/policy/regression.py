"""What work costs, learnt from what it took: ``seconds = x . theta``, with no coefficient below zero.

The law: the fit minimises the *relative* error, summed without squaring (a weighted median, not a mean), so one batch
that took 5x as long moves it no further than one that took 1.2x. Evidence is kept in rings by size of the work,
:data:`RING` each, so that a thousand small batches do not wash out what the large ones told; within a ring each newer
entry takes 4 % off the older ones' weight, and any entry 0.1 %. What the evidence does not settle (coefficients that
always move together) stays in the proportion of the prior, scaled to the speed seen: one entry suffices for the scale.

Solved by reweighting: each round is a small non-negative least squares problem, solved exactly by trying every set of
coefficients that are zero. About half a millisecond, and only when somebody asks after new evidence.

Where it loses: a machine that changes its speed for good is believed after about 15 entries of a ring, not sooner; and
a ring that gets no new entries holds on to the old speed. Scheduler thread only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Amount = TypeVar("Amount", float, npt.NDArray[np.float64])
"""One amount, or an array of them."""

RING = 64
"""Entries kept per class of size."""

KEEP_IN_RING = 0.96
"""Of an entry's weight, what is left after each newer entry of its ring."""

KEEP = 0.999
"""Of an entry's weight, what is left after each newer entry anywhere."""

CORNER = 0.05
"""Relative error below which errors are squared after all, so that the solution is unique."""

RIDGE = 0.001
"""Pull towards the prior's proportions; an entry that fits has weight 20."""

ROUNDS = 8
"""Reweighting rounds per fit, the first from the last solution."""

EVERY = 8
"""Entries after which the fit is renewed, once it is settled; a quarter of what it knows before that."""

FAR = 100.0
"""Times more than it took that one coefficient of the scaled prior may predict; beyond, it is nonsense or a slip."""

SHORTEST_S, LONGEST_S = 1e-7, 1e5
"""Times outside of these are taken for these, seconds."""


class TimeFit:
    """Coefficients of time over features of work.

    Parameters
    ----------
    prior
        Coefficients until there is evidence, seconds per unit of each feature; all above zero.
    edges
        Sizes of work that separate the rings, ascending.
    """

    def __init__(self, prior: Sequence[float], edges: Sequence[float]) -> None:
        self._prior = np.asarray(prior, np.float64)
        if not (np.isfinite(self._prior).all() and (self._prior > 0).all()):
            raise ValueError(f"prior coefficients must be finite and above zero, not {prior}")
        self._edges = tuple(edges)
        rings, n = len(self._edges) + 1, len(self._prior)
        self._x = np.zeros((rings, RING, n))
        self._y = np.ones((rings, RING))
        self._age = np.full((rings, RING), -1, np.int64)
        self._filled = [0] * rings
        self._zeros = np.array([m for m in product((False, True), repeat=n) if any(m)])
        self._theta = self._shown = self._prior
        self.seen = 0
        """Entries so far."""
        self._fitted = 0
        self._looked = (0, 0)
        """Entries, and those of the last fit, when somebody last looked."""

    def add(self, size: float, features: Sequence[float], seconds: float) -> None:
        """Add work of ``size`` with these features that took ``seconds``; ignored if not finite or not above zero."""
        if not (seconds > 0 and size > 0 and all(0 <= f < math.inf for f in features) and seconds < math.inf):
            return
        ring = sum(size >= edge for edge in self._edges)
        at = self._filled[ring] % RING
        self._x[ring, at] = features
        self._y[ring, at] = within_reason(seconds)
        self._age[ring, at] = self.seen
        self._filled[ring] += 1
        self.seen += 1

    @property
    def theta(self) -> Floats:
        """Coefficients, seconds per unit, shape ``[features]``; none below zero, not all zero.

        What they are depends on when somebody asked: this is for decisions, which all ranks take at the same points.
        """
        if self._due:
            self._theta = self._fit()
            self._fitted = self.seen
        return self._theta

    def shown(self) -> Floats:
        """Return what :attr:`theta` would be, for whoever only looks: to ask changes nothing."""
        if not self._due:
            return self._theta
        if self._looked != (self.seen, self._fitted):
            self._looked, self._shown = (self.seen, self._fitted), self._fit()
        return self._shown

    @property
    def _due(self) -> bool:
        return self.seen - self._fitted >= min(EVERY, 1 + self._fitted // 4)

    def _weights(self) -> Floats:
        rank = np.argsort(np.argsort(-self._age, axis=1), axis=1)
        weights: Floats = np.where(self._age >= 0, KEEP_IN_RING**rank * KEEP ** (self.seen - 1 - self._age), 0.0)
        return weights

    def _fit(self) -> Floats:
        weight = self._weights().ravel()
        there = weight > 0
        weight, x, y = weight[there], self._x.reshape(-1, len(self._prior))[there], self._y.ravel()[there]
        scale = self._prior * _median(y / (x @ self._prior), weight)
        # Relative to the time taken and to the scaled prior: both sides are about 1.
        z = np.minimum(x * scale / y[:, None], FAR)
        share = np.maximum(self._theta / scale, 1e-6) if self._fitted else np.ones(len(scale))
        for _ in range(ROUNDS):
            w = weight / np.maximum(np.abs(1.0 - z @ share), CORNER)
            wz = z * w[:, None]
            share = self._solve(wz.T @ z + RIDGE * np.eye(len(scale)), wz.sum(axis=0) + RIDGE)
        return share * scale

    def _solve(self, a: Floats, g: Floats) -> Floats:
        """Minimise ``s.a.s / 2 - g.s`` over ``s >= 0``; ``a`` is positive definite."""
        free = self._zeros
        reduced = np.where(free[:, :, None] & free[:, None, :], a, np.eye(len(g)))
        wanted = np.where(free, g, 0.0)
        found: Floats = np.linalg.solve(reduced, wanted[:, :, None])[:, :, 0]
        # At the solution of a subset the value is -wanted.found / 2.
        value = np.where((found >= 0).all(axis=1), (wanted * found).sum(axis=1), -np.inf)
        best: Floats = found[int(value.argmax())]
        return best


def within_reason(seconds: float) -> float:
    """Return a time with what no clock should have said cut off, so that sums and squares stay finite."""
    return min(max(seconds, SHORTEST_S), LONGEST_S)


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order[int(np.searchsorted(total, total[-1] / 2))]])
