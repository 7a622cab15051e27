"""What a model's files tell: KV of a token, bytes of weights, and kinds that the tier refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suggest_rig import LLAMA_8B, write_config, write_weights

from radixtier.suggest.model import read_model, refusal

LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 192, "v_head_dim": 128}

PER_TOKEN = 2 * 32 * 8 * 128
"""Elements of K and V of one token."""


@pytest.mark.parametrize(
    ("fields", "options", "nbytes"),
    [
        ({}, {"cpu": False}, 2),
        ({}, {"cpu": True}, 4),
        ({}, {"cpu": False, "kv_dtype": "fp8_e4m3"}, 1),
        ({"torch_dtype": "float32"}, {"cpu": False}, 2),
        ({"torch_dtype": None}, {"cpu": False}, 2),
        ({"torch_dtype": None, "dtype": "float16"}, {"cpu": False}, 2),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, {"cpu": False}, 1),
        ({"quantization_config": {"quant_method": "awq"}}, {"cpu": False}, 2),
    ],
)
def test_kv_of_a_token(tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], nbytes: int) -> None:
    model = read_model(write_config(tmp_path, **fields), **options)
    assert model.kv_bytes == PER_TOKEN * nbytes
    assert model.told_by.startswith("32 layers, 8 KV heads of 128, ")


@pytest.mark.parametrize(("cpu", "nbytes"), [(False, 2), (True, 4)])
def test_kv_of_a_token_with_a_latent(tmp_path: Path, cpu: bool, nbytes: int) -> None:
    model = read_model(write_config(tmp_path, **LATENT), cpu=cpu)
    assert model.kv_bytes == 32 * (512 + 64) * nbytes
    assert model.told_by.startswith("32 layers, a latent and rotary key of 576, ")
    given = read_model(write_config(tmp_path, **LATENT), cpu=cpu, kv_bytes=77)
    assert model.latent and given.latent and [given.rank_bytes(ranks) for ranks in (1, 4)] == [77, 77]


def test_kv_of_a_checkpoint_that_says_so_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')
    assert read_model(path, cpu=False).kv_bytes == PER_TOKEN


def test_what_is_given_wins(tmp_path: Path) -> None:
    model = read_model(write_config(tmp_path), cpu=False, kv_bytes=77)
    assert (model.kv_bytes, model.told_by) == (77, "as given")


@pytest.mark.parametrize(
    ("fields", "cpu", "expected"),
    [
        ({}, False, 1000),
        ({}, True, 2000),
        ({"torch_dtype": "float32"}, False, 500),
        ({"torch_dtype": "float32"}, True, 1000),
        ({"quantization_config": {"quant_method": "awq"}}, True, 1000),
    ],
)
def test_bytes_of_weights_on_the_device(tmp_path: Path, fields: dict[str, Any], cpu: bool, expected: int) -> None:
    path = write_config(tmp_path, **fields)
    assert read_model(path, cpu=cpu).weights is None
    write_weights(path, 1000)
    assert read_model(path, cpu=cpu).weights == expected


def test_a_name_needs_the_size() -> None:
    with pytest.raises(ValueError, match=r"--model-path org/model: no config.json here .* give --kv-bytes-per-token"):
        read_model("org/model", cpu=False)
    model = read_model("org/model", cpu=False, kv_bytes=131072)
    assert (model.kv_bytes, model.checked, model.weights) == (131072, False, None)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"num_hidden_layers": 2}'])
def test_a_config_that_does_not_tell(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_model(str(tmp_path), cpu=False)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({**LATENT, "index_topk": 2048}, "sparse"),
        ({"text_config": {"indexer_n_heads": 4}}, "sparse"),
        ({"sparse_attention_config": {"sparse_index_dim": 64}}, "sparse"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "Mamba"),
        ({"model_type": "falcon_h1", "mamba_d_state": 256}, "Mamba"),
        ({"hybrid_override_pattern": "M-M*"}, "Mamba"),
        ({"model_type": "mamba2"}, "Mamba"),
        ({"architectures": ["GptOssForCausalLM"]}, "sliding-window"),
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"head_dim": 192, "v_head_dim": 128}, "differ in width"),
    ],
)
def test_what_the_tier_refuses(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    refused = refusal({**LLAMA_8B, **fields})
    assert refused is not None and why in refused.why and "--enable-radix-tier" in refused.fix
    assert read_model(write_config(tmp_path, **fields), cpu=False).refused == refused


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kv_lora_rank": None},
        LATENT,
        {"index_topk": None, "sparse_attention_config": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
        {"mamba_d_state": 256, "layer_types": ["attention", "attention"]},
        {"hybrid_override_pattern": "*-*-"},
        {"head_dim": 128, "v_head_dim": 128},
        {"architectures": None},
    ],
)
def test_what_is_not_certain_is_left_to_the_server(fields: dict[str, Any]) -> None:
    assert refusal({**LLAMA_8B, **fields}) is None
