"""Plays conversations against a server: who asks when, and how many at once.

Owns the order. Invariant: a conversation has one request at a time, each with all that came before; a failed request
ends its conversation; a stop is obeyed before the next request. Called on one thread, uses ``concurrency`` more.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from radixtier.load.answer import Answer, Piece, joined
from radixtier.load.target import Target

Order = Literal["round-robin", "random", "deep"]
"""Whose turn it is among those that are ready: who waits longest (the largest reuse distance), anybody, or who was
answered last (the smallest)."""

LOOK_S = 0.05
"""Longest time after which a stop is seen by who waits, seconds."""


@dataclass(frozen=True)
class Turn:
    """What a user adds to a conversation.

    Attributes
    ----------
    text
        Goes behind everything before.
    answer_tokens
        Length of the answer.
    think_s
        Pause between the last answer and this.
    answer
        Stands in the history in the place of what the server says; None for what it says. With it, every server gets
        the same prompts.
    start_s
        Not before so many seconds after the load began.
    prompt
        Makes the whole prompt when its time has come: then neither ``text`` nor what came before is in it.
    """

    text: Piece
    answer_tokens: int
    think_s: float = 0.0
    answer: Piece | None = None
    start_s: float = 0.0
    prompt: Callable[[], Piece] | None = None


@dataclass(frozen=True)
class Conversation:
    """Turns that build on each other."""

    name: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Exchange:
    """One turn that was played."""

    conversation: str
    turn: int
    answer: Answer


@dataclass(frozen=True)
class Played:
    """What came of a load; exchanges in the order in which they ended."""

    exchanges: tuple[Exchange, ...]
    seconds: float
    """From the first request to the end of the last answer."""

    @property
    def answers(self) -> list[Answer]:
        """The answers alone."""
        return [exchange.answer for exchange in self.exchanges]


@dataclass
class _Open:
    """A conversation under way."""

    conversation: Conversation
    at: int = 0
    history: Piece | None = None

    @property
    def turn(self) -> Turn:
        return self.conversation.turns[self.at]


def play(
    target: Target,
    conversations: Iterable[Conversation],
    *,
    concurrency: int,
    order: Order = "round-robin",
    rate: float | None = None,
    seed: int = 0,
    on_exchange: Callable[[Exchange], None] | None = None,
    stop: threading.Event | None = None,
) -> Played:
    """Play all conversations to their ends.

    Parameters
    ----------
    concurrency
        Most requests at once.
    rate
        Most requests per second, with exponential pauses between them; None for as many as are answered.
    seed
        Of those pauses, and of the order ``random``.
    on_exchange
        Called after each, by one thread at a time.
    stop
        Ends the load early; what is under way is finished.
    """
    stop = stop or threading.Event()
    queue = _Queue(conversations, order, rate, random.Random(seed), stop)

    def work() -> None:
        try:
            while (open_ := queue.take()) is not None:
                exchange, more = _ask(target, open_)
                queue.put(open_, exchange, more, on_exchange)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(concurrency) as pool:
        workers = [pool.submit(work) for _ in range(concurrency)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            stop.set()
            raise
    return played(queue.done)


def played(exchanges: Iterable[Exchange]) -> Played:
    """Put exchanges together; their own times tell how long it took."""
    done = tuple(exchanges)
    answers = [exchange.answer for exchange in done]
    if not answers:
        return Played((), 0.0)
    began = min(answer.started_s for answer in answers)
    return Played(done, max(answer.started_s + answer.total_s for answer in answers) - began)


class _Queue:
    """Conversations whose turn has not come. All methods: any thread."""

    def __init__(
        self,
        conversations: Iterable[Conversation],
        order: Order,
        rate: float | None,
        draw: random.Random,
        stop: threading.Event,
    ) -> None:
        self.done: list[Exchange] = []
        self._order, self._rate, self._draw, self._stop = order, rate, draw, stop
        self._began = self._next_s = time.perf_counter()
        self._running = 0
        self._changed = threading.Condition()
        self._ready: deque[_Open] = deque()
        """In the order in which they became ready."""
        self._later: list[tuple[float, int, _Open]] = []
        """Heap by the time at which they will be; the number tells equal times apart."""
        self._numbers = 0
        opened = [_Open(conversation) for conversation in conversations if conversation.turns]
        # Who was answered last is taken from the end: those that never were are to come in their own order.
        for open_ in reversed(opened) if order == "deep" else opened:
            self._wait(open_, self._began + open_.turn.start_s)

    def take(self) -> _Open | None:
        """Wait for who asks next; None at the end, or after a stop."""
        with self._changed:
            while not self._stop.is_set():
                now = time.perf_counter()
                while self._later and self._later[0][0] <= now:
                    self._ready.append(heapq.heappop(self._later)[2])
                if not self._ready and not self._later and not self._running:
                    return None
                if self._ready and self._next_s <= now:
                    self._running += 1
                    self._pace(now)
                    return self._pick()
                due = self._next_s if self._ready else self._later[0][0] if self._later else now + LOOK_S
                self._changed.wait(min(LOOK_S, max(0.0, due - now)))
            return None

    def put(self, open_: _Open, exchange: Exchange, more: bool, on_exchange: Callable[[Exchange], None] | None) -> None:
        """Give a conversation back after a turn."""
        with self._changed:
            self._running -= 1
            self.done.append(exchange)
            if more:
                turn = open_.turn
                self._wait(open_, max(time.perf_counter() + turn.think_s, self._began + turn.start_s))
                self._changed.notify()
            elif not self._running:
                self._changed.notify_all()
            if on_exchange is not None:
                on_exchange(exchange)

    def _wait(self, open_: _Open, ready_s: float) -> None:
        self._numbers += 1
        heapq.heappush(self._later, (ready_s, self._numbers, open_))

    def _pick(self) -> _Open:
        if self._order == "deep":
            return self._ready.pop()
        if self._order == "random":
            at = self._draw.randrange(len(self._ready))
            self._ready[0], self._ready[at] = self._ready[at], self._ready[0]
        return self._ready.popleft()

    def _pace(self, now: float) -> None:
        """Say when the next request may come: what could not be sent in time is caught up by one pause at most."""
        if self._rate is not None:
            self._next_s = max(self._next_s, now - 1 / self._rate) + self._draw.expovariate(self._rate)


def _ask(target: Target, open_: _Open) -> tuple[Exchange, bool]:
    """Play the next turn of a conversation; also tell whether it goes on."""
    conversation, turn = open_.conversation, open_.turn
    if turn.prompt is not None:
        prompt = turn.prompt()
    else:
        prompt = turn.text if open_.history is None else joined(open_.history, turn.text)
    answer = target.ask(prompt, turn.answer_tokens, session=conversation.name)
    exchange = Exchange(conversation.name, open_.at, answer)
    open_.at += 1
    more = answer.ok and open_.at < len(conversation.turns)
    if more:
        said = answer.output if turn.answer is None else turn.answer
        open_.history = joined(prompt, said)
    return exchange, more
