"""Brings prefixes of a running server down to NVMe, through its control endpoint, and waits for writes.

Owns the waiting. Law: a path counts as cold as far as NVMe has its pages and neither DRAM nor HBM does; every wait is
bounded. One thread at a time, with a few of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from radixtier.control.client import ControlError
from radixtier.gate.stand import Unavailable
from radixtier.policy.hints import Kind

T = TypeVar("T")

LOOK_S = 0.25

CALLS = 4
"""Commands under way; the server carries out as many in a step."""

BAD_REQUEST = 400

LEAST_S = 30.0
"""Shortest bound of a wait, seconds."""

SLOWEST_TOKENS_PER_S = 500.0
"""How fast tokens reach NVMe at least: some megabytes a second."""


class Control(Protocol):
    """What is needed of :class:`radixtier.control.client.ControlClient`."""

    def give_hint(self, kind: Kind, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a hint."""

    def explain_node(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Ask where a path is."""

    def state(self) -> dict[str, Any]:
        """Ask for the figures."""


def chill(control: Control, paths: Sequence[Sequence[int]], page: int, clock: Callable[[], float] = monotonic) -> int:
    """Bring paths to NVMe alone; return how many of their tokens are there.

    Parameters
    ----------
    paths
        Token ids, each with all that hangs below it: what has children in HBM stays there.
    page
        Tokens per page.

    Raises
    ------
    Unavailable
        The server does not know how to demote from HBM.
    ControlError
        It does not answer.
    """
    waiting = sorted((path for path in paths if len(path) > page), key=len, reverse=True)
    end = clock() + LEAST_S + sum(map(len, waiting)) / SLOWEST_TOKENS_PER_S
    total = 0
    while waiting:
        _at_once(lambda path: _demote(control, path), waiting)
        cold = _at_once(lambda path: cold_tokens(control, path), waiting)
        late = clock() > end
        done = [late or there >= _stored(path, page) for path, there in zip(waiting, cold, strict=True)]
        total += sum(there for there, over in zip(cold, done, strict=True) if over)
        waiting = [path for path, over in zip(waiting, done, strict=True) if not over]
        if waiting:
            sleep(LOOK_S)
    return total


def lift(control: Control, paths: Sequence[Sequence[int]], clock: Callable[[], float] = monotonic) -> None:
    """Bring cold paths up to DRAM, not to HBM; waits for it, for a bounded time."""
    end = clock() + LEAST_S + sum(map(len, paths)) / SLOWEST_TOKENS_PER_S
    _at_once(lambda path: control.give_hint(Kind.PREFETCH, {"tokens": list(path)}), paths)
    while any(_at_once(lambda path: cold_tokens(control, path), paths)) and clock() < end:
        sleep(LOOK_S)


def _at_once(call: Callable[[Sequence[int]], T], paths: Sequence[Sequence[int]]) -> list[T]:
    """Make a call for each path, :data:`CALLS` at a time; raises what the first one that fails does.

    An idle scheduler may look at its mail once a second, and then does several commands.
    """
    with ThreadPoolExecutor(CALLS) as pool:
        return list(pool.map(call, paths))


def _demote(control: Control, path: Sequence[int]) -> None:
    try:
        control.give_hint(Kind.DEMOTE, {"tokens": list(path), "hbm": True})
    except ControlError as error:
        if error.status == BAD_REQUEST and "hbm" in str(error):
            raise Unavailable("this server cannot demote from HBM: a newer radixtier does") from None
        raise


def cold_tokens(control: Control, path: Sequence[int]) -> int:
    """Return how many tokens of a path are on NVMe and nowhere above."""
    nodes = control.explain_node({"tokens": list(path)})["nodes"]
    cold = 0
    for node in nodes:
        places = node.get("places", {})
        cold += max(0, places.get("NVMe", 0) - places.get("HBM", 0))
    return min(cold, len(path))


def _stored(path: Sequence[int], page: int) -> int:
    """Tokens of a path that can be stored: whole pages, and the last token has no KV."""
    return (len(path) - 1) // page * page


def settle(control: Control, bound_s: float = LEAST_S, clock: Callable[[], float] = monotonic) -> bool:
    """Wait until DRAM holds nothing that is to be written; False if that took longer."""
    end = clock() + bound_s
    while True:
        state = control.state()
        pages = state["pages"]
        if pages.get("filling", 0) + pages.get("dirty", 0) <= state.get("parked_pages", 0):
            return True
        if clock() > end:
            return False
        sleep(LOOK_S)
