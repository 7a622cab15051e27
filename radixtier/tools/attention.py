"""What a model keeps of a token, from its ``config.json``.

Owns the reading of that file. The law: a rank of a tensor-parallel group of ``tp`` holds ``kv_heads / tp`` heads, and
at least one: where there are fewer heads than ranks they are there several times. A latent (MLA) has no heads and is on
every rank in full. Where it is wrong: layers with a sliding window, of which a server may keep less, are counted in
full; scales of a quantised cache are not counted. Pure; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radixtier.units import BadValue

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
DTYPES = tuple(ITEM_BYTES)


@dataclass(frozen=True)
class Attention:
    """What a model keeps of a token.

    Attributes
    ----------
    layers, kv_heads, head_dim : int
        With a K and a V per head.
    dtype_bytes : int
        Of an element.
    latent : int or None
        Elements per layer that a model with latent attention (MLA) keeps instead of K and V: the latent and the part
        of the key that carries the position.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    latent: int | None = None

    def of_dtype(self, name: str | None) -> Attention:
        """Return the same in another of :data:`DTYPES`; None for this one."""
        return self if name is None else replace(self, dtype_bytes=ITEM_BYTES[name])

    def rank_bytes(self, tp: int = 1) -> int:
        """Return the bytes of a token on one rank of ``tp``.

        Raises
        ------
        BadValue
            When the heads cannot be shared evenly.
        """
        if self.latent is not None:
            return self.layers * self.latent * self.dtype_bytes
        if self.kv_heads % tp and tp % self.kv_heads:
            raise BadValue(
                f"{self.kv_heads} KV heads cannot be shared evenly by {tp} ranks",
                f"Give --tp a divisor or a multiple of {self.kv_heads}",
            )
        return 2 * self.layers * max(1, self.kv_heads // tp) * self.head_dim * self.dtype_bytes


def from_config(path: Path, dtype: str | None = None) -> Attention:
    """Read a model's ``config.json``.

    Parameters
    ----------
    path
        The file, or the directory that it lies in.
    dtype
        One of :data:`DTYPES`; what the file says by default.

    Raises
    ------
    OSError
        When the file cannot be read.
    ValueError
        When it does not tell; the message names the file and the flag to use instead.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        model = content.get("text_config") or content
        name = dtype or model.get("dtype") or model.get("torch_dtype") or content.get("torch_dtype") or "bfloat16"
        layers, nbytes = int(model["num_hidden_layers"]), ITEM_BYTES[name]
        if model.get("kv_lora_rank") is not None:
            found = Attention(layers, 0, 0, nbytes, int(model["kv_lora_rank"]) + int(model["qk_rope_head_dim"]))
        else:
            heads = model["num_attention_heads"]
            width = model.get("head_dim") or model["hidden_size"] // heads
            found = Attention(layers, int(model.get("num_key_value_heads") or heads), int(width), nbytes)
        if found.rank_bytes() < 1:
            raise ValueError("a token of no bytes")
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"{file} does not tell ({error!s}): give --kv-bytes-per-token") from error
    return found
