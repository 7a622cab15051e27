"""A real server whose pages go straight from NVMe to "HBM": past DRAM, the same answers, also after a restart."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from e2e_rig import ANSWER, DRAM, HBM, LENGTH, NVME, REQUEST_TIMEOUT_S, START_TIMEOUT_S, prompts

from radixtier.control import parse_address
from radixtier.control.client import ControlClient
from radixtier.live.client import Client
from radixtier.live.server import CPU_FLAGS, Server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PAGE = 16
CACHED = (LENGTH - 1) // PAGE * PAGE


def flags(store: Path) -> list[str]:
    return [
        *CPU_FLAGS,
        "--page-size", str(PAGE),
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{HBM}tok",
        "--radix-tier-dram-size", f"{DRAM}tok",
        "--radix-tier-nvme-size", f"{NVME}tok",
        "--radix-tier-nvme-path", str(store),
        "--radix-tier-direct", "on",
        "--radix-tier-landing-size", f"{HBM}tok",
        "--hicache-storage-prefetch-policy", "wait_complete",
    ]  # fmt: skip


def state_of(store: Path) -> dict[str, Any]:
    return ControlClient(parse_address(f"unix:{store / 'radixtier.sock'}")).state()


def test_long_prompts_that_are_used_once_never_touch_dram(tiny_model: Path, tmp_path: Path) -> None:
    """The first return of each prompt is the second use: it lands. Answers are those of the first time."""
    store = tmp_path / "kv"
    store.mkdir()
    batch = prompts(8, seed=31)
    with Server("with a landing zone", tiny_model, flags(store), tmp_path / "log") as server:
        client = Client(server.url, REQUEST_TIMEOUT_S)
        server.start(START_TIMEOUT_S)
        first = [client.generate(prompt, ANSWER) for prompt in batch]
        before = state_of(store)
        assert before["landing"]["capacity"] == HBM and before["counters"]["landed"] == 0
        # The last four are in HBM or DRAM still.
        again = [client.generate(prompt, ANSWER) for prompt in batch[:3]]
        after = state_of(store)
        assert [reply.output_ids for reply in again] == [reply.output_ids for reply in first[:3]]
        assert [reply.nvme for reply in again] == [CACHED] * 3
        counters = after["counters"]
        # What an idle server brought up meanwhile is not what these requests waited for.
        assert counters["promoted_by"]["arrival"] == counters["landed"] >= 2 * CACHED // PAGE, counters
        assert after["landing"]["used"] == 0 and counters["landing_failed"] == counters["landing_full"] == 0
        client.flush()
        assert client.healthy() and server.running()
        fresh = [client.generate(prompt, ANSWER) for prompt in batch]
        assert [reply.cached for reply in fresh] == [0] * 8
        assert [reply.output_ids for reply in fresh] == [reply.output_ids for reply in first]
    with Server("started again", tiny_model, flags(store), tmp_path / "log2") as server:
        client = Client(server.url, REQUEST_TIMEOUT_S)
        server.start(START_TIMEOUT_S)
        restored = client.generate(batch[0], ANSWER)
        counters = state_of(store)["counters"]
        assert restored.output_ids == first[0].output_ids and restored.cached == CACHED
        # The hottest paths come up before the first request; what is left for it lands.
        assert counters["landed"] == counters["promoted_by"].get("arrival", 0), counters
