"""What our own part of the scheduler's steps costs. Scheduler thread only."""

from __future__ import annotations


class Ticks:
    """Counts steps and their seconds.

    Attributes
    ----------
    count : int
        Steps so far.
    seconds, longest_s : float
        All of them together, and the longest.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a step."""
        self.count += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)

    def to_json(self) -> dict[str, float]:
        """Return plain data."""
        return {"count": self.count, "seconds": self.seconds, "longest_s": self.longest_s}
