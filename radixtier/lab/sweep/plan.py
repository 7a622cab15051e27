"""The cheapest DRAM and NVMe that reach a target for a load.

Owns the way from a trace, an HBM and a target to a :class:`Plan`: HBM alone first, then the largest sizes with the
ceiling, then the search (:mod:`radixtier.lab.sweep.search`). Main thread: replays run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum

from radixtier.lab.sweep.front import front
from radixtier.lab.sweep.grid import Cell, Outcome, sized
from radixtier.lab.sweep.prices import Prices
from radixtier.lab.sweep.search import Point, Search
from radixtier.lab.sweep.target import Target

RUNS = 80
"""Replays at most, unless told otherwise."""

LEAST_RUNS = 25
"""The coarse grid; HBM alone and the largest sizes are two of it."""

Replay = Callable[[Sequence[tuple[Cell, bool]]], Generator[Outcome, None, None]]
"""Replays cells, each with or without its ceiling, and yields what came of them."""


class Verdict(Enum):
    """How a plan ended."""

    HBM_ALONE = "HBM alone reaches it"
    FOUND = "found"
    OUT_OF_REACH = "no sizes reach it with this policy; the ceiling would"
    BEYOND_CEILING = "no sizes reach it, and the ceiling does not either"


@dataclass
class Plan:
    """What a search has found, also while it runs."""

    target: Target
    prices: Prices
    verdict: Verdict | None = None
    """None when it was stopped."""
    answer: Outcome | None = None
    """The cheapest sizes that reach the target."""
    alone: Outcome | None = None
    """HBM alone."""
    most: Outcome | None = None
    """The largest sizes, with the ceiling."""
    found: list[Outcome] = field(default_factory=list)
    """Every replay that went well."""
    failed: list[Outcome] = field(default_factory=list)
    limited: bool = False
    """The runs were used up before the search was done."""

    def cost(self, outcome: Outcome) -> float:
        """Return what the sizes of an outcome cost."""
        assert outcome.report is not None
        block = outcome.report["block_bytes"]
        hbm, dram, nvme = outcome.cell.sizes
        return self.prices.of(hbm * block, dram * block, nvme * block)

    def value(self, outcome: Outcome) -> float:
        """Return what an outcome reaches, as the target counts."""
        assert outcome.report is not None
        return self.target.of(outcome.report)

    def front(self) -> list[Outcome]:
        """Return the replays that are clearly better than all that is cheaper, and the answer; in the order of cost."""

        def better(one: Outcome, other: Outcome) -> bool:
            return self.target.clearly_better(self.value(one), self.value(other))

        best = front(self.found, self.cost, better)
        if self.answer is not None and self.answer not in best:
            best.append(self.answer)
        return sorted(best, key=self.cost)

    @property
    def runs(self) -> int:
        """Replays so far."""
        return len(self.found) + len(self.failed)

    @property
    def writes_per_day(self) -> float | None:
        """How often a day the answer's NVMe is written full (DWPD of that size); None without NVMe or time."""
        report = self.answer.report if self.answer is not None else None
        if report is None or self.answer is None or not self.answer.cell.setup.nvme:
            return None
        per_day = report["bytes_written_per_day"]
        return None if per_day is None else per_day / (self.answer.cell.setup.nvme * report["block_bytes"])


def pursue(
    plan: Plan,
    cell: Cell,
    most: tuple[int | None, int | None],
    replay: Replay,
    runs: int = RUNS,
    width: int = 1,
) -> None:
    """Search for the cheapest sizes.

    Parameters
    ----------
    plan
        Takes what is found, as it is found.
    cell
        The trace, HBM and policies; its DRAM and NVMe do not matter.
    most
        The largest DRAM and NVMe in blocks; None is every block that the trace has.
    replay
        See `Replay`.
    runs
        Replays at most, at least `LEAST_RUNS`.
    width
        Replays to ask for at once.

    Raises
    ------
    ValueError
        When HBM alone cannot be replayed: the text is the reason.
    """

    def at(point: Point) -> Cell:
        return Cell(cell.trace, sized(cell.setup, (cell.setup.hbm, *point)))

    def measure(points: Sequence[Point]) -> Iterator[tuple[Point, bool]]:
        done = {each.cell: each for each in plan.found}
        yield from ((point, reached(done[at(point)])) for point in points if at(point) in done)
        with closing(replay([(at(point), False) for point in points if at(point) not in done])) as outcomes:
            for outcome in outcomes:
                take(outcome)
                if outcome.report is not None:
                    yield outcome.cell.sizes[1:], reached(outcome)

    def take(outcome: Outcome) -> None:
        (plan.failed if outcome.report is None else plan.found).append(outcome)

    def reached(outcome: Outcome) -> bool:
        return plan.target.reached(plan.value(outcome))

    def one(point: Point, *, ceiling: bool) -> Outcome:
        with closing(replay([(at(point), ceiling)])) as outcomes:
            outcome = next(outcomes)
        take(outcome)
        if outcome.report is None:
            raise ValueError(outcome.error)
        return outcome

    plan.alone = one((0, 0), ceiling=False)
    if reached(plan.alone):
        plan.verdict, plan.answer = Verdict.HBM_ALONE, plan.alone
        return
    dram, nvme = (plan.alone.distinct if each is None else each for each in most)
    plan.most = one((dram, nvme), ceiling=True)
    block = plan.alone.report["block_bytes"] if plan.alone.report is not None else 1

    def cost(point: Point) -> float:
        return plan.prices.of(0, point[0] * block, point[1] * block)

    search = Search(cost, measure, (dram, nvme), runs, width)
    best = search.best()
    plan.limited = search.stopped
    if best is not None:
        plan.verdict = Verdict.FOUND
        plan.answer = next(each for each in plan.found if each.cell == at(best))
        return
    assert plan.most.report is not None
    ceiling = plan.most.report["stacks"].get("ceiling")
    beyond = ceiling is not None and not plan.target.reached(plan.target.of(plan.most.report, "ceiling"))
    plan.verdict = Verdict.BEYOND_CEILING if beyond else Verdict.OUT_OF_REACH
