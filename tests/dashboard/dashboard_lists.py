"""Made-up requests, events and figures over time."""

from __future__ import annotations

import math
import random
from typing import Any

from dashboard_tree import NOW

GIB = 1 << 30
ADVICE = "It is tried again every now and then; the device or its network hangs: look at the kernel's log"
Json = dict[str, Any]


def history(seconds: float, end: float = NOW) -> Json:
    """Waves with noise that depend on the time alone, so that two answers agree where they overlap."""
    step = 1.0 if seconds <= 900 else 10.0
    last = math.floor(end / step) * step
    at = [last - step * i for i in range(int(seconds / step) - 1, -1, -1)]
    return {"interval_s": step, "at": at, "series": {name: [f(t) for t in at] for name, f in _SERIES.items()}}


def _noise(t: float, salt: int) -> float:
    return random.Random(int(t) * 31 + salt).random()


def _wave(mean: float, swing: float, period: float, salt: int) -> Any:
    def value(t: float) -> float:
        return round(max(0.0, mean + swing * math.sin(2 * math.pi * t / period) + mean * (_noise(t, salt) - 0.5)), 3)

    return value


def _waits(t: float) -> float | None:
    return None if _noise(t, 99) < 0.1 else round(4.0 + 60.0 * _noise(t, 98) ** 6, 3)


_SERIES: dict[str, Any] = {
    "requests_per_s": _wave(6.0, 2.0, 240, 1),
    "hbm_tokens_per_s": _wave(5200, 1500, 300, 2),
    "dram_tokens_per_s": _wave(3400, 900, 210, 3),
    "nvme_tokens_per_s": _wave(1500, 800, 120, 4),
    "computed_tokens_per_s": _wave(900, 300, 180, 5),
    "hbm_used": lambda t: 301_056,
    "dram_used": lambda t: 1_031_168,
    "nvme_used": lambda t: 9_437_184,
    "read_bytes_per_s": _wave(1.9 * GIB, 0.6 * GIB, 120, 6),
    "write_bytes_per_s": _wave(0.5 * GIB, 0.2 * GIB, 200, 7),
    "promoted_tokens_per_s": _wave(1600, 800, 120, 8),
    "demoted_tokens_per_s": _wave(1400, 500, 160, 9),
    "io_queue": _wave(12, 8, 90, 10),
    "waiting_requests": _wave(2, 1, 100, 11),
    "tick_ms": _wave(0.11, 0.02, 140, 12),
    "read_p50_ms": _wave(1.4, 0.3, 150, 13),
    "read_p99_ms": _waits,
    "write_p99_ms": _wave(9.0, 3.0, 170, 14),
    "corrupt_per_s": lambda t: 0.0,
    "lost_tokens_per_s": lambda t: 0.0,
}


def some_requests(n: int = 50) -> list[Json]:
    rng = random.Random(11)
    return [_request(rng, i) for i in range(n)]


def _request(rng: random.Random, i: int) -> Json:
    prompt = 64 * rng.randint(20, 400) + rng.randint(1, 63)
    hbm = 64 * rng.randint(0, prompt // 128)
    dram = 64 * rng.randint(0, (prompt - hbm) // 128) if i % 3 else 0
    nvme = (prompt - hbm - dram) // 64 * 64 if i % 4 == 1 else 0
    computed = prompt - hbm - dram - nvme
    last = min(computed, 14)
    causes = [{"reason": "always computed", "tokens": last, "detail": "", "when": None, "rule": ""}]
    if i % 5 == 2 and computed > last:
        cause = {"reason": "evicted", "tokens": computed - last, "detail": "", "when": NOW - 7200, "rule": "slru"}
        causes.insert(0, cause)
    elif computed > last:
        causes.insert(0, {"reason": "never seen", "tokens": computed - last, "detail": "", "when": None, "rule": ""})
    hint = {
        "action_id": "a1",
        "kind": "retain",
        "status": "accepted",
        "tokens_asked": 640,
        "tokens_granted": 640,
        "reason": "",
    }
    return {
        "request": f"{0x3F2A9C + 7919 * i:08x}",
        "session": None if i % 7 == 6 else f"user-{i % 14}",
        "arrived": NOW - 3 * i - 1.0,
        "waited_s": round(rng.random() / 4, 3) if nvme else 0.0,
        "prompt_tokens": prompt,
        "served": {"hbm": hbm, "dram": dram, "nvme": nvme},
        "recomputed": computed,
        "causes": causes,
        "hints": [hint] if i == 1 else [],
    }


def some_events() -> list[Json]:
    texts = [
        ("info", "radixtier: /mnt/nvme1/kv works again after 41 s and takes new pages"),
        ("warning", f"radixtier: /mnt/nvme1/kv takes no new pages: a write has not ended for 10 s. {ADVICE}"),
        ("info", "radixtier: 48211 nodes came back from an earlier run"),
        ("error", "radixtier: hint pin failed"),
        ("info", "radixtier: control endpoint at unix:/mnt/nvme0/kv/radixtier.sock"),
    ]
    events: list[Json] = [{"at": NOW - 60 * i, "level": level, "text": text} for i, (level, text) in enumerate(texts)]
    events[1]["times"] = 3
    return events
