"""One tier as a count of leading pages per node.

Owns the counts and their sum. Invariant: a node is in the tier with its first pages only, since pages leave from the
tail. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator


class Tier:
    """Pages of each node that are in the tier; 8 bytes per node there ever was."""

    def __init__(self) -> None:
        self.have: list[int] = []
        """Leading pages by node, 0 for a node that is not here."""
        self.used = 0
        """Pages in all."""

    def cover(self, nodes: int) -> None:
        """Make room for the numbers of so many nodes."""
        self.have.extend([0] * (nodes - len(self.have)))

    def set(self, node: int, pages: int) -> None:
        """Change how many leading pages of a node are here."""
        self.used += pages - self.have[node]
        self.have[node] = pages

    def items(self) -> Iterator[tuple[int, int]]:
        """Iterate over nodes that are here, and their pages."""
        return ((node, pages) for node, pages in enumerate(self.have) if pages)
