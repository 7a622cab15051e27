"""A real ``--tp 2`` server of a model with a latent (MLA): the first rank stores, both read, a restart finds all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from e2e_rig import REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts, tier_flags

from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.live.tiny_kinds import make_tiny_deepseek
from radixtier.store.paths import find_stores

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PAGE_SIZE = 16


def test_a_latent_is_stored_once_and_read_by_both_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SGLang itself ends a server whose ranks match or evict differently.
    monkeypatch.setenv("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", "1")
    store = tmp_path / "nvme"
    store.mkdir()
    flags = [*tier_flags(store, PAGE_SIZE), "--tp", "2"]
    model = make_tiny_deepseek(tmp_path / "model")
    batch = prompts(6, seed=41)
    answers = []
    for life in range(2):
        with Server("with two ranks", model, flags, tmp_path / f"log{life}") as server:
            server.start(START_TIMEOUT_S)
            tiered = Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), PAGE_SIZE, store)
            for _ in range(2):
                replies = tiered.send_all(batch)
                answers.append([reply.output_ids for reply in replies])
                if life or len(answers) > 1:
                    assert max(reply.nvme for reply in replies) == tiered.most_cached
                    assert all(reply.cached == tiered.most_cached for reply in replies)
            assert [files.rank for files in find_stores(store)] == [0]
    assert answers == [answers[0]] * 4
    log = (tmp_path / "log1").read_text()
    assert "HBM and DRAM hold it 2 times, NVMe once" in log
    assert "not usable" not in log, "every page that was read was right"
