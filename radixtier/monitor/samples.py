"""How figures become samples of a series: readers of states, made for one path each.

Owns nothing. A reader yields nothing for a figure that does not apply, and never raises, whatever the state lacks. Any
thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from radixtier.monitor.reading import State, figure, part

TIERS = ("hbm", "dram", "nvme")
KINDS = ("read", "write", "verify")
STATUSES = ("ok", "degraded", "draining", "drained")

Sample = tuple[tuple[str, ...], float]
"""Values of a series' own labels, and its value there."""

Read = Callable[[State], Iterator[Sample]]


def at(path: str, times: str = "") -> Read:
    """Read the number at a path, times the one at another."""

    def read(state: State) -> Iterator[Sample]:
        yield from _sample((), figure(state, path, _factor(state, times)))

    return read


def items(path: str, what: str = "value", times: str = "") -> Read:
    """Read the numbers of a mapping at a path, or those at ``what`` in its items, labelled by its keys."""

    def read(state: State) -> Iterator[Sample]:
        found, factor = part(state, path), _factor(state, times)
        for key, item in found.items() if isinstance(found, Mapping) else ():
            whole = item if isinstance(item, Mapping) else {"value": item}
            yield from _sample((str(key),), figure(whole, what, factor))

    return read


def of(keys: Sequence[str], path: str, times: str = "") -> Read:
    """Read what is at a path for each of some keys, whose place in it is ``{}``."""

    def read(state: State) -> Iterator[Sample]:
        factor = _factor(state, times)
        for key in keys:
            yield from _sample((key,), figure(state, path.format(key), factor))

    return read


def tier_bytes(what: str) -> Read:
    """Read a figure of each tier, which is in tokens, in bytes of KV."""

    def read(state: State) -> Iterator[Sample]:
        page_bytes, page_tokens = figure(state, "page_bytes"), figure(state, "page_tokens")
        if page_bytes is not None and page_tokens:
            for tier in TIERS:
                yield from _sample((tier,), figure(state, f"tiers.{tier}.{what}", page_bytes / page_tokens))

    return read


def drives(what: str, times: str = "") -> Read:
    """Read a figure of each drive, labelled by its directory."""

    def read(state: State) -> Iterator[Sample]:
        factor = _factor(state, times)
        for drive in _drives(state):
            yield from _sample((str(drive.get("directory")),), figure(drive, what, factor))

    return read


def degraded(state: State) -> Iterator[Sample]:
    """Say of each drive whether there is a reason for it to take no new pages."""
    for drive in _drives(state):
        yield (str(drive.get("directory")),), float(drive.get("reason") is not None)


def status(state: State) -> Iterator[Sample]:
    """Say of each status whether it is the server's."""
    now = part(state, "health.status")
    if now in STATUSES:
        for each in STATUSES:
            yield (each,), float(each == now)


def build(state: State) -> Iterator[Sample]:
    """Read the versions, as labels."""
    yield (str(part(state, "version")), str(part(state, "sglang"))), 1.0


def _sample(labels: tuple[str, ...], value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield labels, value


def _factor(state: State, path: str) -> float:
    """Return the number at a path, 1 without one; NaN, which is no figure, where the state lacks it."""
    found = figure(state, path) if path else 1.0
    return math.nan if found is None else found


def _drives(state: State) -> list[Mapping[str, Any]]:
    found = part(state, "store.drives")
    return [drive for drive in found if isinstance(drive, Mapping)] if isinstance(found, list) else []
