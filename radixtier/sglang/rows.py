"""The nodes of one cache as rows, a page at a time.

Owns the numbers that a listing goes through, so that finding its place takes no walk over all nodes. Law: a page costs
the scheduler thread about a millisecond, so it is bounded in rows, in the pages of their runs, and in numbers of nodes
that are gone. Scheduler thread only.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from radixtier.control.rows import NONE, Floats, Ints, Rows
from radixtier.policy.pins import Tier
from radixtier.tree.residency import HBM, State
from radixtier.tree.tiertree import Run

MOST_PAGES = 16384
"""Pages of the runs of one page of rows; a longer run is a page of its own."""

MOST_GONE = 16384
"""Numbers of nodes that are gone which one page of rows passes over."""


class NodeRows:
    """Lists the runs of ``cache``."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._numbers: list[int] = []
        """Of the runs there were when this was filled, ascending: the ones that came since have larger numbers."""

    def page(self, after: int, limit: int, now: float, offset: float) -> dict[str, Any]:
        """Return rows of runs with numbers above ``after``.

        Parameters
        ----------
        after, limit
            See :class:`~radixtier.control.commands.ListNodes`.
        now
            Seconds, monotonic.
        offset
            From there to Unix seconds.
        """
        runs = self._cache.mover.tree.runs
        chosen, reached = self._choose(after, limit)
        last = next(reversed(runs), NONE)
        over = reached >= last
        if over:
            self._numbers = []
        rows = self._rows(chosen, [runs[number] for number in chosen], now, offset)
        return {"rows": rows, "next": None if over else reached, "total": len(runs)}

    def _choose(self, after: int, limit: int) -> tuple[list[int], int]:
        """Return the numbers of some runs, and how far the listing got."""
        runs = self._cache.mover.tree.runs
        if not self._numbers or after < self._numbers[0] or after >= self._numbers[-1]:
            self._numbers = list(runs)
        at = bisect_right(self._numbers, after)
        chosen: list[int] = []
        pages, reached = 0, after
        for number in self._numbers[at : at + limit + MOST_GONE]:
            run = runs.get(number)
            if run is not None:
                if len(chosen) == limit or (chosen and pages + len(run.pages) > MOST_PAGES):
                    break
                chosen.append(number)
                pages += len(run.pages)
            reached = number
        return chosen, reached

    def _rows(self, numbers: list[int], runs: list[Run], now: float, offset: float) -> Rows:
        cache = self._cache
        size, known = cache.page_size, cache.mover.tree.runs
        hbm, dram, nvme, lost, live = self._places(numbers, runs)
        sessions = ((number, cache.ahead.session_of(number)) for number in numbers)
        return Rows(
            node=_ints(numbers),
            parent=_ints([run.parent if run.parent in known else NONE for run in runs]),
            start_token=_ints([run.depth for run in runs]) * size,
            tokens=live * size,
            hbm=hbm * size,
            dram=dram * size,
            nvme=nvme * size,
            lost=lost * size,
            last_used=_floats([run.used if run.used > 0 else np.nan for run in runs]) + offset,
            hits=_ints([run.uses for run in runs]),
            expected=_floats([np.nan if run.expected is None else run.expected for run in runs]) + offset,
            session={number: session for number, session in sessions if session is not None},
            pinned=self._pins(numbers, now),
        )

    def _places(self, numbers: list[int], runs: list[Run]) -> list[Ints]:
        """Count the pages of each run in HBM, in DRAM, on NVMe and nowhere below HBM, and all that still exist."""
        table, n = self._cache.mover.table, len(runs)
        if not n:
            return [_ints([])] * 5
        pages = np.concatenate([run.pages for run in runs])
        owner = np.repeat(np.arange(n), [len(run.pages) for run in runs])
        live = table.run[pages] == np.asarray(numbers)[owner]
        pages, owner = pages[live], owner[live]
        state = table.state[pages]
        cold, clean, dirty = state == int(State.COLD), state == int(State.CLEAN), state == int(State.DIRTY)
        places = (table.mark[pages] & HBM != 0, clean | dirty, clean | cold, state == int(State.LOST))
        found = [np.bincount(owner[there], minlength=n) for there in places]
        return [*found, np.bincount(owner, minlength=n)]

    def _pins(self, numbers: list[int], now: float) -> dict[int, dict[str, float]]:
        pins = self._cache.steering.pins
        found: dict[int, dict[str, float]] = {}
        for tier, figures in pins.figures(now).items():
            for number in numbers if figures["pins"] else ():
                if left := pins.strength(number, now, Tier(tier)):
                    found.setdefault(number, {})[tier] = left
        return found


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _floats(values: list[float]) -> Floats:
    return np.array(values, np.float64)
