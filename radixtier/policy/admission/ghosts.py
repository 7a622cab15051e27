"""Memory of pages that are nowhere any more: a table of keys with one place for each.

The law: a key has one place, where a later key overwrites it. With twice as many places as keys noted since, 61 % of
them are still known; memory is 8 bytes a place and never grows. A key that is not known is at worst a page written
one use later.
"""

from __future__ import annotations

import numpy as np

from radixtier.policy.admission.verdict import Keys

MOST = 1 << 22
"""Places at most: 32 MiB."""


class Ghosts:
    """Keys of about as many pages as ``pages``, the latest.

    Parameters
    ----------
    pages
        Pages of the tier whose leavers are remembered; places are the next power of two from twice that on.
    """

    def __init__(self, pages: int) -> None:
        places = min(MOST, 1 << max(4, (2 * pages - 1).bit_length()))
        self._table = np.zeros(places, np.uint64)
        self._mask = np.uint64(places - 1)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._table))

    @property
    def nbytes(self) -> int:
        """Bytes taken, for good."""
        return self._table.nbytes

    def note(self, keys: Keys) -> None:
        """Remember keys."""
        self._table[keys & self._mask] = keys

    def recall(self, keys: Keys) -> int:
        """Return how many of ``keys`` are remembered, and forget these."""
        places = keys & self._mask
        found = places[self._table[places] == keys]
        self._table[found] = 0
        return len(found)
