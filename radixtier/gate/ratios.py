"""What stands in brackets behind a ratio: an interval where there are rounds enough for one, else their range.

Owns that one rule for all gates. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixtier.load.figures import ENOUGH, Ratio


def bounds(rounds: int, name: str = "round") -> str:
    """Say what the bounds of a ratio are: an interval has to be earned with :data:`ENOUGH` rounds."""
    first, *rest = name.split()
    many = " ".join([first if rounds == 1 else f"{first}s", *rest])
    return "95 % interval" if rounds >= ENOUGH else f"range of {rounds} {many}"


def enclosed(found: Ratio, rounds: Sequence[float]) -> Ratio:
    """Return a ratio with its interval, or with the range of its rounds where they are fewer than :data:`ENOUGH`."""
    return found if len(rounds) >= ENOUGH else Ratio(found.value, min(*rounds, found.value), max(*rounds, found.value))
