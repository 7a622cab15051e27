"""Where HTTP threads leave commands and the scheduler thread picks them up.

Owns the queue. Invariants: at most `room` commands wait; a command whose asker gave up before its turn is not carried
out; nothing here raises in the scheduler thread, or makes it wait unless it says for how long. :meth:`Desk.ask` is for
HTTP threads, :meth:`Desk.serve` and :meth:`Desk.wait` for the scheduler thread, the rest for any.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from radixtier.control.commands import Command, Refusal
from radixtier.units import BadValue

logger = logging.getLogger(__name__)

ROOM = 64
"""Commands that may wait."""

MOST_PER_TICK = 4
"""Commands per step of the scheduler."""

Handler = Callable[[Command], Mapping[str, Any]]
"""Carries out a command on the scheduler thread. Its answer is plain data that nobody changes any more; it may raise
`Refusal`, or `BadValue` for what the client can mend."""


class Later(Exception):
    """A handler cannot answer at once: raised with what is to be told how the command is carried out, once it is.

    What it is told takes a `Handler`, carries the command out with it, and answers whoever asked.
    """

    def __init__(self, begin: Callable[[Callable[[Handler], None]], None]) -> None:
        super().__init__("the answer comes later")
        self.begin = begin


@dataclass(eq=False, slots=True)
class _Slip:
    command: Command
    done: threading.Event = field(default_factory=threading.Event)
    answer: Mapping[str, Any] | None = None
    refusal: Refusal | None = None


class Desk:
    """A bounded queue of commands, each with somebody waiting for its answer.

    Attributes
    ----------
    pending : bool
        Whether something waits: a plain attribute, cheap enough to look at in every step.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._waiting: deque[_Slip] = deque()
        self._arrived = threading.Event()
        self._open = True
        self.pending = False

    def ask(self, command: Command, timeout: float) -> Mapping[str, Any]:
        """Have a command carried out and wait for the answer.

        Parameters
        ----------
        command : Command
            What to do.
        timeout : float
            Seconds to wait.

        Returns
        -------
        mapping of str to Any
            What the handler answered.

        Raises
        ------
        Refusal
            The handler's own, or with status 503 when too many wait or the desk is closed, 504 when the time is over,
            500 when the handler failed.
        """
        slip = _Slip(command)
        with self._lock:
            if not self._open:
                raise Refusal(503, "the server stops")
            if len(self._waiting) >= self._room:
                raise Refusal(503, f"{self._room} commands wait already; try again later")
            self._waiting.append(slip)
            self._look()
        if not slip.done.wait(timeout) and self._withdraw(slip):
            raise Refusal(504, f"the scheduler had no time for this within {timeout:g} s; nothing was done")
        if not slip.done.is_set():
            raise Refusal(504, f"no answer within {timeout:g} s; it may have been carried out")
        if slip.refusal is not None:
            raise slip.refusal
        assert slip.answer is not None
        return slip.answer

    def serve(self, handle: Handler, most: int = MOST_PER_TICK) -> int:
        """Carry out up to ``most`` commands that wait, the oldest first; return how many."""
        served = 0
        while self.pending and served < most:
            with self._lock:
                slip = self._waiting.popleft() if self._waiting else None
                self._look()
            if slip is None:
                break
            served += 1
            self._carry_out(slip, handle)
        return served

    def _carry_out(self, slip: _Slip, handle: Handler) -> None:
        try:
            slip.answer = handle(slip.command)
        except Later as later:
            later.begin(partial(self._carry_out, slip))
            return
        except Refusal as refusal:
            slip.refusal = refusal
        except BadValue as bad:
            slip.refusal = Refusal(400, str(bad))
        except Exception:  # the scheduler goes on, whatever a client asked for
            logger.exception("radixtier: a command of the control endpoint failed: %s", type(slip.command).__name__)
            slip.refusal = Refusal(500, "this failed in the server; its log says why")
        slip.done.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to so long for a command; whether there is one."""
        return self._arrived.wait(seconds)

    def close(self) -> None:
        """Refuse what waits and whatever comes."""
        with self._lock:
            self._open = False
            waiting, self._waiting = self._waiting, deque()
            self._look()
        for slip in waiting:
            slip.refusal = Refusal(503, "the server stops")
            slip.done.set()

    def _withdraw(self, slip: _Slip) -> bool:
        """Take back a command whose turn has not come."""
        with self._lock:
            if slip not in self._waiting:
                return False
            self._waiting.remove(slip)
            self._look()
            return True

    def _look(self) -> None:
        """Note whether something waits; under the lock."""
        self.pending = bool(self._waiting)
        if self.pending:
            self._arrived.set()
        else:
            self._arrived.clear()
