"""Variants of the tiny model whose attention is of another family, for tests that need a real server.

Owns what differs from the tiny Llama: norms on queries and keys (Qwen3), and a latent in place of keys and values
(DeepSeek-V2). Invariant: as of `tiny`. Any thread may call it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixtier.live.convert import write_json
from radixtier.live.tiny import QK_GAIN, make_tiny_model, random_matrix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]

LATENT, ROPE, NOPE, VALUE = 32, 16, 16, 16
"""Elements of the latent and of the rotary key; per head of the rest of the key and of the value."""


def make_tiny_qwen(path: Path | str, seed: int = 0) -> Path:
    """Write a random-weight Qwen3: GQA with a norm on every query and key. KV as of the tiny Llama."""
    import numpy as np

    target = make_tiny_model(path, seed=seed)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}

    def norms(config: dict[str, Any]) -> Weights:
        gain = np.full(config["head_dim"], QK_GAIN, dtype=np.float32)
        return {"self_attn.q_norm.weight": gain, "self_attn.k_norm.weight": gain}

    return _change(target, config, norms)


def make_tiny_deepseek(path: Path | str, seed: int = 0) -> Path:
    """Write a random-weight DeepSeek-V2 without experts. KV takes ``layers * (LATENT + ROPE)`` elements per token."""
    import numpy as np

    target = make_tiny_model(path, seed=seed)
    random = np.random.default_rng(seed + 1)
    shape = json.loads((target / "config.json").read_text())
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": shape["num_attention_heads"],
        "head_dim": NOPE + ROPE,
        "q_lora_rank": None,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROPE,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": VALUE,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "moe_layer_freq": 1,
        # The experts would begin behind the last layer.
        "first_k_dense_replace": shape["num_hidden_layers"],
        # The only kind of rotary embedding that SGLang has for this model on a CPU.
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": shape["max_position_embeddings"] // 2,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }

    def latent(config: dict[str, Any]) -> Weights:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return {
            "self_attn.q_proj.weight": random_matrix(random, heads * (NOPE + ROPE), hidden, QK_GAIN),
            "self_attn.kv_a_proj_with_mqa.weight": random_matrix(random, LATENT + ROPE, hidden, QK_GAIN),
            "self_attn.kv_a_layernorm.weight": np.ones(LATENT, dtype=np.float32),
            "self_attn.kv_b_proj.weight": random_matrix(random, heads * (NOPE + VALUE), LATENT),
            "self_attn.o_proj.weight": random_matrix(random, hidden, heads * VALUE, 2.0),
        }

    return _change(target, config, latent, without=("self_attn.k_proj.weight", "self_attn.v_proj.weight"))


def _change(
    target: Path,
    config: dict[str, Any],
    weights_of_a_layer: Callable[[dict[str, Any]], Weights],
    without: tuple[str, ...] = (),
) -> Path:
    """Replace fields of the config and weights of every layer of a model that was written before."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((target / "config.json").read_text()) | config
    weights = load_file(target / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {prefix + name: values for name, values in weights_of_a_layer(config).items()}
        for name in without:
            del weights[prefix + name]
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    write_json(target / "config.json", config)
    return target
