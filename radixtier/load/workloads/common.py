"""What workloads share: lengths, the pieces they are made of, flags, and the order of prompts that share a part.

Owns the grammar of a length. Any thread; a :class:`Source` is used by one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from radixtier.load.answer import Piece
from radixtier.load.play import Conversation, Order
from radixtier.load.target import Target

T = TypeVar("T")

MOST = 10_000_000
"""Of anything that is counted."""

_LENGTH = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)


class Length(NamedTuple):
    """Tokens, evenly drawn from ``least`` to ``most``."""

    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        """Draw a length."""
        return source.randint(self.least, self.most)

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


def length(text: str) -> Length:
    """Read ``512`` or ``256:1024``; `ValueError` says what to write."""
    match = _LENGTH.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most <= MOST:
        raise ValueError("write a number of tokens, 512, or a range, 256:1024")
    return Length(least, most)


def count(text: str) -> int:
    """Read a number of things, 1 at least; `ValueError` says what to write."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST):
        raise ValueError("write a whole number, 1 at least")
    return int(text)


class Source:
    """Where a workload takes its chances and its text from.

    Parameters
    ----------
    target
        Makes the pieces.
    labels
        Tell this source from others: equal labels give equal pieces, others share none.
    """

    def __init__(self, target: Target, *labels: object) -> None:
        self.target = target
        self.random = random.Random(repr(labels))
        self._base = self.random.getrandbits(64)

    def draw(self, length: Length) -> int:
        """Draw a length."""
        return length.draw(self.random)

    def name(self, text: str) -> str:
        """Make the name of a conversation, which a server may take for a session: unlike those of other sources."""
        return f"{self._base & 0xFFFF_FFFF:08x}-{text}"

    def fresh(self, tokens: int) -> Piece:
        """Make a piece that nothing else shares."""
        return self.target.piece(tokens, self.random.getrandbits(64))

    def known(self, tokens: int, number: int) -> Piece:
        """Make the piece of a number: the same whenever it is asked for, or the beginning of it."""
        return self.target.piece(tokens, (self._base + number) & 0xFFFF_FFFF_FFFF_FFFF)


class Workload(Protocol):
    """A kind of load; a frozen dataclass whose fields have an :func:`option` as metadata."""

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """Make them; ``order`` is that of single prompts, turns of a conversation are ordered while they are played."""

    @property
    def requests(self) -> int:
        """How many requests these are, or at most."""


def option(read: Callable[[str], Any], meaning: str, quick: Any = None) -> dict[str, Any]:
    """Describe a field of a workload: how its flag is read, what it means, and its default with ``--quick``."""
    return {"read": read, "meaning": meaning, "quick": quick}


def arranged(groups: Sequence[Sequence[T]], order: Order, draw: random.Random) -> list[T]:
    """Put prompts that share a part by groups in order: as far apart as can be, at random, or one behind the other."""
    if order == "deep":
        return [each for group in groups for each in group]
    longest = max(map(len, groups), default=0)
    spread = [group[at] for at in range(longest) for group in groups if at < len(group)]
    if order == "random":
        draw.shuffle(spread)
    return spread
