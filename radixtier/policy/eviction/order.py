"""What every eviction policy answers: which node leaves a tier first.

A node is a stretch of a path in a prefix tree (one page in a simulator, a run of pages on a server), known by
number. The law that all policies share: **leaf-first**. A node whose child is in the tier is never offered before
that child, so that what leaves is always the outermost part of a subtree, and what stays is prefix-closed. Each
policy's file says how it ranks beyond that, and where it loses. Times are seconds on any one clock. Scheduler
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

SCAN_LIMIT = 4096
"""Nodes offered for one demand for room: bounds the time when most of the coldest are in use."""


class Shape(NamedTuple):
    """What a policy may want to know of a node."""

    pages: int
    """Pages of the node."""
    depth: int
    """Pages in front of it, from the root."""


ShapeOf = Callable[[int], Shape]
"""Looks a node up. A node that no longer exists has no pages."""


class EvictionOrder(Protocol):
    """Order of the nodes of one tier, coldest first."""

    def use(self, path: Sequence[int], now: float, *, request: bool = True) -> None:
        """Note a use of ``path``: nodes from the deepest to the root, each in the tier from now on.

        ``request`` is True once per request; a use that only touches (a backup, a later chunk of the same prompt, a
        promotion) renews what is recent but is not counted as a further hit.
        """

    def pass_by(self, path: Sequence[int], now: float) -> None:
        """Note a request's use of ``path``, which is in a faster tier and takes no place in this one.

        As :meth:`use` and then :meth:`remove` of each node, for a fraction of the time.
        """

    def expect(self, node: int, when: float | None) -> None:
        """Predict the next use of the path that ends with ``node``: its time, None when it is not expected any more."""

    def sink(self, node: int) -> None:
        """Make a node the coldest, as far as leaf-first lets it."""

    def remove(self, node: int) -> None:
        """A node left the tier, and may come back."""

    def forget(self, node: int) -> None:
        """A node ceased to exist; its number is never used again."""

    def coldest(self) -> Iterator[int]:
        """Iterate over the coldest nodes, at most :data:`SCAN_LIMIT`, leaves before their parents.

        The caller may :meth:`remove` what it was just given, which may make its parent the next; what it does not
        remove stays where it was.
        """

    def first(self) -> int | None:
        """Return the first of :meth:`coldest`, None when there is none: for a caller that removes what it is given."""

    def clear(self) -> None:
        """Forget every node."""

    def __len__(self) -> int:
        """Return the number of nodes in the tier."""
