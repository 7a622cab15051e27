"""A server and a stand that exist in memory: answers, tiers, times and failures as a test scripts them.

Time is :class:`Clock`, which requests move on, one after the other; :func:`virtual_time` puts it under what plays
loads.
"""

from __future__ import annotations

import random
import threading
import time
import types
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from radixtier.gate.stand import Room, Side, Unavailable
from radixtier.live.processes import Usage
from radixtier.load.answer import Answer, Cached, Piece

PAGE = 16

Tokens = tuple[int, ...]


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> float:
        """Let time pass; return what time it was."""
        with self._lock:
            began = self.now
            self.now += seconds
            return began


def virtual_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Let loads be timed by a clock of a test."""
    for module in ("radixtier.load.play", "radixtier.load.paired"):
        monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(perf_counter=clock))


@dataclass
class FakeServer:
    """A :class:`radixtier.load.target.Target`; what it has cached is a list of paths with a tier each.

    Attributes
    ----------
    compute_s, hit_s
        Seconds per computed token, and per request whatever it computes, by tier of the hit.
    tax
        Multiplies all times.
    """

    clock: Clock
    url: str = "http://127.0.0.1:1"
    compute_s: float = 0.001
    hit_s: dict[str, float] = field(default_factory=lambda: {"hbm": 0.01, "dram": 0.02, "nvme": 0.05})
    tax: float = 1.0
    wrong_from: str = ""
    """Tier whose hits are answered wrong."""
    errors: list[str] = field(default_factory=list)
    """Of the next requests, one each."""
    always_error: str = ""
    life: int = 0
    """Requests that wait while it is killed fail."""
    down: bool = False
    remembers: bool = True
    paths: dict[Tokens, str] = field(default_factory=dict)
    asked: list[Tokens] = field(default_factory=list)
    on_ask: Callable[[], None] = lambda: None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def piece(self, tokens: int, number: int) -> Tokens:
        return tuple(random.Random(number).choices(range(1000), k=tokens))

    def ask(
        self,
        prompt: Piece,
        answer_tokens: int,
        *,
        session: str | None = None,
        rid: str | None = None,
        cut_after: int | None = None,
    ) -> Answer:
        assert not isinstance(prompt, str)
        life = self.life
        with self._lock:
            if life == self.life and not self.down:
                self.on_ask()
            if life != self.life or self.down:
                return Answer(self.clock.move(0.01), 0.01, 0.01, error="the server was killed")
            self.asked.append(prompt)
            if self.always_error or self.errors:
                error = self.always_error or self.errors.pop(0)
                return Answer(self.clock.move(0.01), 0.01, 0.01, error=error)
            cached, tier = self._match(prompt)
            seconds = self.tax * ((len(prompt) - cached) * self.compute_s + self.hit_s.get(tier, 0.01))
            output = tuple(zlib.crc32(repr((prompt, at)).encode()) % 1000 for at in range(answer_tokens))
            if tier and tier == self.wrong_from:
                output = tuple(token + 1 for token in output)
            began = self.clock.move(seconds)
            if self.remembers:
                self.paths[prompt + output] = "hbm"
            return Answer(
                started_s=began,
                ttft_s=seconds,
                total_s=seconds,
                prompt_tokens=len(prompt),
                output_tokens=answer_tokens,
                cached=Cached(**({tier: cached} if tier else {})),
                output=output,
                cut=cut_after is not None,
            )

    def _match(self, prompt: Tokens) -> tuple[int, str]:
        best, tier = 0, ""
        for path, where in self.paths.items():
            same = next((at for at, (a, b) in enumerate(zip(path, prompt, strict=False)) if a != b), None)
            same = min(len(path), len(prompt) - 1) if same is None else same
            if same // PAGE * PAGE > best:
                best, tier = same // PAGE * PAGE, where
        if best:  # what is used comes up
            for path in self.paths:
                if path[:best] == prompt[:best]:
                    self.paths[path] = "hbm"
        return best, tier


class FakeStand:
    """A stand around two fake servers; what it can do is switched by attributes."""

    model: Path | None = None

    def __init__(self, clock: Clock | None = None, *, stock: bool = True, beside: bool = True) -> None:
        self.clock = clock or Clock()
        self.attached = not stock
        self.disturb = True
        self.directories: tuple[Path, ...] = ()
        self.server, self.plain = FakeServer(self.clock), FakeServer(self.clock)
        self.tiered = Side("tiered", self.server)
        self.stock: Side | None = Side("stock", self.plain) if stock else None
        self.beside = beside and stock
        self.notes: dict[str, Any] = {}
        self.chills_to = "nvme"
        self.cold = True
        self.survives = True
        self.faults: list[str] = []
        self.kills = 0
        self.unavailable: set[str] = set()
        self.store: dict[str, Any] = {"bytes_cap": 1000, "degraded": [], "checksum_failures": 0, "read_errors": 0}
        self.estimates = {"nvme_slowness": 1.0}
        self.told: dict[str, Any] | None = {
            "engine": "threads with faults", "store": self.store, "estimates": self.estimates, "page_tokens": PAGE,
        }  # fmt: skip
        self.comes_back = True
        """Whether what was chilled can be read again."""
        self.used = Usage(3, 1_000_000_000, 100, 50)
        self.bytes = 900
        self.flushed = 0
        self._number = 0

    def __enter__(self) -> FakeStand:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def number(self) -> int:
        self._number += 1
        return self._number

    def room(self) -> Room:
        return Room()

    def state(self) -> dict[str, Any] | None:
        return self.told

    def flush(self, side: Side) -> None:
        self._may("flush")
        self.flushed += 1
        side.target.paths.clear()  # type: ignore[attr-defined]

    def chill(self, paths: Sequence[Piece]) -> int:
        self._may("chill")
        if not self.cold:
            return 0
        for path in paths:
            for known in list(self.server.paths):
                if known[: len(path)] == path or path[: len(known)] == known:
                    self.server.paths[known] = self.chills_to
                    if not self.comes_back:
                        del self.server.paths[known]
        return sum(len(path) for path in paths)

    def lift(self, paths: Sequence[Piece]) -> None:
        for path in paths:
            for known in self.server.paths:
                if known[: len(path)] == path:
                    self.server.paths[known] = "dram"

    def restart(self) -> float:
        self._may("restart")
        for path in list(self.server.paths):
            if self.survives:
                self.server.paths[path] = "nvme"
            else:
                del self.server.paths[path]
        return 1.0

    def kill(self, dead: Callable[[], object] = lambda: None) -> float:
        self._may("kill")
        self.kills += 1
        with self.server._lock:
            self.server.life += 1
            self.server.down = True
        dead()
        time.sleep(0.03)  # whoever was about to ask finds nobody
        with self.server._lock:
            self.server.down = False
            return self.restart()

    def misbehave(self, faults: str) -> None:
        self._may("misbehave")
        self.faults.append(faults)
        self.store["read_errors"] += faults.startswith("error")
        self.store["checksum_failures"] += faults.startswith("flip")
        self.estimates["nvme_slowness"] = 20.0 if faults.startswith("slow") else 1.0

    def settle(self) -> bool:
        return True

    def usage(self) -> Usage | None:
        return self.used

    def store_bytes(self) -> int | None:
        return self.bytes

    def drop_page_cache(self) -> None:
        pass

    def _may(self, what: str) -> None:
        if what in self.unavailable:
            raise Unavailable(f"no {what} here")
