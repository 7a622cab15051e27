"""Finds the cheapest sizes of DRAM and NVMe that reach a target.

The law. Each tier has a ladder of sizes: none, and from the largest down in steps of :data:`STEP`. All pairs of a few
rungs, :data:`COARSE` steps apart, are measured first. They are the upper corners of boxes of pairs; a box is dropped
when its lower corner costs as much as the cheapest pair found, or when its upper corner does not reach the target,
and is halved in both directions otherwise, until nothing is left. Every answer was measured: nothing is interpolated.

Where it is wrong: it takes for granted that what a pair fails to reach, a pair that is smaller in both fails to
reach, too. Hits nearly grow with every size, but not strictly, so something cheaper may lie in a box that was dropped.
Sizes below ``most / STEP ** RUNGS`` are not looked at, save none at all. Owns no replays: they are asked for
in batches, so that they can run in parallel. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

STEP = 2**0.25
COARSE = 8
"""Steps: a factor of 4."""
RUNGS = 32
"""Beside none; a factor of 256 from the smallest to the largest."""

Point = tuple[int, int]
"""Blocks of DRAM and of NVMe."""


class _Span(NamedTuple):
    """Rungs of a ladder, both ends included."""

    low: int
    high: int

    def halves(self) -> list[_Span]:
        if self.low == self.high:
            return [self]
        middle = (self.low + self.high) // 2
        return [_Span(self.low, middle), _Span(middle + 1, self.high)]


_Box = tuple[_Span, _Span]


class Search:
    """See the module.

    Parameters
    ----------
    cost
        Of a point; does not fall when a size grows.
    measure
        Replays points and yields for each whether it reaches the target; a point that fails is left out.
    most
        The largest sizes.
    runs
        Points to measure at most.
    width
        Points to measure at once, where there are as many; more of them mean a few that turn out needless.
    """

    def __init__(
        self,
        cost: Callable[[Point], float],
        measure: Callable[[Sequence[Point]], Iterable[tuple[Point, bool]]],
        most: Point,
        runs: int,
        width: int = 1,
    ) -> None:
        self._cost = cost
        self._measure = measure
        self._ladders = ladder(most[0]), ladder(most[1])
        self._left = runs
        self._width = width
        self._reached: dict[Point, bool] = {}
        self._tried: set[Point] = set()
        self.stopped = False
        """The runs were used up."""

    def best(self) -> Point | None:
        """Run the search; returns the cheapest sizes that reach the target, None when none do."""
        boxes = [(dram, nvme) for dram in _coarse(self._ladders[0]) for nvme in _coarse(self._ladders[1])]
        self._ask([self._high(box) for box in boxes])
        while boxes and not self.stopped:
            promising = self._sifted(boxes)
            boxes = [
                (dram, nvme)
                for box in promising
                if box[0].low < box[0].high or box[1].low < box[1].high
                for dram in box[0].halves()
                for nvme in box[1].halves()
            ]
        return self.cheapest()

    def cheapest(self) -> Point | None:
        """Return the cheapest point known to reach the target."""
        return min((point for point, reached in self._reached.items() if reached), key=self._key, default=None)

    def _sifted(self, boxes: list[_Box]) -> list[_Box]:
        """Return the boxes that may hold something cheaper, measuring upper corners where that has to be known."""
        left = sorted(boxes, key=lambda box: self._cost(self._low(box)))
        kept: list[_Box] = []
        while left:
            asked: list[Point] = []
            unsure: list[_Box] = []
            for box in left:
                corner = self._high(box)
                if self._hopeless(box):
                    continue
                if self._surely(corner):
                    kept.append(box)
                    continue
                unsure.append(box)
                if len(asked) < self._width:
                    asked.append(corner)
            left = unsure
            if asked and not self._ask(asked):
                return []
        return [box for box in kept if not self._hopeless(box)]

    def _hopeless(self, box: _Box) -> bool:
        best, corner = self.cheapest(), self._high(box)
        if best is not None and self._cost(self._low(box)) >= self._cost(best):
            return True
        # What could not be replayed counts as what fails, but says nothing of smaller sizes.
        failed = (point for point, reached in self._reached.items() if not reached)
        return any(corner[0] <= each[0] and corner[1] <= each[1] for each in failed) or (
            corner in self._tried and corner not in self._reached
        )

    def _surely(self, corner: Point) -> bool:
        reached = (point for point, reached in self._reached.items() if reached)
        return any(corner[0] >= each[0] and corner[1] >= each[1] for each in reached)

    def _ask(self, points: list[Point]) -> bool:
        """Measure points, the cheapest first, as far as runs are left; returns whether any were."""
        points = sorted(set(points), key=self._key)
        self.stopped = len(points) > self._left
        points = points[: self._left]
        self._left -= len(points)
        self._tried.update(points)
        if points:
            self._reached.update(self._measure(points))
        return bool(points)

    def _key(self, point: Point) -> tuple[float, Point]:
        return self._cost(point), point

    def _low(self, box: _Box) -> Point:
        return self._ladders[0][box[0].low], self._ladders[1][box[1].low]

    def _high(self, box: _Box) -> Point:
        return self._ladders[0][box[0].high], self._ladders[1][box[1].high]


def ladder(most: int) -> list[int]:
    """Return the sizes of a tier that are looked at, from none on."""
    return sorted({0, *(int(most / STEP**rung) for rung in range(RUNGS + 1))})


def _coarse(rungs: Sequence[int]) -> list[_Span]:
    """Cut a ladder into none and spans of `COARSE` rungs; the last, of the smallest sizes, takes what is left."""
    ends = list(range(len(rungs) - 1, 0, -COARSE))[: RUNGS // COARSE]
    return [_Span(0, 0), *(_Span(below + 1, end) for below, end in pairwise([0, *ends[::-1]]))]
