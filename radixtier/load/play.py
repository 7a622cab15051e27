"""Plays conversations against a server: who asks when, and how many at once.

Owns the order. Invariant: a conversation has one request at a time, each with all that came before; a failed request
ends its conversation; a stop is obeyed before the next request. Called on one thread, uses ``concurrency`` more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from radixtier.load.answer import Answer, Piece
from radixtier.load.target import Target

Order = Literal["round-robin", "random", "deep"]
"""Whose turn it is among those that are ready: who waits longest (the largest reuse distance), anybody, or who was
answered last (the smallest)."""

LOOK_S = 0.05


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
    """

    text: Piece
    answer_tokens: int
    think_s: float = 0.0
    answer: Piece | None = None


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
    """From the first request to the last answer."""

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
    ready_s: float = 0.0


@dataclass
class _Board:
    """What the threads share."""

    waiting: deque[_Open]
    running: int = 0
    done: list[Exchange] = field(default_factory=list)
    next_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


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
    on_exchange
        Called after each, by one thread at a time.
    stop
        Ends the load early; what is under way is finished.
    """
    board = _Board(deque(_Open(conversation) for conversation in conversations))
    stop = stop or threading.Event()
    pauses = random.Random(seed)
    began = time.perf_counter()
    board.next_s = began

    def take() -> tuple[_Open | None, float]:
        """Return who asks next, or how long to wait for that; nobody and 0 at the end."""
        with board.lock:
            now = time.perf_counter()
            if not board.waiting:
                return None, LOOK_S if board.running else 0.0
            ready = [at for at, each in enumerate(board.waiting) if each.ready_s <= now]
            if not ready or board.next_s > now:
                return None, LOOK_S
            at = {"round-robin": ready[0], "deep": ready[-1], "random": pauses.choice(ready)}[order]
            taken = board.waiting[at]
            del board.waiting[at]
            board.running += 1
            if rate is not None:
                board.next_s = max(board.next_s, now - 1 / rate) + pauses.expovariate(rate)
            return taken, 0.0

    def put(open_: _Open, exchange: Exchange, more: bool) -> None:
        with board.lock:
            board.running -= 1
            board.done.append(exchange)
            if more:
                board.waiting.append(open_)
            if on_exchange is not None:
                on_exchange(exchange)

    def work() -> None:
        while not stop.is_set():
            open_, wait = take()
            if open_ is None:
                if not wait:
                    return
                stop.wait(wait)
                continue
            exchange, more = _ask(target, open_)
            put(open_, exchange, more)

    with ThreadPoolExecutor(concurrency) as pool:
        workers = [pool.submit(work) for _ in range(concurrency)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            stop.set()
            raise
    return Played(tuple(board.done), time.perf_counter() - began)


def _ask(target: Target, open_: _Open) -> tuple[Exchange, bool]:
    """Play the next turn of a conversation; also tell whether it goes on."""
    conversation = open_.conversation
    turn = conversation.turns[open_.at]
    prompt = turn.text if open_.history is None else open_.history + turn.text  # type: ignore[operator]
    answer = target.ask(prompt, turn.answer_tokens, session=conversation.name)
    exchange = Exchange(conversation.name, open_.at, answer)
    open_.at += 1
    more = answer.ok and open_.at < len(conversation.turns)
    if more:
        said = answer.output if turn.answer is None else turn.answer
        open_.history = prompt + said  # type: ignore[operator]
        open_.ready_s = time.perf_counter() + conversation.turns[open_.at].think_s
    return exchange, more
