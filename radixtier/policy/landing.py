"""Which cold pages of a request go straight from NVMe to HBM, and which through DRAM.

The law. DRAM is for what comes again, the landing zone for what is read once:

* the front of a path up to its last page that is *wanted again* goes through DRAM: a part that two requests used, that
  paths branch off from, or that is pinned, with all in front of it;
* what is behind, the *tail*, goes straight to HBM where it is long, :data:`LONG_PAGES` or more; a short one does where
  DRAM would have to give up something warmer for it;
* of a tail longer than the free landing zone, its end goes straight, and the rest through DRAM;
* nothing goes straight that would take :data:`SLOWER` times as long that way, by what both ways were seen to do. Every
  :data:`RETRY_S` one request tries the slow way again.

That a path was expected back does not count: whoever asks for it is the return. A read that failed is done again
through DRAM; after :data:`FAILURES` failures in a row nothing goes straight any more, as with an engine that gives up.

Where it loses: a long document that is asked about a second time is read twice, and takes its place in DRAM only then.
What was inserted at once counts as one part, so a path that branches off in its middle keeps its end in DRAM, too.
What landed for a request that waits long for its admission keeps the zone from others. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.policy.bandwidth import ReadRate

LONG_PAGES = 8
"""Of a tail: 512 tokens with pages of 64."""

SLOWER = 1.25
"""How much longer it may take straight: it saves a frame of DRAM and the copy from there."""

MEASURED = 3
"""Jobs that went straight before their speed counts."""

RETRY_S = 60.0
FAILURES = 3


class Segment(NamedTuple):
    """Consecutive pages of a path."""

    pages: int
    wanted_again: bool
    """Used by two requests or more, branched off from, or pinned."""


def straight(
    segments: Iterable[Segment],
    cold: npt.NDArray[np.int64],
    landing: int,
    has_room: Callable[[int], bool],
) -> npt.NDArray[np.int64]:
    """Return those of the positions ``cold`` that go straight to HBM.

    Parameters
    ----------
    segments
        The path below HBM, root-side first.
    cold
        Positions of its pages that are on NVMe only and can be checked on the way straight up, ascending.
    landing
        Free landing frames.
    has_room
        Whether DRAM has so many frames without anything warmer than the tail having to go.
    """
    end = tail = 0
    for segment in segments:
        end += segment.pages
        tail = end if segment.wanted_again else tail
    chosen = cold[cold >= tail]
    if not len(chosen) or landing <= 0 or (len(chosen) < LONG_PAGES and has_room(len(chosen))):
        return cold[:0]
    return chosen[max(0, len(chosen) - landing) :]


class Trust:
    """Whether the way straight up is worth taking, by what became of the reads that took it."""

    def __init__(self) -> None:
        self._failures = 0
        self._retry_at = -np.inf
        self.given_up = False
        """Whether it failed so often that it is not taken any more."""

    def worth(self, nbytes: int, direct: ReadRate, through: ReadRate, now: float) -> bool:
        """Whether ``nbytes`` are to be read straight to HBM at ``now``, seconds."""
        if self.given_up:
            return False
        slow = direct.jobs >= MEASURED and direct.seconds(float(nbytes)) > SLOWER * through.seconds(float(nbytes))
        return not slow or now >= self._retry_at

    def taken(self, now: float) -> None:
        """A read takes that way at ``now``, seconds."""
        self._retry_at = now + RETRY_S

    def worked(self) -> None:
        """A read came up straight, whatever its checksum said."""
        self._failures = 0

    def failed(self) -> bool:
        """A read failed; whether that was one too many."""
        self._failures += 1
        first = self._failures >= FAILURES and not self.given_up
        self.given_up |= first
        return first
