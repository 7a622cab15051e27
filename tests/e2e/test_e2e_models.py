"""Real servers of other families of models: what is on every tier gives the outputs of the first time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_rig import ANSWER, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts, tier_flags

from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.live.tiny_kinds import LATENT, ROPE, make_tiny_deepseek, make_tiny_qwen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PAGE_SIZE = 16
LAYERS, ITEM = 2, 4
MODELS = {
    "Qwen3": (make_tiny_qwen, LAYERS * 2 * 2 * 16 * ITEM),
    "DeepSeek-V2": (make_tiny_deepseek, LAYERS * (LATENT + ROPE) * ITEM),
}
"""How to make the model, and its bytes of KV per token."""


def by_transformers(model: Path, prompt: list[int]) -> tuple[int, ...]:
    """Return what transformers answers, greedily, as the client asks for it."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        output = network.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize(("make", "kv_bytes"), MODELS.values(), ids=MODELS)
def test_a_conversation_comes_back_from_every_tier(make: Callable[[Path], Path], kv_bytes: int, tmp_path: Path) -> None:
    store = tmp_path / "nvme"
    store.mkdir()
    model = make(tmp_path / "model")
    with Server("of the test", model, tier_flags(store, PAGE_SIZE), tmp_path / "log") as server:
        server.start(START_TIMEOUT_S)
        tiered = Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), PAGE_SIZE, store)
        batch = prompts(8, seed=21)
        first = tiered.send_all(batch)
        assert [reply.cached for reply in first] == [0] * len(batch)
        assert len({reply.output_ids for reply in first}) == len(batch), "the model looks at its prompt"
        assert first[0].output_ids == by_transformers(model, batch[0])
        again = tiered.send_all(batch)
        assert [reply.output_ids for reply in again] == [reply.output_ids for reply in first]
        assert max(reply.nvme for reply in again) == tiered.most_cached
        # Back over the last few: the very last is in HBM, the others have left it and are still in DRAM.
        back = tiered.send_all(batch[:-5:-1])
        assert [reply.output_ids for reply in back] == [reply.output_ids for reply in first[:-5:-1]]
        assert back[0].hbm == tiered.most_cached
        assert sum(reply.dram for reply in back) > 0

        # The next turn of each, over what came back: the same as computed from the start.
        longer = [[*prompt, *reply.output_ids, *range(10, 42)] for prompt, reply in zip(batch, first, strict=True)]
        turns = tiered.send_all(longer)
        assert sum(reply.nvme for reply in turns) >= tiered.most_cached
        tiered.client.flush()
        fresh = tiered.send_all(longer)
        assert [reply.cached for reply in fresh] == [0] * len(batch)
        assert [reply.output_ids for reply in fresh] == [reply.output_ids for reply in turns]
        assert all(len(reply.output_ids) == ANSWER for reply in fresh)
    assert f"{kv_bytes} bytes per token" in (tmp_path / "log").read_text()
