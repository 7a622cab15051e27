"""A real server stops, or is killed, and another starts on its directory: chats go on where they were."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from e2e_rig import ANSWER, LENGTH, NVME, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts, tier_flags

from radixtier.live.client import Client
from radixtier.live.server import Server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PAGE_SIZE = 16
CHATS = NVME // LENGTH - 4
"""As many as fit on NVMe with their answers."""


def start(model: Path, store: Path, log: Path) -> Tiered:
    server = Server("that restarts", model, tier_flags(store, PAGE_SIZE), log)
    server.start(START_TIMEOUT_S)
    return Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), PAGE_SIZE, store)


def test_chats_go_on_after_a_restart_and_a_kill_but_not_after_a_weight_update(tiny_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "nvme"
    store.mkdir()
    batch = prompts(CHATS, seed=11)
    running = first = start(tiny_model, store, tmp_path / "log0")
    try:
        expected = first.send_all(batch)
        first.server.stop()
        running = second = start(tiny_model, store, tmp_path / "log1")
        again = second.send_all(batch)
        assert [reply.output_ids for reply in again] == [reply.output_ids for reply in expected]
        # A graceful stop leaves nothing behind: every chat comes back whole, from NVMe, or from DRAM where an idle
        # moment was enough to bring it up before it was asked for.
        assert [reply.nvme + reply.dram for reply in again] == [second.most_cached] * CHATS
        assert sum(reply.nvme for reply in again) > 0

        # The next turn of every chat, and one more that is being answered when the power goes.
        longer = [[*prompt, *reply.output_ids, *range(10, 42)] for prompt, reply in zip(batch, again, strict=True)]
        turns = second.send_all(longer)
        second.send_and_leave(prompts(1, seed=12)[0])
        second.server.kill()
        running = third = start(tiny_model, store, tmp_path / "log2")
        after = third.send_all(longer)
        assert [reply.output_ids for reply in after] == [reply.output_ids for reply in turns]
        assert sum(reply.cached for reply in after) >= CHATS // 2 * third.most_cached
        assert after[0].cached >= third.most_cached, "stored long before the kill"
        third.assert_idle()
        fresh = third.send_all(batch[:2])
        assert [reply.cached for reply in fresh] == [0, 0], "flushed"
        assert [reply.output_ids for reply in fresh] == [reply.output_ids for reply in expected[:2]]
        assert len(after[0].output_ids) == ANSWER

        # After a weight update, even to the very same weights, a restart finds nothing from before or after it.
        third.update_weights(tiny_model)
        third.send_all(batch[2:4])
        third.server.stop()
        assert "weights were updated" in (tmp_path / "log2").read_text()
        running = fourth = start(tiny_model, store, tmp_path / "log3")
        assert [reply.cached for reply in fourth.send_all(batch[:4])] == [0] * 4
    finally:
        running.server.stop()
