"""SGLang's server arguments in one process: hooked by the plugin, resolved without loading a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""2 layers, 2 KV heads of 16: 512 bytes of float32 KV per token."""

MLA = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 32,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
"""What makes a DeepSeek-V2 of it: 2 layers, 48 elements, 384 bytes of float32 KV per token."""

VISION = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "patch_size": 14},
}
"""What makes a Qwen2-VL of it, with the same KV per token."""

CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"]


def write_model(directory: Path, **fields: Any) -> str:
    """Write a config.json; enough for SGLang to resolve arguments."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    return str(directory)


def command_line(model: str, *flags: str) -> Any:
    """Return server arguments as ``sglang serve`` would have them before it launches anything."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    return prepare_server_args(["--model-path", model, "--skip-tokenizer-init", *CPU, *flags])


def resolved(model: str, *flags: str) -> Any:
    """Return the view of arguments that were resolved with the tier on; ``record`` is the record itself."""
    from sglang.srt.arg_groups.overrides import resolving_view

    record = command_line(model, "--enable-radix-tier", *flags)
    record.resolve_once()
    return resolving_view(record)
