"""Who serves the desk in the scheduler's steps.

Owns how long that goes on. A command is carried out at once, and only reading rows takes as long as there is time. A
scheduler that has nothing to do stays for a moment after an answer: whoever got it often asks for more at once, and the
next step may be a second away. Scheduler thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from radixtier.control.commands import Command, ReadRows
from radixtier.control.desk import Desk, Handler

PAGE_ROWS = 1000
"""Rows read at a stretch: about a millisecond."""

GAP_S = 0.01
"""How long an idle scheduler waits for the next command."""

Page = Callable[[int, int], Mapping[str, Any]]
"""Lists nodes: as :class:`~radixtier.control.commands.ListNodes` says."""


class Clerk:
    """Serves ``desk``: ``page`` reads rows, ``handle`` carries out every other command."""

    def __init__(self, desk: Desk, page: Page, handle: Handler, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._page = page
        self._handle = handle
        self._clock = clock
        self._until = 0.0

    def step(self, seconds: float, idle: bool) -> None:
        """Carry out some of what was asked, for about so long; ``idle`` says that nobody waits for the scheduler."""
        if not self._desk.pending:
            return
        self._until = self._clock() + seconds
        self._desk.serve(self._carry_out)
        while idle and (left := self._until - self._clock()) > 0 and self._desk.wait(min(left, GAP_S)):
            self._desk.serve(self._carry_out, most=1)

    def _carry_out(self, command: Command) -> Mapping[str, Any]:
        return self._read(command.after) if isinstance(command, ReadRows) else self._handle(command)

    def _read(self, after: int) -> Mapping[str, Any]:
        parts = []
        while True:
            page = self._page(after, PAGE_ROWS)
            parts.append(page["rows"])
            if page["next"] is None or self._clock() >= self._until:
                return {"parts": parts, "next": page["next"], "total": page["total"]}
            after = page["next"]
