"""One load as the command line has it: a workload, played at some concurrency, until somebody stops it.

Owns the labels that keep loads of one run apart: two of them share nothing. Main thread, which gets the signals.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from radixtier.load.connect import Found
from radixtier.load.play import Conversation, Exchange, Order, Played, play
from radixtier.load.workloads.common import Source, Workload

WAKE_TOKENS = 8
"""Prompt of the request that wakes a server which slept, tokens."""

KNOWN_SHARE = 0.5

AGAIN_S = 1.0
"""Signals that follow the first within so many seconds are the same one: a shell may send it to a group as well."""


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes
    ----------
    workload, order
        What is asked, and in which order.
    rate
        Most requests per second; None for no limit.
    warm_up
        Requests in front of a load that are in no figure.
    seed
        Other seeds share nothing.
    """

    workload: Workload
    order: Order = "round-robin"
    rate: float | None = None
    warm_up: int = 0
    seed: int = 0


def load(
    target: Found,
    plan: Plan,
    concurrency: int,
    label: str,
    *,
    on_exchange: Callable[[Exchange], None] | None = None,
    stop: threading.Event | None = None,
) -> Played:
    """Play the load of a label; the same label is the same load."""
    return play(
        target,
        plan.workload.conversations(_source(target, plan, label), plan.order),
        concurrency=concurrency,
        order=plan.order,
        rate=plan.rate,
        seed=plan.seed,
        on_exchange=on_exchange,
        stop=stop,
    )


def warm_up(
    target: Found, plan: Plan, concurrency: int, *, start: int = 0, stop: threading.Event | None = None
) -> Played:
    """Play first turns of the workload that no load, and no warm-up of another start, shares anything with."""
    return play(target, _first_turns(target, plan, start), concurrency=concurrency, stop=stop)


def known(played: Played) -> bool:
    """Whether the server had most of the first prompt of a warm-up: it has seen this load before."""
    first = min(played.answers, key=lambda answer: answer.started_s, default=None)
    return first is not None and first.cached is not None and first.cached.total > KNOWN_SHARE * first.prompt_tokens


def wake(target: Found, plan: Plan) -> None:
    """Ask for one token, so that a server which slept is awake."""
    target.ask(_source(target, plan, "wake").fresh(WAKE_TOKENS), 1)


def _source(target: Found, plan: Plan, label: str) -> Source:
    return Source(target, plan.seed, plan.workload, label)


def _first_turns(target: Found, plan: Plan, start: int) -> list[Conversation]:
    found: list[Conversation] = []
    while len(found) < plan.warm_up:
        source = _source(target, plan, f"warm-up {start}/{len(found)}")
        for conversation in plan.workload.conversations(source, plan.order):
            found.append(replace(conversation, turns=(replace(conversation.turns[0], start_s=0.0),)))
    return found[: plan.warm_up]


@contextmanager
def until_interrupted(target: Found) -> Iterator[threading.Event]:
    """Yield what Ctrl-C, a plain ``kill`` or a closed terminal sets; it ends requests under way, another one raises."""
    stop = threading.Event()
    impatient_s = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal impatient_s
        now = time.monotonic()
        if stop.is_set():
            if now > impatient_s:
                raise KeyboardInterrupt
            return
        impatient_s = now + AGAIN_S
        stop.set()
        target.client.hang_up()

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
