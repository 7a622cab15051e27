"""Collects pages by number and looks up their keys in one go.

Owns the pages collected. A look-up costs a few microseconds however few pages it is for, and tiers lose pages one by
one. One thread.
"""

from __future__ import annotations

from array import array

import numpy as np

from radixtier.lab.traces.trace import Nodes
from radixtier.policy.admission import Keys

SHORT = 32
"""Pages from which on a stretch is worth a look-up of its own."""


class Gathered:
    """Pages in the order in which they were added.

    Parameters
    ----------
    nodes
        Whose pages they are.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._parts: list[Keys] = []
        self._pages = array("q")

    def __bool__(self) -> bool:
        """Return whether there are pages."""
        return bool(self._pages) or bool(self._parts)

    def add(self, lo: int, hi: int) -> None:
        """Add pages ``lo .. hi - 1``, numbered over all nodes; at least one."""
        if hi - lo == 1:
            self._pages.append(lo)
        elif hi - lo < SHORT:
            self._pages.extend(range(lo, hi))
        else:
            self._flush()
            self._parts.append(self._nodes.keys(0, lo, hi))

    def take(self) -> Keys:
        """Return the keys of all pages, and start anew."""
        self._flush()
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _flush(self) -> None:
        if self._pages:
            pages = np.frombuffer(self._pages, np.int64)
            # Page numbers count on from those of node 0.
            self._parts.append(self._nodes.keys(0, 0, self._nodes.n_pages)[pages])
            self._pages = array("q")
