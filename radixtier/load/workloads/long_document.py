"""Long documents, and several questions on each."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixtier.load.play import Conversation, Order
from radixtier.load.workloads.common import Length, Source, count, length, option
from radixtier.load.workloads.shared_prefix import SharedPrefix


@dataclass(frozen=True)
class LongDocument:
    """Single prompts, a document and a question each; in round-robin all documents come before the second question."""

    documents: int = field(default=8, metadata=option(count, "documents", quick=4))
    questions: int = field(default=2, metadata=option(count, "questions per document"))
    document: Length = field(
        default=Length(2000, 2000), metadata=option(length, "tokens of a document", quick=Length(512, 512))
    )
    question: Length = field(
        default=Length(32, 32), metadata=option(length, "tokens of a question", quick=Length(16, 16))
    )
    output: Length = field(default=Length(16, 16), metadata=option(length, "tokens of an answer", quick=Length(8, 8)))

    @property
    def requests(self) -> int:
        """How many requests these are."""
        return self.documents * self.questions

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """See :class:`radixtier.load.workloads.common.Workload`: a document is a system message of its own group."""
        alike = SharedPrefix(
            groups=self.documents,
            prompts=self.questions,
            system=self.document,
            question=self.question,
            output=self.output,
        )
        return alike.conversations(source, order)
