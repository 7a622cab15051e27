"""A stand without servers for what only passes it on, and results of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixtier.gate.result import ESSENTIAL, Check, Result, Verdict
from radixtier.gate.stand import Side
from radixtier.load.answer import Answer


class FakeTarget:
    """Answers everything, and remembers it."""

    def __init__(self, url: str = "http://127.0.0.1:9") -> None:
        self.url = url
        self.asked: list[Any] = []

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        return (number,) * tokens

    def ask(self, prompt: Any, answer_tokens: int, **_: Any) -> Answer:
        self.asked.append(prompt)
        return Answer(0.0, 0.1, 0.2, prompt_tokens=len(prompt), output_tokens=answer_tokens)


class FakeStand:
    """A stand of no server; ``account`` is what its control endpoint tells."""

    stock = None
    disturb = False
    beside = True
    model = None

    def __init__(
        self, account: Mapping[str, Any] | None = None, directories: tuple[Path, ...] = (), attached: bool = False
    ) -> None:
        self.account = account
        self.directories = directories
        self.attached = attached
        self.tiered = Side("tiered", FakeTarget())
        self.notes: dict[str, Any] = {}
        self.closed = 0
        self.numbers = 0

    def state(self) -> Mapping[str, Any] | None:
        return self.account

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def close(self) -> None:
        self.closed += 1


def result(key: str, *verdicts: str, **figures: Any) -> Result:
    """A gate with one check per verdict; the first is one of those that it is for."""
    names = [ESSENTIAL[key][0], *(f"check {at}" for at in range(1, len(verdicts)))]
    checks = tuple(
        Check(names[at], Verdict(verdict), f"reason {at}", "the fix" if verdict == "fail" else "")
        for at, verdict in enumerate(verdicts)
    )
    return Result(key, f"title of {key}", checks, figures, 12.3)


def load_figures(ttft_s: float, rate: float) -> dict[str, Any]:
    """What `radixtier.load.figures.figures` returns, as far as a report shows it."""
    times = {"mean": ttft_s, "p50": ttft_s, "p95": 1.2 * ttft_s, "p99": 1.3 * ttft_s}
    return {
        "requests": 8,
        "failed": 0,
        "ttft_s": times,
        "itl_s": dict.fromkeys(times, 0.03),
        "output_tokens_per_s": rate,
        "prompt_tokens_per_s": 100 * rate,
    }


RECOVERY: dict[str, Any] = {
    "levels": {
        str(level): {
            "baseline": load_figures(9.0 * level, 2.0),
            "cold": load_figures(0.5 * level, 9.0),
            "ttft_ratio": [1 / 18, 1 / 20, 1 / 15],
            "throughput_ratio": [4.5, 4.1, 4.9],
            "rounds": 2,
        }
        for level in (1, 2, 16)
    },
    "by_length": {
        "2000": {"recompute_s": 7.0, "hbm_s": 0.2, "dram_s": None, "nvme_s": 0.4, "ratio": 0.06},
        "10000": {"recompute_s": 70.0, "hbm_s": 0.3, "nvme_s": 1.4, "ratio": [0.02, 0.01, 0.03]},
    },
    "restart": {"ttft_p50_s": 0.51, "share": 0.98, "nested": {"not": "shown"}},
    "no_reuse": {"ratio": [1.004, 0.99, 1.02], "tokens_per_s": [1.0, 2.0, 3.0, 4.0], "turns": 8},
    "answers": {"compared": 6, "equal": 6, "control_equal": 6},
}

SOAK: dict[str, Any] = {
    "seconds": 170.0,
    "turns": 120,
    "wrong": 0,
    "events": [{"at_s": 30.0, "what": "kill -9", "recovered_s": 41.0}, {"at_s": 90.0, "what": "disk errors"}],
    "samples": [
        {"at_s": at, "rss_bytes": 2e9 + at, "descriptors": 60, "threads": 90, "store_bytes": 4e9, "ttft_p50_s": 0.3}
        for at in range(0, 170, 10)
    ],
}
