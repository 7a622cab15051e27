"""How the pages of one allocation are spread over drives.

Owns the law: up to one stripe goes to one drive, in turn, and more goes to all drives, a stripe to each in turn, so
that a long path is read from all of them at once with large transfers. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """The next ``pages`` pages go to ``drive``."""

    drive: int
    pages: int


def spread(n: int, free: Sequence[int], stripe: int, first: int) -> list[Piece] | None:
    """Share ``n`` pages out.

    Parameters
    ----------
    n
        Pages.
    free
        Slots that each drive can give; 0 for a drive that takes none.
    stripe
        Pages of a stripe.
    first
        Drive whose turn it is.

    Returns
    -------
    list of Piece or None
        In page order, no two neighbours on one drive; None when fewer than ``n`` slots are free.
    """
    if n > sum(free):
        return None
    order = [(first + i) % len(free) for i in range(len(free))]
    if n <= stripe:
        for drive in order:
            if free[drive] >= n:
                return [Piece(drive, n)] if n else []
    left, pieces = list(free), list[Piece]()
    while n:
        for drive in order:
            pages = min(stripe, left[drive], n)
            left[drive] -= pages
            n -= pages
            if pages and pieces and pieces[-1].drive == drive:
                pieces[-1] = Piece(drive, pieces[-1].pages + pages)
            elif pages:
                pieces.append(Piece(drive, pages))
    return pieces
