"""Commands of the control endpoint that change what a rank decides: every rank carries them out at the same point.

Owns those that were asked for and not carried out yet. With one rank a command is carried out at once. With several,
the first one, which has the endpoint, sends it along with SGLang's requests, so that all ranks find it in the same
step, between the same requests. To match a path is such a command, too: it counts as a use of it. Scheduler thread
only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from radixtier.control import Command, ExplainNode, GiveHint, Handler, Later, Refusal
from radixtier.explain.render import node_json
from radixtier.units import BadValue

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """A command on its way to all ranks, among SGLang's requests."""

    number: int
    command: Command


class SharedCommands:
    """The commands of the server that ``cache`` is a rank of."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._numbers = count()
        self._outgoing: deque[Shared] = deque()
        self._asked: dict[int, Callable[[Handler], None]] = {}
        """By number, what answers whoever asked."""

    def handle(self, command: GiveHint | ExplainNode) -> Mapping[str, Any]:
        """Carry out a command of the endpoint, or have it carried out on all ranks.

        Raises
        ------
        Later
            Where there are several.
        """
        if self._cache.ranks.size == 1:
            return self._carry_out(command)
        number = next(self._numbers)
        self._outgoing.append(Shared(number, command))
        raise Later(lambda answer: self._asked.__setitem__(number, answer))

    def take(self) -> list[Shared]:
        """Return what is to be sent."""
        taken = list(self._outgoing)
        self._outgoing.clear()
        return taken

    def arrived(self, shared: Shared) -> None:
        """Carry out what all ranks were sent."""
        answer = self._asked.pop(shared.number, None)
        if answer is not None:
            answer(self._carry_out)
            return
        try:
            self._carry_out(shared.command)
        except (BadValue, Refusal):
            pass  # The rank with the endpoint tells the client.
        except Exception:
            logger.exception("radixtier: a command of the control endpoint failed: %s", type(shared.command).__name__)

    def _carry_out(self, command: Command) -> Mapping[str, Any]:
        cache = self._cache
        if isinstance(command, GiveHint):
            return cache.steering.carry_out(command.hint, cache.steering.path_of(command.target)).to_json()  # type: ignore[no-any-return]
        assert isinstance(command, ExplainNode)
        path = cache.steering.path_of(command.target)
        runs = list(dict.fromkeys(cache.mover.table.run[path].tolist()))
        return {"nodes": [node_json(cache.explain.node(run)) for run in runs if run in cache.mover.tree.runs]}
