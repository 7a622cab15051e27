"""One vector per step that is reduced over the ranks: the time, what was measured, and what each section agrees on.

Owns the agreed time and the vector. Invariants: the vector is put together from facts that all ranks share, so it has
the same length and meaning everywhere; all ranks learn from it at the same point of the program, before any acts on it.
Ranks that decided differently may have more or less to say: so vectors are filled up to whole blocks, and their head
tells how much each rank has, since a reduction of different lengths ends the processes.
SGLang reduces once per step of its scheduler anyway, and the vector rides along (:meth:`Agreement.offer`,
:meth:`Agreement.learn`); of its own the tier reduces at most once between two steps, where the time matters
(:meth:`Agreement.refresh`). Scheduler thread only.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

Longs = npt.NDArray[np.int64]

BLOCK = 512
"""The vector has a multiple of so many numbers: ranks that differ in what they have to say still reduce, and notice."""

MOST_MEASURES = 64
"""Measurements in one vector; more wait for the next."""

_US = 1e6


class Group(Protocol):
    """Ranks that can reduce."""

    rank: int
    size: int

    def minimum(self, values: Longs) -> Longs:
        """Return the element-wise minimum over all ranks; every rank calls it with the same shape. Blocks."""


class Section(Protocol):
    """A part of the vector."""

    def offer(self) -> Longs:
        """Return what this rank has to say; the length is the same on every rank."""

    def learn(self, agreed: Longs) -> None:
        """Take the minimum over the ranks, of the length that was offered."""


class Ranks(Protocol):
    """What the cache of one rank sees of the others."""

    rank: int
    size: int
    diverged: bool
    """Whether the ranks were found to have decided differently: nothing of the tier may be used any more."""

    def now(self) -> float:
        """Return the agreed time, seconds; that of the last reduction."""

    def refresh(self) -> None:
        """Bring the time up to date, at a point of the program that all ranks pass."""

    def measured(self, seconds: float, tell: Callable[[float], None]) -> None:
        """Have ``tell`` called with the longest of what the ranks measured; for what all ranks measure."""

    def agreed(self, value: int) -> int:
        """Return the least of what the ranks say, at once; for the start, not for a step."""

    def leave(self) -> None:
        """Agree with nobody from now on: this rank ends."""


class Alone:
    """One rank, which agrees with itself; ``clock`` tells seconds."""

    rank = 0
    size = 1
    diverged = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock

    def now(self) -> float:
        """Return the time, seconds."""
        return self.clock()

    def refresh(self) -> None:
        """Do nothing: the time is up to date."""

    def measured(self, seconds: float, tell: Callable[[float], None]) -> None:
        """Tell at once."""
        tell(seconds)

    def agreed(self, value: int) -> int:
        """Return the value."""
        return value

    def leave(self) -> None:
        """Do nothing."""


class Agreement:
    """Several ranks. Reduces once to begin with, so that all know the time.

    Parameters
    ----------
    group
        Those that take part.
    clock
        Seconds, of this rank.

    Attributes
    ----------
    state : callable
        Returns a number that follows from what was decided so far, 0 or more: the same on every rank, or they have
        diverged.
    on_divergence : callable
        Called once, on every rank at the same point, when they have.
    own : int
        Reductions that did not ride along with one of SGLang's, those of the start left out.
    """

    def __init__(self, group: Group, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.rank = group.rank
        self.size = group.size
        self.diverged = False
        self.left = False
        """Whether this rank agrees with nobody any more."""
        self.own = 0
        self.state: Callable[[], int] = lambda: 0
        self.on_divergence: Callable[[], None] = lambda: None
        self._group = group
        self._clock = clock
        self._sections: list[Section] = []
        self._measures: deque[tuple[int, Callable[[float], None]]] = deque()
        self._offered: list[Longs] = []
        self._now = 0.0
        self._fresh = False
        self._failed = False
        self.learn(group.minimum(self.offer()))

    def join(self, section: Section) -> None:
        """Add a section; every rank adds the same ones in the same order."""
        self._sections.append(section)

    # ---- the vector ----------------------------------------------------------------------------------

    def offer(self) -> Longs:
        """Return what this rank has to say; :meth:`learn` has to follow with the minimum over all ranks."""
        told = [-micros for micros, _ in self._measures][:MOST_MEASURES]
        parts = [np.array(told, np.int64), *(section.offer() for section in self._sections)]
        state = checksum([-1 if self._failed else self.state(), *map(len, parts)])
        head = np.array([int(self._clock() * _US), state, -state], np.int64)
        self._offered = [head, *parts]
        used = sum(map(len, self._offered))
        return np.concatenate([*self._offered, np.zeros(-used % BLOCK, np.int64)])

    def learn(self, agreed: Longs) -> None:
        """Take the minimum over the ranks of what was offered."""
        ends = np.cumsum([len(part) for part in self._offered])
        head, measures, *rest, _ = np.split(agreed, ends)
        self._now = max(self._now, int(head[0]) / _US)
        self._fresh = False
        if head[1] != -head[2]:
            self._diverge("the ranks of this server have decided differently")
            return
        self._failed = False
        for longest in measures.tolist():
            _, tell = self._measures.popleft()
            tell(-longest / _US)
        for section, part in zip(self._sections, rest, strict=True):
            section.learn(part)

    # ---- for the cache -------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the agreed time, seconds; that of the last reduction."""
        return self._clock() if self.left else self._now

    def refresh(self) -> None:
        """Bring the time up to date, once between two steps at most."""
        if not self._fresh:
            self.reduce()
            self._fresh = True

    def reduce(self) -> None:
        """Reduce now, by a reduction of our own."""
        if self.left:
            return
        offered = self.offer()
        try:
            agreed = self._group.minimum(offered)
        except Exception as error:  # a rank is gone, and SGLang itself ends at its next collective
            self._diverge(f"the other ranks of this server cannot be reached ({error})")
            return
        self.own += 1
        self.learn(agreed)

    def measured(self, seconds: float, tell: Callable[[float], None]) -> None:
        """Have ``tell`` called with the longest of what the ranks measured, after the next reduction."""
        if self.left:
            tell(seconds)
        else:
            self._measures.append((int(seconds * _US), tell))

    def agreed(self, value: int) -> int:
        """Return the least of what the ranks say, at once."""
        return int(self._group.minimum(np.array([value], np.int64))[0])

    def fail(self) -> None:
        """This rank could not do what the others may have done: if they have, all find in the next reduction that they
        differ.
        """
        self._failed = True

    def leave(self) -> None:
        """Agree with nobody from now on."""
        self.left = True
        while self._measures:
            micros, tell = self._measures.popleft()
            tell(micros / _US)

    def _diverge(self, why: str) -> None:
        logger.error(
            "radixtier: %s; the tier is not used any more. Restart the server, and please report this with the logs "
            "of all ranks", why,
        )  # fmt: skip
        self.diverged = True
        self.leave()
        self.on_divergence()


def checksum(values: Sequence[int]) -> int:
    """Return a number of 32 bits that is equal in all processes for equal integers."""
    return zlib.crc32(np.array(values, np.int64).tobytes())
