"""Prompts that share nothing: what a tier costs where it cannot help."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixtier.load.play import Conversation, Order, Turn
from radixtier.load.workloads.common import Length, Source, count, length, option


@dataclass(frozen=True)
class NoReuse:
    """Single prompts; no page of one is in another."""

    prompts: int = field(default=32, metadata=option(count, "prompts", quick=8))
    request: Length = field(
        default=Length(512, 512), metadata=option(length, "tokens of a prompt", quick=Length(256, 256))
    )
    output: Length = field(default=Length(16, 16), metadata=option(length, "tokens of an answer", quick=Length(8, 8)))

    @property
    def requests(self) -> int:
        """How many requests these are."""
        return self.prompts

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """See :class:`radixtier.load.workloads.common.Workload`."""
        return [Conversation(source.name(f"prompt-{prompt}"), (self._turn(source),)) for prompt in range(self.prompts)]

    def _turn(self, source: Source) -> Turn:
        return Turn(source.fresh(source.draw(self.request)), source.draw(self.output))
