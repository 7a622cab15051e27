"""Clients that chat: every turn sends all that was said before."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixtier.load.play import Conversation, Order, Turn
from radixtier.load.workloads.common import Length, Source, count, length, option


@dataclass(frozen=True)
class MultiTurn:
    """Conversations of the same number of turns that share nothing with each other."""

    clients: int = field(default=8, metadata=option(count, "conversations", quick=4))
    turns: int = field(default=4, metadata=option(count, "turns of each conversation", quick=3))
    first: Length = field(
        default=Length(512, 512), metadata=option(length, "tokens of the first request of each", quick=Length(256, 256))
    )
    request: Length = field(
        default=Length(64, 64), metadata=option(length, "tokens of every further request", quick=Length(32, 32))
    )
    output: Length = field(default=Length(16, 16), metadata=option(length, "tokens of an answer", quick=Length(8, 8)))

    @property
    def requests(self) -> int:
        """How many requests these are."""
        return self.clients * self.turns

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """See :class:`radixtier.load.workloads.common.Workload`."""
        return [
            Conversation(
                source.name(f"client-{client}"),
                tuple(
                    Turn(source.fresh(source.draw(self.request if turn else self.first)), source.draw(self.output))
                    for turn in range(self.turns)
                ),
            )
            for client in range(self.clients)
        ]
