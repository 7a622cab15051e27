"""What was decided about the nodes of the tree, and where one is now.

Owns the log of decisions. Invariant: at most :data:`PER_NODE` per node and `most` nodes; the node whose last decision
is the oldest goes first. About 1 KiB per node when its log is full. Scheduler thread only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST = 16384
PER_NODE = 8


class Event(NamedTuple):
    """One decision about a node."""

    when: float
    """Unix seconds."""
    what: str
    """What was done, such as ``demoted``."""
    why: str
    """By which rule or on whose behalf, such as ``lru``."""


class NodeEvents:
    """The last decisions about each of up to ``most`` nodes, by number."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._logs: OrderedDict[int, deque[Event]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def note(self, node: int, when: float, what: str, why: str = "") -> None:
        """Add a decision; a repeated one counts once, as the latest. Words are kept as they are: pass constants."""
        log = self._logs.get(node)
        if log is None:
            log = self._logs[node] = deque(maxlen=PER_NODE)
            if len(self._logs) > self._most:
                self._logs.popitem(last=False)
        else:
            self._logs.move_to_end(node)
        if log and log[-1].what == what and log[-1].why == why:
            log.pop()
        log.append(Event(when, what, why))

    def of(self, node: int) -> list[Event]:
        """Return the decisions about a node, the oldest first."""
        return list(self._logs.get(node, ()))

    def forget(self, node: int) -> None:
        """Learn that a node ceased to exist."""
        self._logs.pop(node, None)

    def clear(self) -> None:
        """Forget all decisions."""
        self._logs.clear()


@dataclass(frozen=True)
class NodeReport:
    """Where a node is and how it got there.

    Attributes
    ----------
    node : int
        Its number.
    parent : int or None
        Number of the node in front of it, None at the root.
    start_token, tokens : int
        Where it begins in its path, and how long it is.
    places : mapping of str to int
        Tokens by where their bytes are, such as ``{"DRAM and NVMe": 512, "NVMe": 256}``.
    last_used : float or None
        Unix seconds.
    hits : int
        Requests that used it.
    session : str or None
        The session that used it last.
    expected : float or None
        When its next use is predicted, Unix seconds.
    pinned : mapping of str to float
        Seconds that its pins have left, by tier.
    events : sequence of Event
        The last decisions about it, the oldest first.
    """

    node: int
    parent: int | None = None
    start_token: int = 0
    tokens: int = 0
    places: Mapping[str, int] = field(default_factory=dict)
    last_used: float | None = None
    hits: int = 0
    session: str | None = None
    expected: float | None = None
    pinned: Mapping[str, float] = field(default_factory=dict)
    events: Sequence[Event] = ()
