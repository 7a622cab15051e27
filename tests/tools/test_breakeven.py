"""The break-even law, and the KV size that goes into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixtier.tools.breakeven import START_S, break_even, kv_bytes_of

LLAMA = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(("bandwidth", "rate"), [(5e9, 5000.0), (1e9, 350.0), (2e8, 1000.0)])
def test_from_there_on_reading_is_faster_and_not_before(bandwidth: float, rate: float) -> None:
    kv_bytes = 128 << 10
    found = break_even(bandwidth, rate, kv_bytes, (4096,))
    assert found.tokens is not None
    read = [START_S + n * kv_bytes / bandwidth for n in (found.tokens - 1, found.tokens)]
    compute = [n / rate for n in (found.tokens - 1, found.tokens)]
    assert read[0] >= compute[0] and read[1] < compute[1]
    assert found.read_s == {4096: START_S + 4096 * kv_bytes / bandwidth}
    assert found.compute_s == {4096: 4096 / rate}


def test_a_slow_drive_never_pays() -> None:
    assert break_even(1e8, 5000.0, 128 << 10, ()).tokens is None


@pytest.mark.parametrize(
    ("change", "dtype", "expected"),
    [
        ({}, None, 131072),
        ({}, "fp8_e4m3", 65536),
        ({"torch_dtype": None, "dtype": "float32"}, None, 262144),
        ({"num_key_value_heads": None}, None, 4 * 131072),
        ({"head_dim": 256}, None, 2 * 131072),
    ],
)
def test_kv_bytes_of_a_model(tmp_path: Path, change: dict[str, Any], dtype: str | None, expected: int) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, **change}))
    assert kv_bytes_of(file, dtype) == expected
    assert kv_bytes_of(tmp_path, dtype) == expected
    file.write_text(json.dumps({"text_config": {**LLAMA, **change}, "model_type": "wrapper"}))
    assert kv_bytes_of(file, dtype) == expected


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", json.dumps({**LLAMA, "kv_lora_rank": 512})])
def test_a_file_that_does_not_tell_names_the_flag(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="--kv-bytes-per-token"):
        kv_bytes_of(file)
