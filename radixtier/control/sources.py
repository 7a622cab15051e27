"""Questions that the HTTP threads answer themselves: the tree, its nodes, the schema.

Owns the last picture of the tree, which all who ask within :data:`KEPT_S` share. The scheduler thread reads the rows,
in each step as many as it has time for; all else is done here. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from radixtier.control.commands import Command, ListNodes, ReadRows, ReadSchema, ReadTree, Refusal
from radixtier.control.openapi import document
from radixtier.control.picture import Picture
from radixtier.control.rows import Rows

KEPT_S = 2.0
"""How long a picture of the tree is shown to others."""

READ_S = 20.0
"""Longest that somebody waits for a picture, besides the last answer of the scheduler: one that is so busy has better
things to do."""

Ask = Callable[[Command], Mapping[str, Any]]
"""Has a command carried out by the scheduler thread and waits for the answer; raises `Refusal`."""

Source = Callable[[Any], Mapping[str, Any]]
"""Answers one type of command without the scheduler thread; raises `Refusal`."""


def tree_sources(ask: Ask) -> dict[type, Source]:
    """Return what answers questions about the tree and the schema."""
    pictures = Pictures(ask)
    return {
        ListNodes: lambda command: _nodes(ask(command)),
        ReadTree: lambda command: _tree(pictures.latest(), command),
        ReadSchema: lambda command: document(),
    }


def _nodes(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"nodes": answer["rows"].to_json(), "next": answer["next"], "total": answer["total"]}


def _tree(picture: Picture, command: ReadTree) -> Mapping[str, Any]:
    root = None if command.root is None else picture.find(command.root)
    if root is None and command.root is not None:
        raise Refusal(404, f"node {command.root} does not exist, or not any more; look at the whole tree again")
    return picture.to_json(root, command.most)


class Pictures:
    """Takes a picture of the tree when somebody asks and the last one is older than :data:`KEPT_S`."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Picture | None = None
        self._until = 0.0

    def latest(self) -> Picture:
        """Return a picture; raises `Refusal` when the scheduler has no time for it."""
        end = self._clock() + READ_S
        if not self._lock.acquire(timeout=READ_S):
            raise Refusal(503, "the tree is being read for somebody else; try again later")
        try:
            if self._last is None or self._clock() >= self._until:
                self._last = None  # two of them need not be in memory
                self._last = self._take(end)
                self._until = self._clock() + KEPT_S
            return self._last
        finally:
            self._lock.release()

    def _take(self, end: float) -> Picture:
        taken = time.time()
        parts: list[Rows] = []
        after: int | None = -1
        while after is not None:
            answer = self._ask(ReadRows(after))
            parts += answer["parts"]
            after = answer["next"]
            if after is not None and self._clock() > end:
                read, total = sum(map(len, parts)), answer["total"]
                raise Refusal(504, f"the scheduler is busy: {read} of {total} nodes were read in {READ_S:g} s")
        return Picture(Rows.joined(parts), taken)
