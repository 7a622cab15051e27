"""A machine to suggest for: nvidia-smi as a script, models of a few bytes, drives with the room a test wants."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

GIB = 2**30

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}
"""128 KiB of KV per token in bfloat16."""


def write_config(directory: Path, base: dict[str, Any] = LLAMA_8B, **fields: Any) -> str:
    """Write a config.json; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**base, **fields}))
    return str(directory)


def write_weights(directory: str, nbytes: int) -> None:
    """Give a model a file of weights that takes no room on disk."""
    with open(Path(directory) / "model.safetensors", "wb") as file:
        file.truncate(nbytes)


def smi_row(number: int, name: str = "NVIDIA H100 80GB HBM3", memory: object = 81559, used: int = 4) -> str:
    """One line of nvidia-smi's answer, memory in MiB."""
    return f"{number}, GPU-{number:08x}-0000, {name}, {memory}, {used}, Disabled"


def write_smi(directory: Path, *rows: str, status: int = 0, error: str = "") -> str:
    """Write an nvidia-smi that answers with these rows; returns a PATH that finds it first."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "nvidia-smi"
    told = "\n".join(rows)
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\necho '{error}' >&2\nexit {status}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"
