"""Where ``radixtier top`` takes its figures from.

Owns the thread that asks. Invariants: at most one question is under way; a server that does not answer is asked again
after every interval, and what it said last is kept; what is handed out is not changed any more. :class:`Source`
may be called by any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from radixtier.control.client import ControlClient, ControlError

HISTORY_S = 300
EVENTS = 50
TREE_EVERY_S = 5.0
TREE_ITEMS = 100
"""Of the picture of the tree, of which only the hottest and the coldest rows are shown."""

PARTS: Mapping[str, Callable[[ControlClient], dict[str, Any]]] = {
    "history": lambda server: server.history(HISTORY_S),
    "events": lambda server: server.events(EVENTS),
    "tree": lambda server: server.tree(most=TREE_ITEMS),
}
"""What is asked besides the state; each may be missing."""


@dataclass(frozen=True)
class Picture:
    """What a server said.

    Attributes
    ----------
    state : dict
        Its figures.
    history, events, tree : dict or None
        None where the server does not have them.
    missing : dict of str to str
        Why, of those that are None.
    taken : float
        When it was asked, in Unix seconds.
    """

    state: dict[str, Any]
    history: dict[str, Any] | None = None
    events: dict[str, Any] | None = None
    tree: dict[str, Any] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    taken: float = 0.0


@dataclass(frozen=True)
class Silence:
    """A server that does not answer: since when, in Unix seconds, and what it says or does instead."""

    since: float
    why: str


def ask(server: ControlClient, before: Picture | None = None, with_tree: bool = True) -> Picture:
    """Ask for everything; the tree of ``before`` is taken over without ``with_tree``.

    Raises `ControlError` when there is no state.
    """
    now = time.time()
    found: dict[str, Any] = {"state": server.state(), "taken": now}
    missing: dict[str, str] = {}
    for name, part in PARTS.items():
        if name == "tree" and before is not None and not with_tree:
            found["tree"] = before.tree
            missing |= {"tree": before.missing["tree"]} if "tree" in before.missing else {}
            continue
        try:
            found[name] = part(server)
        except ControlError as error:
            if error.status == 0:
                raise
            missing[name] = str(error)
    return Picture(**found, missing=missing)


class Source:
    """Asks a server every ``interval_s`` seconds, from construction until :meth:`close`."""

    def __init__(self, server: ControlClient, interval_s: float) -> None:
        self._server = server
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._silence: Silence | None = None
        self._count = 0
        self._stop = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._thread = threading.Thread(target=self._run, name="radixtier-top", daemon=True)
        self._thread.start()

    def latest(self) -> tuple[int, Picture | None, Silence | None]:
        """Return how often was asked, what was said last, and whether there was no answer since."""
        with self._lock:
            return self._count, self._picture, self._silence

    def pause(self, paused: bool) -> None:
        """Ask no more until told to go on."""
        if paused:
            self._going.clear()
        else:
            self._going.set()

    def close(self) -> None:
        """Ask no more; a question that is under way is not waited for."""
        self._stop.set()
        self._going.set()

    def _run(self) -> None:
        tree_at = 0.0
        while self._going.wait() and not self._stop.is_set():
            began = time.monotonic()
            with_tree = began - tree_at >= TREE_EVERY_S or self._picture is None
            try:
                picture = ask(self._server, self._picture, with_tree)
                tree_at = began if with_tree else tree_at
                self._set(picture, None)
            except ControlError as error:
                silence = self._silence or Silence(time.time(), "")
                self._set(self._picture, replace(silence, why=str(error)))
            self._stop.wait(max(0.0, began + self._interval_s - time.monotonic()))

    def _set(self, picture: Picture | None, silence: Silence | None) -> None:
        with self._lock:
            self._count += 1
            self._picture, self._silence = picture, silence
