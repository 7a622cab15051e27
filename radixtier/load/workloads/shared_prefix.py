"""Prompts that begin with one of a few system messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixtier.load.answer import joined
from radixtier.load.play import Conversation, Order, Turn
from radixtier.load.workloads.common import Length, Source, arranged, count, length, option


@dataclass(frozen=True)
class SharedPrefix:
    """Groups of single prompts: those of a group share its system message, the questions differ."""

    groups: int = field(default=4, metadata=option(count, "system messages", quick=3))
    prompts: int = field(default=8, metadata=option(count, "prompts per group", quick=4))
    system: Length = field(
        default=Length(512, 512), metadata=option(length, "tokens of a system message", quick=Length(256, 256))
    )
    question: Length = field(
        default=Length(64, 64), metadata=option(length, "tokens of a question", quick=Length(32, 32))
    )
    output: Length = field(default=Length(16, 16), metadata=option(length, "tokens of an answer", quick=Length(8, 8)))

    @property
    def requests(self) -> int:
        """How many requests these are."""
        return self.groups * self.prompts

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """See :class:`radixtier.load.workloads.common.Workload`."""
        return arranged([self._group(source, group) for group in range(self.groups)], order, source.random)

    def _group(self, source: Source, group: int) -> list[Conversation]:
        system = source.fresh(source.draw(self.system))
        made = []
        for prompt in range(self.prompts):
            question = source.fresh(source.draw(self.question))
            turn = Turn(joined(system, question), source.draw(self.output))
            made.append(Conversation(source.name(f"group-{group}-prompt-{prompt}"), (turn,)))
        return made
