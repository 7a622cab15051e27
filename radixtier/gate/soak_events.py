"""What happens to a server during the soak, and whether it recovers.

Owns the kinds of events and the law of recovery: after its end, a known prompt is answered right, a new one reaches
NVMe and comes back from there, within a bounded time; a burst must not fail a request; a fault must have reached the
server, and ``kill -9`` have hit it at work. What cannot be done to this stand is skipped with the reason; what fails is
the event's trouble, and the soak goes on. Main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from radixtier.control.client import ControlError
from radixtier.gate.profiles import Plan
from radixtier.gate.soak_load import Script, SoakLoad
from radixtier.gate.soak_watch import Watch
from radixtier.gate.stand import Side, Stand, Unavailable
from radixtier.live.client import RequestFailed
from radixtier.load.answer import Answer, Piece
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
FAILURES = (RequestFailed, ControlError, OSError)
"""What a server or a network does; nothing of it ends the soak."""

PROBE_TOKENS = 256
"""Least length of a new prompt that must reach NVMe: as long as a conversation of the load, since a server may rather
compute a short one than read it."""
LOOK_S = 0.5
HIT_LOOK_S = 0.05
"""Between two looks whether the server is at work."""

STORED = 4
"""Conversations whose first prompts must survive a kill."""

SLOWER = 1.5
"""By which a read must be slower for a slow drive to have shown."""

WITH_FAULTS = " with faults"
"""How the name of an engine ends that faults can reach."""


@dataclass
class Event:
    """One thing that was done.

    Attributes
    ----------
    at_s, end_s
        Since the beginning of the soak: when it began (a kill: when it struck), and when the server was left alone.
    began_s
        When it was prepared, where that is earlier.
    recovered_s
        From then until it had recovered; None if it did not in time.
    skipped
        Why it was not done.
    trouble
        What went wrong.
    unchecked
        Why part of the recovery could not be looked at.
    hit
        Whether the fault showed in a transfer; None where nothing tells.
    stored_share
        After a kill: of what was on NVMe alone before it, the share that came from the store.
    """

    kind: str
    at_s: float
    end_s: float = 0.0
    recovered_s: float | None = None
    skipped: str = ""
    trouble: str = ""
    unchecked: str = ""
    hit: bool | None = None
    began_s: float | None = None
    stored_share: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        extra = {} if self.stored_share is None else {"stored_share": self.stored_share}
        told = {"at_s": self.at_s, "end_s": self.end_s, "what": TITLES[self.kind], "recovered_s": self.recovered_s}
        left = {"skipped": self.skipped, "trouble": self.trouble, "unchecked": self.unchecked, "hit": self.hit}
        return {**told, **extra, **self.figures, **left}


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
        try:
            {"burst": self._burst, "flush": self._flush, KILL: self._kill}.get(kind, self._fault)(event)
        except Unavailable as reason:
            event.skipped = str(reason)
            return event
        except FAILURES as error:
            event.trouble = event.trouble or told(error)
        event.end_s = self.clock()
        event.recovered_s = self._recover(event)
        return event

    # ---- kinds ---------------------------------------------------------------------------------------------------

    def _fault(self, event: Event) -> None:
        if self._stand.attached:
            raise Unavailable("the gate did not start this server: --launch lets it give its drive faults")
        store = self._store_some()
        normal = self._wait_for(store) if event.kind == "slow" else None
        if normal is not None:
            self._cool(store)
        before, slowness = _counters(self._stand), _slowness(self._stand)
        until = self.clock() + self._plan.soak.fault_s
        try:
            self._stand.misbehave(FAULTS[event.kind].format(slow=self._plan.soak.slow))
            event.trouble = self._unreached()
            wait = self._wait_for(store)
            self._read_and_write(event, store)
            self._rest(max(0.0, until - self.clock()))
            after, slower = _counters(self._stand), _slowness(self._stand)
        finally:
            with suppress(Unavailable):
                self._stand.misbehave("")
        event.figures = {name: after[name] - before[name] for name in after if name in before}
        if event.kind != "slow":
            event.hit = any(event.figures.values()) if event.figures else None
            return
        pairs = [(old, new) for old, new in ((normal, wait), (slowness, slower)) if old is not None and new is not None]
        event.hit = any(new >= SLOWER * old for old, new in pairs) if pairs else None
        event.figures |= {"read_s": [normal, wait], "slowness": [slowness, slower]}

    def _unreached(self) -> str:
        """Say why a fault cannot have reached the server; "" if it did."""
        engine = str((self._stand.state() or {}).get("engine") or "")
        if engine.endswith(WITH_FAULTS):
            return ""
        return f"the fault did not reach the server: its engine is {engine or 'not told'}"

    def _flush(self, event: Event) -> None:
        if not self._stand.disturb:
            raise Unavailable("the server is in use: --disturb allows to flush it")
        with self._load.held(quiet=True):
            self._stand.flush(self._stand.tiered)

    def _burst(self, event: Event) -> None:
        soak = self._plan.soak
        done = work(self._stand.tiered.target, self._new_prompts(), soak.answer_tokens, soak.clients)
        if done.failed:
            event.trouble = f"{done.failed} of {soak.burst_prompts} requests failed"

    def _kill(self, event: Event) -> None:
        if self._stand.attached:
            raise Unavailable("the gate did not start this server: --launch lets it kill one and start it again")
        soak, ask = self._plan.soak, self._stand.tiered.target.ask
        stored = self._store_some(STORED)
        firsts = [script.prompts[0] for script in stored]
        with self._load.held(quiet=True):
            cold = self._cold(event, firsts)
        prompts = self._new_prompts()
        with ThreadPoolExecutor(soak.clients) as pool, ExitStack() as held, self._watch.away():
            burst = [pool.submit(ask, prompt, soak.answer_tokens) for prompt in prompts]

            def dead() -> None:
                held.enter_context(self._load.held(quiet=False))
                for request in burst:
                    request.cancel()

            requests, pages = self._at_work(burst)
            event.began_s, event.at_s = event.at_s, self.clock()
            if not requests and not pages:
                event.trouble = "kill -9 hit an idle server: no request and no write was under way"
            started_s = self._stand.kill(dead)
            event.figures = {"started_s": started_s, "requests_under_way": requests, "pages_under_way": pages}
            event.stored_share = None if cold is None else self._stored_share(event, firsts, cold)  # before the load

    def _at_work(self, burst: Sequence[Future[Answer]]) -> tuple[int, int]:
        """Wait until requests and writes are under way, for a bounded time; return how many of each are."""
        until = self.clock() + self._plan.soak.fault_s
        while True:
            told_pages = (self._stand.state() or {}).get("pages") or {}
            pages = int(told_pages.get("dirty", 0)) + int(told_pages.get("filling", 0))
            requests = self._load.running + sum(not request.done() for request in burst)
            if (requests and pages) or self.clock() >= until:
                return requests, pages
            self._rest(HIT_LOOK_S)

    # ---- recovery ------------------------------------------------------------------------------------------------

    def _recover(self, event: Event) -> float | None:
        """Return how long it took; None if it is not over after the limit."""
        end = event.end_s + self._plan.limits.recover_s
        while True:
            try:
                trouble = self._trouble(event)
            except FAILURES as error:
                trouble = told(error)
            now = self.clock()
            if not trouble:
                return now - event.end_s
            if now >= end:
                event.trouble = event.trouble or trouble
                return None
            self._rest(LOOK_S)

    def _trouble(self, event: Event) -> str:
        """What is not as it should be: a known answer, and a new prompt's way to NVMe and back."""
        side = self._stand.tiered
        prompt = self._load.any_prompt()
        answer = side.target.ask(prompt, self._plan.soak.answer_tokens)
        outcome = self._load.judge(prompt, answer)
        if outcome != "right":
            return f"a known prompt was answered {outcome}" + (f": {answer.error}" if answer.error else "")
        return self._way_trouble(event, side)

    def _way_trouble(self, event: Event, side: Side) -> str:
        tokens = max(PROBE_TOKENS, self._plan.soak.first_tokens)
        fresh = side.target.piece(tokens, self._stand.number())
        answer = side.target.ask(fresh, 1)
        if not answer.ok:
            return f"a new prompt failed: {answer.error}"
        path: Piece = fresh + answer.output  # type: ignore[operator]
        try:
            cold = self._stand.chill([path])
        except Unavailable as reason:
            event.unchecked = str(reason)
            return ""
        if cold < tokens // 2:
            return f"{cold} of {tokens} tokens of a new prompt reached NVMe"
        again = side.target.ask(path, 1)
        if not again.ok:
            return f"what had reached NVMe failed: {again.error}"
        if again.cached is None or not again.split:
            event.unchecked = "the server does not tell which tier a prompt came from"
            return ""
        back = again.cached.nvme + again.cached.dram
        return "" if back >= tokens // 2 else f"{back} of {tokens} tokens of a new prompt came back from NVMe"

    # ---- what is stored ------------------------------------------------------------------------------------------

    def _new_prompts(self) -> list[Piece]:
        soak, target = self._plan.soak, self._stand.tiered.target
        return [target.piece(soak.burst_tokens, self._stand.number()) for _ in range(soak.burst_prompts)]

    def _store_some(self, most: int = 1) -> list[Script]:
        """Bring some conversations to NVMe alone, as far as this stand can; return them."""
        scripts = self._load.some(most)
        self._cool(scripts)
        return scripts

    def _cool(self, scripts: Sequence[Script]) -> None:
        prompts = [prompt for script in scripts for prompt in script.prompts]
        with self._load.held(quiet=True), suppress(Unavailable, ControlError):
            for prompt in prompts:
                self._stand.tiered.target.ask(prompt, self._plan.soak.answer_tokens)
            self._stand.chill(self._load.paths(prompts))

    def _cold(self, event: Event, firsts: Sequence[Piece]) -> int | None:
        """Return how many tokens of prompts are on NVMe alone; None where nothing tells."""
        try:
            return self._stand.chill(firsts)
        except Unavailable as reason:
            event.unchecked = str(reason)
            return None

    def _wait_for(self, scripts: Sequence[Script]) -> float | None:
        """Ask for the beginning of stored conversations; return the median TTFT of those that came from NVMe."""
        target, tokens = self._stand.tiered.target, self._plan.soak.answer_tokens
        answers = [target.ask(script.prompts[0], tokens) for script in scripts]
        waits = [answer.ttft_s for answer in answers if answer.ok and answer.prefix == "nvme"]
        return median(waits) if waits else None

    def _read_and_write(self, event: Event, scripts: Sequence[Script]) -> None:
        """Have the drive read what it has alone, and write something new, while it misbehaves."""
        target, soak = self._stand.tiered.target, self._plan.soak
        for prompt in (prompt for script in scripts for prompt in script.prompts):
            outcome = self._load.judge(prompt, target.ask(prompt, soak.answer_tokens))
            if outcome != "right":
                event.trouble = event.trouble or f"what was on NVMe was answered {outcome}"
        done = work(target, [target.piece(PROBE_TOKENS, self._stand.number()) for _ in range(2)], 1, 2)
        if done.failed:
            event.trouble = event.trouble or f"{done.failed} of 2 new prompts failed while the drive misbehaved"

    def _stored_share(self, event: Event, prompts: Sequence[Piece], cold: int) -> float:
        """Ask prompts that were on NVMe alone before the kill; return the share of that which came from the store."""
        page = int((self._stand.state() or {}).get("page_tokens") or 1)
        most = sum((len(prompt) - 1) // page * page for prompt in prompts)  # the last token is always computed
        stored = 0
        for prompt in prompts:
            answer = self._stand.tiered.target.ask(prompt, self._plan.soak.answer_tokens)
            stored += answer.cached.nvme + answer.cached.dram if answer.cached else 0
            if (outcome := self._load.judge(prompt, answer)) != "right":
                event.trouble = event.trouble or f"what was stored before the kill was answered {outcome}"
        wanted = min(cold, most)
        return min(1.0, stored / wanted) if wanted else 0.0


def told(error: Exception) -> str:
    """Say in one line what an error is."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")


def _counters(stand: Stand) -> dict[str, int]:
    """What the store counted of faults, as far as the server tells."""
    store = (stand.state() or {}).get("store") or {}
    names = ("checksum_failures", "read_errors", "write_errors", "verify_errors")
    return {name: int(store[name]) for name in names if isinstance(store.get(name), (int, float))}


def _slowness(stand: Stand) -> float | None:
    """What the server says its reads take over what they should; None where it does not."""
    found = ((stand.state() or {}).get("estimates") or {}).get("nvme_slowness")
    return float(found) if isinstance(found, (int, float)) else None
