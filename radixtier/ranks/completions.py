"""What ended on every rank: jobs that all ranks began in the same order, and that each ends in its own time.

Owns the jobs that are open anywhere. The laws:

- a job is over when it is over on every rank; those that come to be over in one reduction are told in the order in
  which they began;
- a page did as badly as on the rank where it did worst, so that what is lost on one rank is lost on all;
- a reduction has at most :data:`WINDOW` jobs, the most urgent and then the oldest. It says of each whether it went well
  throughout; only of one that did not, the next reduction has the pages;
- so it has of a job of which one rank alone knows some numbers for each page: that rank says them, the others the
  largest number, and the minimum is what it said.

Scheduler thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.ranks.agreement import Longs

CORRUPT, FAILED, CANCELLED, OK = 0, 1, 2, 3
"""What became of a page, the worst first."""

WINDOW = 64
"""Jobs in one reduction."""

DETAIL_PAGES = 4096
"""Pages in one reduction, of jobs that are told of in detail; of one job at least. A number told of a page counts as
one more."""

UNTOLD = np.iinfo(np.int64).max
"""What a rank says that does not know."""

_PENDING, _MIXED, _GOOD = 0, 1, 2
_US = 1e6

Codes = npt.NDArray[np.int8]
"""One of the above per page."""


class Completion(NamedTuple):
    """A job that is over on all ranks."""

    tag: int
    codes: Codes
    seconds: tuple[float, float]
    """What the job's end was told with: the longest of all ranks, each."""
    local: Any
    """What the job's end was told with on this rank."""
    told: Longs | None = None
    """Of shape (pages, numbers), what one rank told of each page; None of a job without that."""


@dataclass(slots=True)
class _Open:
    tag: int
    pages: int
    urgency: int
    tells: int
    codes: Codes | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    local: Any = None
    told: Longs | None = None

    @property
    def details(self) -> int:
        """Numbers that a reduction has of it in detail."""
        return self.pages * (1 + self.tells)

    def state(self) -> int:
        assert self.codes is not None
        return _GOOD if not self.tells and (self.codes == OK).all() else _MIXED

    def offer(self) -> Longs:
        assert self.codes is not None
        told = np.full(self.pages * self.tells, UNTOLD) if self.told is None else self.told.reshape(-1)
        return np.concatenate([self.codes.astype(np.int64), told])

    def completion(self, details: Longs) -> Completion:
        codes, told = details[: self.pages].astype(np.int8), details[self.pages :].reshape(self.pages, self.tells)
        return Completion(self.tag, codes, self.seconds, self.local, told if self.tells else None)


class Completions:
    """A section of the reduction; tags are integers, in the order in which the jobs began."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._mixed: dict[int, _Open] = {}
        """Over on all ranks, and to be told of in detail."""
        self._window: list[_Open] = []
        self._detailed: list[_Open] = []
        self._over: list[Completion] = []

    def __len__(self) -> int:
        """Jobs that are not over everywhere, or that nobody took yet."""
        return len(self._open) + len(self._mixed) + len(self._over)

    def begin(self, tag: int, pages: int, urgency: int, tells: int = 0) -> None:
        """A job begins, on all ranks; a lower ``urgency`` is told of first.

        ``tells`` numbers per page are known to one rank, and to all once the job is over.
        """
        self._open[tag] = _Open(tag, pages, urgency, tells)

    def end(self, tag: int, codes: Codes, seconds: tuple[float, float], local: Any, told: Longs | None = None) -> None:
        """A job is over on this rank; ``told``, of shape (pages, numbers), on the rank that knows."""
        job = self._open[tag]
        job.codes, job.seconds, job.local, job.told = codes, seconds, local, told

    def take(self) -> list[Completion]:
        """Return what is over on all ranks and was not taken yet, in order."""
        over, self._over = self._over, []
        return over

    def take_local(self) -> list[Completion]:
        """Return what is over on this rank, whatever the others do, which nobody may agree with any more."""
        found = [*self._over]
        self._over = []
        for jobs in (self._mixed, self._open):
            for job in [job for job in jobs.values() if job.codes is not None]:
                del jobs[job.tag]
                found.append(job.completion(job.offer()))
        return sorted(found, key=lambda each: each.tag)

    # ---- the reduction -------------------------------------------------------------------------------

    def offer(self) -> Longs:
        """Return three numbers per job of the window, then one per page of the jobs that are asked for in detail."""
        self._window = sorted(self._open.values(), key=lambda job: (job.urgency, job.tag))[:WINDOW]
        self._detailed, numbers = [], 0
        for job in self._mixed.values():
            if self._detailed and numbers + job.details > DETAIL_PAGES:
                break
            self._detailed.append(job)
            numbers += job.details
        states = np.zeros((len(self._window), 3), np.int64)
        for row, job in zip(states, self._window, strict=True):
            if job.codes is not None:
                row[:] = job.state(), *(-int(each * _US) for each in job.seconds)
        return np.concatenate([states.reshape(-1), *(job.offer() for job in self._detailed)])

    def learn(self, agreed: Longs) -> None:
        """Take out what is over everywhere."""
        split = 3 * len(self._window)
        at = split
        over: list[Completion] = []
        for job in self._detailed:
            del self._mixed[job.tag]
            over.append(job.completion(agreed[at : at + job.details]))
            at += job.details
        for (state, *micros), job in zip(agreed[:split].reshape(-1, 3).tolist(), self._window, strict=True):
            if state == _PENDING:
                continue
            del self._open[job.tag]
            job.seconds = (-micros[0] / _US, -micros[1] / _US)
            if state == _MIXED:
                self._mixed[job.tag] = job
            else:
                over.append(Completion(job.tag, np.full(job.pages, OK, np.int8), job.seconds, job.local))
        self._over += sorted(over, key=lambda each: each.tag)
        self._window, self._detailed = [], []
