"""One tier as a count of leading pages per node.

Owns the counts and their sum. Invariant: a node is in the tier with its first pages only, since pages leave from the
tail.
"""

from __future__ import annotations


class Tier:
    """Pages of each node that are in the tier."""

    def __init__(self) -> None:
        self.have: dict[int, int] = {}
        """Node -> leading pages, at least one."""
        self.used = 0
        """Pages in all."""

    def set(self, node: int, pages: int) -> None:
        """Change how many leading pages of a node are here."""
        self.used += pages - self.have.get(node, 0)
        if pages:
            self.have[node] = pages
        else:
            self.have.pop(node, None)
