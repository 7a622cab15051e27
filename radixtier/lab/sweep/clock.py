"""How long a sweep still takes.

The law: a cell takes as long as the mean of those done of its trace and eviction policy, else of its trace, else of
all; the cells left share the processes evenly. Wrong where sizes matter much, and at the very end, when a process
has nothing left to do. Any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from radixtier.lab.sweep.grid import Cell, Outcome


class TimeLeft:
    """Seconds that the cells left will take.

    Parameters
    ----------
    cells
        That are to be replayed.
    jobs
        Processes.
    """

    def __init__(self, cells: Iterable[Cell], jobs: int) -> None:
        self._left = list(cells)
        self._jobs = jobs
        self._seen: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def done(self, outcome: Outcome) -> None:
        """Take a cell off the list."""
        self._left.remove(outcome.cell)
        for key in _keys(outcome.cell):
            self._seen[key].append(outcome.seconds)

    @property
    def seconds(self) -> float | None:
        """Seconds left, None before the first cell is done."""
        if not self._seen:
            return None
        total = 0.0
        for cell in self._left:
            seen = next(self._seen[key] for key in _keys(cell) if key in self._seen)
            total += sum(seen) / len(seen)
        return total / min(self._jobs, max(1, len(self._left)))


def _keys(cell: Cell) -> tuple[tuple[str, ...], ...]:
    return (cell.trace, cell.setup.eviction), (cell.trace,), ()


def spoken(seconds: float) -> str:
    """Say how long that is: ``40 s``, ``7 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
