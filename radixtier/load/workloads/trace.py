"""A recorded load, asked again: the sessions of a trace with their pauses and lengths.

Owns the way from a trace, which has no tokens, to prompts. Law: equal nodes of the trace become equal pieces, so what
requests share in the trace they share here, within a session and between sessions; what follows the nodes that a trace
lists (the rest of a recorded prompt) is shared by nobody.

What is approximated:

- Prompts come from the trace, whole: what the server answers is in no later prompt. Where the trace has an answer in
  the next prompt it is other text of that length, computed as a part of the prompt.
- A session asks one thing at a time: requests of a session that overlapped follow each other here.
- Where the trace tells a think time, a request waits that long after the answer before it; otherwise it comes when it
  came in the trace, or when the answer before it is there, if that is later.
- In text mode, lengths are those of words, on the average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.trace import Request, Trace
from radixtier.load.answer import Piece, joined
from radixtier.load.play import Conversation, Order, Turn
from radixtier.load.workloads.common import MOST, Length, Source, count, length, option

REMEMBERED = 1024
"""Pieces that are kept for the next prompt that has them."""


def scale(text: str) -> float:
    """Read by how much time is to run faster; `ValueError` says what to write."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST:
        raise ValueError("write a number over 0: 10 for ten times as fast")
    return value


class _Span(NamedTuple):
    """A node of the trace: its number, and its tokens."""

    number: int
    tokens: int


@dataclass(frozen=True)
class TraceReplay:
    """The first requests of a trace, in any format that ``radixtier lab`` reads."""

    trace: Path | None = field(default=None, metadata=option(Path, "trace file, as radixtier lab reads them"))
    limit: int = field(default=200, metadata=option(count, "requests to take from its start", quick=20))
    time_scale: float = field(default=1.0, metadata=option(scale, "run its time so many times as fast"))
    longest: int = field(default=MOST, metadata=option(count, "cut prompts to so many tokens", quick=1024))
    output: Length = field(
        default=Length(16, 16), metadata=option(length, "tokens of an answer where the trace does not tell")
    )
    longest_output: int = field(default=MOST, metadata=option(count, "cut answers to so many tokens", quick=8))

    @property
    def requests(self) -> int:
        """How many requests these are at most."""
        return self.limit

    def conversations(self, source: Source, order: Order) -> list[Conversation]:
        """See :class:`radixtier.load.workloads.common.Workload`; the trace has its own order.

        Raises
        ------
        BadTrace, OSError
            The trace cannot be used, in one line.
        ValueError
            There is no trace.
        """
        if self.trace is None:
            raise ValueError("--workload trace needs a file: --trace FILE")
        trace = open_trace(self.trace)
        sessions: dict[int, list[Turn]] = {}
        began = None
        piece: Callable[[int, int], Piece] = lru_cache(REMEMBERED)(source.known)
        for request in islice(trace.requests(), self.limit):
            began = request.time if began is None else began
            turns = sessions.setdefault(request.session, [])
            at_s = (request.time - began) / self.time_scale
            told = request.think_s is not None and bool(turns)
            tail = source.random.getrandbits(63) if self.tail(trace, request) else 0
            turns.append(
                Turn(
                    text=(),
                    answer_tokens=min(self.longest_output, request.output_tokens or source.draw(self.output)),
                    think_s=(request.think_s or 0.0) / self.time_scale if told else 0.0,
                    start_s=0.0 if told else at_s,
                    prompt=partial(_prompt, piece, self._spans(trace, request, tail)),
                )
            )
        return [Conversation(source.name(f"session-{session}"), tuple(turns)) for session, turns in sessions.items()]

    def tail(self, trace: Trace, request: Request) -> int:
        """Return the tokens of a prompt behind the blocks that its trace lists."""
        blocks = sum(trace.nodes.pages[node] for node in request.path)
        return max(0, request.input_tokens - blocks * trace.block_tokens)

    def _spans(self, trace: Trace, request: Request, tail: int) -> tuple[_Span, ...]:
        """List the parts of a prompt, as long as it is told to be; one token at least."""
        parts = [_Span(node, trace.nodes.pages[node] * trace.block_tokens) for node in request.path]
        parts.append(_Span(-1 - tail, self.tail(trace, request)))
        left = min(self.longest, request.input_tokens or sum(part.tokens for part in parts))
        cut = []
        for part in parts:
            tokens = min(part.tokens, left)
            left -= tokens
            if tokens:
                cut.append(part._replace(tokens=tokens))
        return tuple(cut) or (_Span(-1 - tail, 1),)


def _prompt(piece: Callable[[int, int], Piece], spans: tuple[_Span, ...]) -> Piece:
    return joined(*(piece(span.tokens, span.number) for span in spans))
