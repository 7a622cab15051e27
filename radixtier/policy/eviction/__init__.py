"""Eviction orders by name."""

from __future__ import annotations

from radixtier.policy.eviction.auto import CANDIDATES, Auto
from radixtier.policy.eviction.lru import Lru
from radixtier.policy.eviction.order import SCAN_LIMIT, EvictionOrder, Shape, ShapeOf

__all__ = ["NAMES", "SCAN_LIMIT", "EvictionOrder", "Lru", "Shape", "ShapeOf", "make_order"]

_KINDS = {kind.name: kind for kind in CANDIDATES}

NAMES = (*_KINDS, Auto.name)
"""Every policy there is; the last one chooses among the others."""


def make_order(name: str, shape_of: ShapeOf, capacity_pages: int) -> EvictionOrder:
    """Make an eviction order for a tier.

    Parameters
    ----------
    name
        One of :data:`NAMES`.
    shape_of
        Looks a node up; asked when it enters the tier.
    capacity_pages
        Pages the tier holds.

    Raises
    ------
    ValueError
        On a name that is not there.
    """
    if name == Auto.name:
        return Auto(shape_of, capacity_pages)
    if name not in _KINDS:
        raise ValueError(f"eviction policy {name!r} does not exist: choose one of {', '.join(NAMES)}")
    return _KINDS[name](shape_of, capacity_pages)
