"""What happens to a server during the soak, and whether it recovers.

Owns the kinds of events and the law of recovery: after its end, a known prompt is answered right and a new one reaches
NVMe within a bounded time; a burst must not fail a request. What cannot be done to this stand is skipped with the
reason. Main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from radixtier.control.client import ControlError
from radixtier.gate.profiles import Plan
from radixtier.gate.soak_load import SoakLoad
from radixtier.gate.soak_watch import Watch
from radixtier.gate.stand import Side, Stand, Unavailable
from radixtier.load.answer import Piece
from radixtier.load.paired import work

KINDS = ("burst", "error", "flip", "slow", "flush")
"""In this order, again and again; ``kill`` once, in the middle."""

KILL = "kill -9"
TITLES = {
    "burst": "burst without reuse",
    "error": "drive errors",
    "flip": "flipped bits",
    "slow": "slow drive",
    "flush": "flush",
    KILL: KILL,
}
FAULTS = {"error": "error=0.5", "flip": "flip=0.3", "slow": "slow_read={slow:g},slow_write={slow:g}"}
PROBE_TOKENS = 256
LOOK_S = 0.5


@dataclass
class Event:
    """One thing that was done.

    Attributes
    ----------
    at_s, end_s
        Since the beginning of the soak: when it began, and when the server was left alone again.
    recovered_s
        From then until it had recovered; None if it did not in time.
    skipped
        Why it was not done.
    trouble
        What went wrong.
    stored_share
        After a kill: the share of prompts stored before it that came from the store.
    """

    kind: str
    at_s: float
    end_s: float = 0.0
    recovered_s: float | None = None
    skipped: str = ""
    trouble: str = ""
    stored_share: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        extra = {} if self.stored_share is None else {"stored_share": self.stored_share}
        told = {"at_s": self.at_s, "end_s": self.end_s, "what": TITLES[self.kind], "recovered_s": self.recovered_s}
        return {**told, **extra, **self.figures, "skipped": self.skipped, "trouble": self.trouble}


class Events:
    """Does things to a stand under load.

    Parameters
    ----------
    clock
        Seconds since the beginning of the soak.
    rest
        Waits for so many seconds, or less where the soak is over.
    """

    def __init__(
        self,
        stand: Stand,
        plan: Plan,
        load: SoakLoad,
        watch: Watch,
        clock: Callable[[], float],
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self._stand = stand
        self._plan = plan
        self._load = load
        self._watch = watch
        self.clock = clock
        self._rest = rest

    def happen(self, kind: str) -> Event:
        """Let one event happen and wait for the recovery."""
        event = Event(kind, self.clock())
        before = _counters(self._stand)
        try:
            {"burst": self._burst, "flush": self._flush, KILL: self._kill}.get(kind, self._fault)(event)
        except Unavailable as reason:
            event.skipped = str(reason)
            return event
        event.end_s = self.clock()
        if kind != KILL:
            after = _counters(self._stand)
            event.figures = {name: after[name] - before[name] for name in after if name in before}
        event.recovered_s = self._recover(event)
        return event

    # ---- kinds ---------------------------------------------------------------------------------------------------

    def _fault(self, event: Event) -> None:
        if not self._stand.disturb:
            raise Unavailable("the server is in use: --disturb allows this")
        prompts = self._store_some()
        until = self.clock() + self._plan.soak.fault_s
        try:
            self._stand.misbehave(FAULTS[event.kind].format(slow=self._plan.soak.slow))
            self._read_and_write(event, prompts)
            self._rest(max(0.0, until - self.clock()))
        finally:
            with suppress(Unavailable):
                self._stand.misbehave("")

    def _flush(self, event: Event) -> None:
        if not self._stand.disturb:
            raise Unavailable("the server is in use: --disturb allows to flush it")
        with self._load.held(quiet=True):
            self._stand.flush(self._stand.tiered)

    def _burst(self, event: Event) -> None:
        soak, target = self._plan.soak, self._stand.tiered.target
        prompts = [target.piece(soak.burst_tokens, self._stand.number()) for _ in range(soak.burst_prompts)]
        done = work(target, prompts, soak.answer_tokens, soak.clients)
        if done.failed:
            event.trouble = f"{done.failed} of {len(prompts)} requests failed"

    def _kill(self, event: Event) -> None:
        if not self._stand.disturb:
            raise Unavailable("the server is in use: --disturb allows this")
        stored = self._store_some()
        with self._load.held(quiet=False), self._watch.away():
            event.figures = {"started_s": self._stand.kill()}
            event.stored_share = self._stored_share(stored)  # before the load brings anything up

    # ---- recovery ------------------------------------------------------------------------------------------------

    def _recover(self, event: Event) -> float | None:
        """Return how long it took; None if it is not over after the limit."""
        end = event.end_s + self._plan.limits.recover_s
        while True:
            trouble = self._trouble()
            now = self.clock()
            if not trouble:
                return now - event.end_s
            if now >= end:
                event.trouble = event.trouble or trouble
                return None
            self._rest(LOOK_S)

    def _trouble(self) -> str:
        """What is not as it should be: a known answer, and a new prompt's way to NVMe."""
        side = self._stand.tiered
        prompt = self._load.any_prompt()
        answer = side.target.ask(prompt, self._plan.soak.answer_tokens)
        outcome = self._load.judge(prompt, answer)
        if outcome != "right":
            return f"a known prompt was answered {outcome}" + (f": {answer.error}" if answer.error else "")
        return self._write_trouble(side)

    def _write_trouble(self, side: Side) -> str:
        fresh = side.target.piece(PROBE_TOKENS, self._stand.number())
        answer = side.target.ask(fresh, 1)
        if not answer.ok:
            return f"a new prompt failed: {answer.error}"
        try:
            cold = self._stand.chill([fresh + answer.output])  # type: ignore[operator]
        except Unavailable:
            return ""  # nothing on this stand tells
        except ControlError as error:
            return str(error)
        return "" if cold >= PROBE_TOKENS // 2 else f"{cold} of {PROBE_TOKENS} tokens of a new prompt reached NVMe"

    def _store_some(self) -> list[Piece]:
        """Bring one conversation to NVMe alone; return its prompts."""
        prompts = self._load.conversation()
        with self._load.held(quiet=True), suppress(Unavailable, ControlError):
            for prompt in prompts:
                self._stand.tiered.target.ask(prompt, self._plan.soak.answer_tokens)
            self._stand.chill(self._load.paths(prompts))
        return prompts

    def _read_and_write(self, event: Event, prompts: Sequence[Piece]) -> None:
        """Have the drive read what it has alone, and write something new, while it misbehaves."""
        target, soak = self._stand.tiered.target, self._plan.soak
        for prompt in prompts:
            outcome = self._load.judge(prompt, target.ask(prompt, soak.answer_tokens))
            if outcome != "right":
                event.trouble = f"what was on NVMe was answered {outcome}"
        work(target, [target.piece(PROBE_TOKENS, self._stand.number()) for _ in range(2)], 1, 2)

    def _stored_share(self, prompts: Sequence[Piece]) -> float:
        """Ask prompts that were stored before the kill; return the share that came from the store."""
        asked = stored = 0
        for prompt in prompts:
            answer = self._stand.tiered.target.ask(prompt, self._plan.soak.answer_tokens)
            asked += answer.prompt_tokens
            stored += answer.cached.nvme + answer.cached.dram if answer.cached else 0
        return stored / asked if asked else 0.0


def _counters(stand: Stand) -> dict[str, int]:
    """What the store counted of faults, as far as the server tells."""
    store = (stand.state() or {}).get("store") or {}
    names = ("checksum_failures", "read_errors", "write_errors")
    return {name: int(store[name]) for name in names if isinstance(store.get(name), int)}
