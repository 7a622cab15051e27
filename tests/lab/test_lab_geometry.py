"""Bytes of a token on a server, and blocks that fit into bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.footprint import footprint, slots_for
from radixtier.lab.geometry import PRESETS, Geometry, preset
from radixtier.tools.attention import Attention, from_config
from radixtier.tools.breakeven import DEFAULT_KV_BYTES, kv_bytes_of
from radixtier.units import BadValue


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-3.1-8b", 128),
        ("llama-3.3-70b", 320),
        ("mixtral-8x7b", 128),
        ("qwen2.5-7b", 56),
        ("qwen3-8b", 144),
        ("qwen3-30b-a3b", 96),
        ("qwen3-235b-a22b", 188),
        ("gpt-oss-120b", 72),
        ("deepseek-v3", 68.625),
        ("smollm2-135m", 22.5),
    ],
)
def test_presets_in_bfloat16(name: str, kib: float) -> None:
    assert Geometry.of(preset(name)).bytes_per_token == kib * 1024
    assert Geometry.of(preset(name, "float32")).bytes_per_token == 2 * kib * 1024
    assert Geometry.of(preset(name, "fp8_e4m3")).bytes_per_token == kib * 512


def test_every_preset_runs_on_one_rank_and_the_default_is_one_of_them() -> None:
    assert all(attention.rank_bytes() > 0 for attention in PRESETS.values())
    assert Geometry().bytes_per_token == DEFAULT_KV_BYTES == PRESETS["llama-3.1-8b"].rank_bytes()


@pytest.mark.parametrize(("tp", "per_rank"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_heads_are_shared_until_there_is_one_per_rank(tp: int, per_rank: int) -> None:
    attention = Attention(layers=3, kv_heads=8, head_dim=10)
    assert attention.rank_bytes(tp) == 2 * 3 * per_rank * 10 * 2
    assert Geometry.of(attention, tp) == Geometry(attention.rank_bytes(tp) * tp, tp)


def test_a_latent_is_on_every_rank_in_full() -> None:
    attention = Attention(layers=3, kv_heads=0, head_dim=0, latent=10)
    assert [Geometry.of(attention, tp).bytes_per_token for tp in (1, 8)] == [60, 480]


def test_a_latent_is_stored_once() -> None:
    attention = PRESETS["deepseek-v2-lite"]
    one, eight = (Geometry.of(attention, tp).blocks(1 << 36, 64, nvme=True) for tp in (1, 8))
    assert one == eight
    one, eight = (Geometry.of(attention, tp).blocks(1 << 36, 64) for tp in (1, 8))
    assert one // 8 == eight, "and in memory on every rank"


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(BadValue, match=r"8 KV heads cannot be shared evenly by 3 ranks. Give --tp a divisor"):
        Attention(3, 8, 10).rank_bytes(3)


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 20), st.sampled_from([1, 2, 8]), st.integers(1, 512))
def test_blocks_fit_and_one_more_would_not(nbytes: int, per_token: int, tp: int, block_tokens: int) -> None:
    geometry = Geometry(per_token, tp)
    held = geometry.blocks(nbytes, block_tokens)
    assert held * per_token * block_tokens <= nbytes < (held + 1) * per_token * block_tokens
    stored = geometry.blocks(nbytes, block_tokens, nvme=True)
    page = -(-per_token * block_tokens // tp)
    assert stored == slots_for(nbytes // tp, page, block_tokens) <= held
    assert tp * footprint(stored, page, block_tokens) <= nbytes


GROUPED = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
LATENT = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def write(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.mark.parametrize("change", [{}, {"head_dim": 20}, {"dtype": "float32"}, {"num_key_value_heads": None}])
@pytest.mark.parametrize("dtype", [None, "fp8_e4m3", "float32"])
def test_a_config_tells_what_the_doctor_reads_in_it(tmp_path: Path, change: Any, dtype: str | None) -> None:
    file = write(tmp_path, GROUPED | change)
    attention = from_config(tmp_path, dtype)
    assert attention == from_config(file, dtype)
    assert attention.rank_bytes() == kv_bytes_of(file, dtype)
    heads = 8 if "num_key_value_heads" in change else 2
    assert attention.rank_bytes(16) * heads == kv_bytes_of(file, dtype), "one head a rank"


def test_a_config_with_a_latent(tmp_path: Path) -> None:
    assert from_config(write(tmp_path, LATENT)) == PRESETS["deepseek-v3"]
    nested = write(tmp_path, {"text_config": LATENT, "torch_dtype": "float32"})
    assert from_config(nested).rank_bytes() == 2 * PRESETS["deepseek-v3"].rank_bytes()
    assert from_config(nested, "fp8_e5m2").rank_bytes() == 61 * 576


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "nonsense",
        "[" * 100_000,
        {},
        LATENT | {"qk_rope_head_dim": None},
        LATENT | {"dtype": "int3"},
        GROUPED | {"num_attention_heads": 0, "num_key_value_heads": 0},
        GROUPED | {"num_hidden_layers": 0},
        GROUPED | {"num_hidden_layers": -4},
        GROUPED | {"num_hidden_layers": "many"},
        GROUPED | {"dtype": "int3"},
    ],
)
def test_a_config_that_does_not_tell_is_named_with_the_flag_to_use(tmp_path: Path, content: Any) -> None:
    file = write(tmp_path, content)
    with pytest.raises(ValueError, match=rf"^{file} does not tell \(.*\): give --kv-bytes-per-token$"):
        from_config(file)


def test_a_preset_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BadValue, match=r"no preset gpt-7. Choose one of .*qwen3-8b"):
        preset("gpt-7")
