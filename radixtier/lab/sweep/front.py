"""Which sizes are worth their cost: the Pareto front.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def front(found: Iterable[T], cost: Callable[[T], float], better: Callable[[T, T], bool]) -> list[T]:
    """Return what nothing cheaper, or equally cheap, is as good as; in the order of cost.

    Parameters
    ----------
    found
        Whatever has a cost and a worth.
    cost
        Of one.
    better
        Whether the first is worth more than the second; a strict order.
    """
    best: list[T] = []
    for each in sorted(found, key=cost):
        if best and cost(best[-1]) == cost(each) and better(each, best[-1]):
            best.pop()
        if not best or better(each, best[-1]):
            best.append(each)
    return best
