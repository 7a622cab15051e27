"""The second half of ``launch/verify_gpu.sh``: a real server, its answers from every tier, and how soon they begin.

Owns one server with small tiers, so that a few prompts overflow them. Invariant: each answer is held against that of
the same prompt when it was computed, token by token in log-probabilities. Main thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.control import parse_address
from radixtier.control.client import ControlClient
from radixtier.live.client import Client
from radixtier.live.server import CPU_FLAGS, Server, free_port

ANSWER = 16
"""Tokens of an answer."""


class Load(NamedTuple):
    """What is asked, in tokens."""

    prompt: int
    prompts: int
    vocabulary: int

    @property
    def hbm(self) -> int:
        """Of two prompts and what is computed beside them."""
        return 3 * self.prompt

    @property
    def dram(self) -> int:
        """Of half of the prompts."""
        return self.prompts // 2 * self.prompt


class Heard(NamedTuple):
    """One answer."""

    ttft_s: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    nvme: int
    hbm: int


class Served(NamedTuple):
    """What was found; times are medians in seconds, a tier that was not hit has none."""

    computed_s: float
    nvme_s: float | None
    hbm_s: float | None
    landed: int
    """Pages that went straight to HBM."""
    promoted: int
    """Pages that came up from NVMe, those included."""
    worst: float
    """Largest difference of a log-probability to when the same prompt was computed, over tokens alike."""
    same: bool
    """Every answer has the tokens of the first time."""
    flushed: bool
    """After a flush nothing was found on any tier."""


def flags(load: Load, store: Path, device: str, control: str) -> list[str]:
    """Return the flags of the server, whose control endpoint is at ``control``."""
    on_cpu, on_gpu = [*CPU_FLAGS, "--page-size", "16"], ["--dtype", "bfloat16", "--radix-tier-io-engine", "kvikio"]
    return [
        *(on_cpu if device == "cpu" else on_gpu),
        "--radix-tier-control", control,
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{load.hbm}tok",
        "--radix-tier-dram-size", f"{load.dram}tok",
        "--radix-tier-nvme-size", f"{2 * load.prompts * load.prompt}tok",
        "--radix-tier-nvme-path", str(store),
        "--radix-tier-direct", "on",
        "--radix-tier-landing-size", f"{2 * load.prompt}tok",
        "--hicache-storage-prefetch-policy", "wait_complete",
    ]  # fmt: skip


def ask(client: Client, prompt: Sequence[int]) -> Heard:
    """Ask for a greedy answer with its log-probabilities."""
    sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True, "return_logprob": True}
    began, first, event = time.perf_counter(), None, dict[str, Any]()
    for event in client.stream("/generate", body):  # noqa: B007 the last event says it all
        first = first or time.perf_counter()
    meta = event["meta_info"]
    told = meta["output_token_logprobs"]
    details = meta.get("cached_tokens_details") or {}
    return Heard(
        (first or began) - began,
        tuple(int(each[1]) for each in told),
        tuple(float(each[0]) for each in told),
        int(details.get("storage") or 0),
        int(details.get("device") or 0),
    )


def serve(model: Path, load: Load, store: Path, log: Path, device: str, timeout_s: float) -> Served:
    """Start a server and ask it; stops it in any case.

    Raises
    ------
    ServerFailed, RequestFailed, ControlError
        It does not start within ``timeout_s`` seconds, or does not answer.
    """
    rng = random.Random(7)
    prompts = [[3 + i, *rng.choices(range(3, load.vocabulary), k=load.prompt - 1)] for i in range(load.prompts)]
    control = f"127.0.0.1:{free_port()}"
    with Server("of the verification", model, flags(load, store, device, control), log) as server:
        client = server.start(timeout_s)
        ask(client, [3] * 64)  # what is compiled at the first request
        cold = [ask(client, prompt) for prompt in prompts]
        back = [ask(client, prompt) for prompt in prompts[: load.prompts // 3]]
        again = ask(client, prompts[load.prompts // 3 - 1])
        address = parse_address(control)
        assert address is not None
        counters = ControlClient(address).state()["counters"]
        client.flush()
        fresh = ask(client, prompts[0])
    pairs = [*zip(back, cold, strict=False), (again, cold[load.prompts // 3 - 1]), (fresh, cold[0])]
    return Served(
        computed_s=_median([each.ttft_s for each in cold]),
        nvme_s=_median([each.ttft_s for each in back if each.nvme]) if any(each.nvme for each in back) else None,
        hbm_s=again.ttft_s if again.hbm else None,
        landed=int(counters["landed"]),
        promoted=int(counters["promoted"]),
        worst=max(difference(a, b) for a, b in pairs),
        same=all(a.tokens == b.tokens for a, b in pairs),
        flushed=fresh.nvme == 0 and fresh.hbm == 0,
    )


def difference(a: Heard, b: Heard) -> float:
    """Return the largest difference of log-probabilities, up to the first token in which two answers differ."""
    worst = 0.0
    for token, other, mine, theirs in zip(a.tokens, b.tokens, a.logprobs, b.logprobs, strict=True):
        if token != other:
            break
        worst = max(worst, abs(mine - theirs))
    return worst


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
