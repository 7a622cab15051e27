"""What every admission policy answers: whether pages are worth a write to NVMe.

Owns the question and the answers. A rejected or throttled page stays in DRAM, dirty, and is lost when DRAM needs its
frame. Scheduler thread only; `now` is in seconds on any one clock.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
"""The first 64 bits of each page's key digest, root-side first."""


FANOUT = 4
"""Runs that go on with the lead of the one they hang from."""


class Verdict(Enum):
    """Answer to "may these pages be written?"."""

    ADMIT = "admit"
    REJECT = "reject"
    """Not unless they are used again."""
    THROTTLED = "throttled"
    """Not now: ask again later."""


class Candidate(NamedTuple):
    """Consecutive pages of a path, all in DRAM, none on NVMe.

    The pages of one path are offered from its end to the root, so that what must be in front is known to be `needed`;
    only those behind which nothing is missing are written then, and the others refunded.
    """

    keys: Keys
    """At least one."""
    nbytes: int
    """Bytes of all pages."""
    uses: int
    """Requests that used them since they exist, the one that computed them included."""
    room: float
    """Share of NVMe that is free, 0 to 1."""
    now: float
    lead: int
    """A key that the pages along one path have in common, so that a draw treats them alike: of the runs that hang from
    one parent the first :data:`FANOUT` have its lead, the others (it is a shared prompt then) their own first key."""
    needed: bool = False
    """Whether pages behind these were just admitted, which are worth nothing without them."""

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.keys)


class Admission(Protocol):
    """Decides what is written to NVMe, and learns from what became of it."""

    name: str

    def admit(self, candidate: Candidate) -> Verdict:
        """Decide on pages that were just used; asked again at each later use as long as they are not on NVMe."""

    def gone(self, keys: Keys, now: float) -> None:
        """Note that pages left DRAM and were on no other tier: not written, or dropped from NVMe before."""

    def evicted(self, keys: Keys, now: float) -> None:
        """Note that pages left NVMe to make room."""

    def wanted(self, keys: Keys, now: float) -> None:
        """Note that a request needed pages that were in no tier (before it computes them, and before `admit`)."""

    def served(self, pages: int, now: float) -> None:
        """Note that so many pages of a request came from NVMe."""

    def wrote(self, nbytes: int, now: float) -> None:
        """Note that admitted bytes were written."""

    def refund(self, nbytes: int, now: float) -> None:
        """Note that admitted bytes were not, and will not be."""
