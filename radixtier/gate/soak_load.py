"""The soak's load: conversations with scripted turns, whose right answers are known, and who asks them.

Owns the prompts and the known answers. Laws: an answer is wrong if it is none of those that were seen for its prompt
when the answers were learnt; nothing is learnt from KV that came from DRAM or NVMe, since that is what is under test. A
conversation has one request at a time. Learning is done on one thread; :class:`SoakLoad` has ``clients`` threads of its
own, its methods are for the main thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from radixtier.gate.profiles import Soak
from radixtier.gate.soak_records import Outcome, Record, Records
from radixtier.load.answer import Answer, Piece
from radixtier.load.target import Target

CUT_AFTER = 2
"""Pieces of an answer after which a client hangs up."""

PAUSE_S = 0.5
"""After a failed request."""

QUIET_S = 120.0
"""Longest wait for requests under way."""


@dataclass(frozen=True)
class Script:
    """One conversation: the prompts of its turns, each with all before it."""

    name: str
    prompts: tuple[Piece, ...]


def scripts(soak: Soak, target: Target, number: Callable[[], int]) -> list[Script]:
    """Make the conversations, with prompts that nobody asked before."""
    made = []
    for at in range(soak.conversations):
        prompt = target.piece(soak.first_tokens, number())
        prompts = [prompt]
        for _ in range(soak.turns - 1):
            said, text = target.piece(soak.answer_tokens, number()), target.piece(soak.turn_tokens, number())
            prompt = prompt + said + text  # type: ignore[operator]
            prompts.append(prompt)
        made.append(Script(f"soak-{number()}-{at}", tuple(prompts)))
    return made


@dataclass
class Known:
    """What was answered to each prompt when the answers were learnt.

    Attributes
    ----------
    answers
        By prompt; more than one where the server varies.
    asked, varied
        Prompts that were asked once more, and those of them that got another answer then.
    left_out
        Answers that were not learnt, nor a control, because part of their prompt came from DRAM or NVMe.
    """

    answers: dict[Piece, set[Piece]] = field(default_factory=dict)
    asked: int = 0
    varied: int = 0
    left_out: int = 0

    @property
    def varying(self) -> float:
        """Share of prompts whose answer varies without any fault."""
        return self.varied / self.asked if self.asked else 0.0


def learn(target: Target, conversations: Sequence[Script], soak: Soak, seed: int = 0) -> Known:
    """Learn the right answers: each prompt alone, where it is computed, alone once more, then all, several at once.

    Raises
    ------
    RuntimeError
        A request failed, or nothing could be learnt.
    """
    known = Known()
    for script in conversations:
        for prompt in script.prompts:
            answer = _answered(target, prompt, soak)
            if _from_below(answer):
                known.left_out += 1
                break
            known.answers[prompt] = {answer.output}
    if not known.answers:
        raise RuntimeError("no answer could be learnt: every prompt came from DRAM or NVMe")
    controls: dict[Piece, bool] = {}

    def control(prompt: Piece, answer: Answer) -> None:
        if _from_below(answer):
            known.left_out += 1
            return
        controls[prompt] = controls.get(prompt, False) or answer.output not in known.answers[prompt]
        known.answers[prompt].add(answer.output)

    again = list(known.answers)
    for prompt in again:
        control(prompt, _answered(target, prompt, soak))
    random.Random(seed).shuffle(again)
    with ThreadPoolExecutor(soak.clients) as pool:
        answers = list(pool.map(lambda prompt: _answered(target, prompt, soak), again))
    for prompt, answer in zip(again, answers, strict=True):
        control(prompt, answer)
    known.asked, known.varied = len(controls), sum(controls.values())
    return known


def learnt(conversations: Sequence[Script], known: Known) -> list[Script]:
    """Return the conversations as far as their answers are known."""
    found = []
    for script in conversations:
        prompts = tuple(takewhile(known.answers.__contains__, script.prompts))
        if prompts:
            found.append(Script(script.name, prompts))
    return found


def _answered(target: Target, prompt: Piece, soak: Soak) -> Answer:
    answer = target.ask(prompt, soak.answer_tokens)
    if not answer.ok:
        raise RuntimeError(f"a request failed while answers were learnt: {answer.error}")
    return answer


def _from_below(answer: Answer) -> bool:
    return answer.cached is not None and answer.cached.dram + answer.cached.nvme > 0


class SoakLoad:
    """Plays conversations in random order until it is stopped; a context manager.

    Parameters
    ----------
    target
        Who is asked.
    conversations, known
        What is asked, and what must come back.

    Attributes
    ----------
    records
        Of all requests.
    """

    def __init__(
        self, target: Target, conversations: Sequence[Script], known: Known, soak: Soak, seed: int = 0
    ) -> None:
        self._target = target
        self._soak = soak
        self._known = known
        self._seed = seed
        self._conversations = list(conversations)
        self._free: list[tuple[Script, int]] = [(script, 0) for script in conversations]
        self._open = threading.Event()
        self._stop = threading.Event()
        self._change = threading.Condition()
        self._running = 0
        self._draw = random.Random(seed)
        self._pool = ThreadPoolExecutor(soak.clients, thread_name_prefix="soak")
        self._clients: list[Future[None]] = []
        self.records = Records()

    def __enter__(self) -> SoakLoad:
        self._open.set()
        for number in range(self._soak.clients):
            self._clients.append(self._pool.submit(self._client, random.Random(f"{self._seed} {number}")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._open.set()
        self._pool.shutdown(wait=True)

    @property
    def running(self) -> int:
        """How many requests are under way."""
        with self._change:
            return self._running

    @property
    def troubles(self) -> list[str]:
        """What ended clients before the load was over."""
        errors = [client.exception() for client in self._clients if client.done()]
        return [f"a client ended: {type(error).__name__}: {error}" for error in errors if error is not None]

    @contextmanager
    def held(self, *, quiet: bool) -> Iterator[None]:
        """Let nobody ask meanwhile; with ``quiet`` only after those under way have ended, for a bounded time."""
        self._open.clear()
        try:
            if quiet:
                with self._change:
                    self._change.wait_for(lambda: self._running == 0, QUIET_S)
            yield
        finally:
            self._open.set()

    def judge(self, prompt: Piece, answer: Answer) -> Outcome:
        """Say what an answer to a known prompt is."""
        if answer.error:
            return "failed"
        if answer.cut:
            return "cut"
        return "right" if answer.output in self._known.answers[prompt] else "wrong"

    def any_prompt(self) -> Piece:
        """Return a known prompt."""
        with self._change:
            return self._draw.choice(sorted(self._known.answers, key=len))

    def some(self, most: int) -> list[Script]:
        """Return some conversations, at most so many."""
        with self._change:
            return self._draw.sample(self._conversations, min(most, len(self._conversations)))

    def paths(self, prompts: Sequence[Piece]) -> list[Piece]:
        """Return known prompts with what was answered to them."""
        return [prompt + output for prompt in prompts for output in self._known.answers[prompt]]  # type: ignore[operator]

    def _client(self, draw: random.Random) -> None:
        while not self._stop.is_set():
            self._open.wait()
            with self._change:
                if self._stop.is_set() or not self._free or not self._open.is_set():
                    script = None
                else:
                    script, turn = self._free.pop(draw.randrange(len(self._free)))
                    self._running += 1
            if script is None:
                self._stop.wait(0.02)
                continue
            try:
                failed = self._ask(script, turn, draw)
            finally:
                with self._change:
                    self._free.append((script, (turn + 1) % len(script.prompts)))
                    self._running -= 1
                    self._change.notify_all()
            if failed:
                self._stop.wait(PAUSE_S)

    def _ask(self, script: Script, turn: int, draw: random.Random) -> bool:
        prompt = script.prompts[turn]
        cut = CUT_AFTER if draw.random() < self._soak.cut_share else None
        answer = self._target.ask(prompt, self._soak.answer_tokens, session=script.name, cut_after=cut)
        outcome = self.judge(prompt, answer)
        record = Record(answer.started_s, time.perf_counter(), outcome, answer.source, answer.ttft_s, answer.error)
        self.records.add(record)
        return outcome == "failed"
