"""How many bytes of KV a token takes on a server, and how many blocks of a trace fit into a number of bytes.

Owns the presets. The law: a rank of a tensor-parallel group of ``tp`` holds ``kv_heads / tp`` heads, and at least one:
where there are fewer heads than ranks they are there several times. A latent (MLA) has no heads and is on every rank
in full. **A size that a user gives is that of the whole server, the sum over its ranks**, and so are the bytes of a
token here.

Where it is wrong: layers with a sliding window, of which a server may keep less, are counted in full; scales of a
quantised cache are not counted. Pure; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radixtier.footprint import slots_for
from radixtier.tools.breakeven import _ITEM_BYTES as ITEM_BYTES
from radixtier.tools.breakeven import DEFAULT_KV_BYTES, kv_bytes_of
from radixtier.units import BadValue


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


@dataclass(frozen=True)
class Geometry:
    """Bytes of a token on a server.

    Attributes
    ----------
    bytes_per_token : int
        Of all layers, on all ranks together.
    tp : int
        Ranks that share a page.
    """

    bytes_per_token: int = DEFAULT_KV_BYTES
    tp: int = 1

    @classmethod
    def of(cls, attention: Attention, tp: int = 1) -> Geometry:
        """Geometry of a model on ``tp`` ranks."""
        return cls(attention.rank_bytes(tp) * tp, tp)

    def blocks(self, nbytes: int, block_tokens: int, *, nvme: bool = False) -> int:
        """Return how many blocks fit.

        Parameters
        ----------
        nbytes
            Of the whole server.
        block_tokens
            Tokens of a block.
        nvme
            Whether they lie in a store: each rank has its own, rounds what it has of a block up to 4 KiB and keeps a
            journal. A block is taken for a page; a server whose pages are smaller loses more.
        """
        if not nvme:
            return nbytes // (self.bytes_per_token * block_tokens)
        return slots_for(nbytes // self.tp, -(-self.bytes_per_token * block_tokens // self.tp), block_tokens)


PRESETS = {
    "deepseek-v3": Attention(61, 0, 0, latent=512 + 64),
    "gpt-oss-20b": Attention(24, 8, 64),
    "gpt-oss-120b": Attention(36, 8, 64),
    "llama-3.1-8b": Attention(32, 8, 128),
    "llama-3.1-70b": Attention(80, 8, 128),
    "llama-3.3-70b": Attention(80, 8, 128),
    "mistral-7b": Attention(32, 8, 128),
    "mixtral-8x7b": Attention(32, 8, 128),
    "qwen2.5-7b": Attention(28, 4, 128),
    "qwen2.5-32b": Attention(64, 8, 128),
    "qwen2.5-72b": Attention(80, 8, 128),
    "qwen3-8b": Attention(36, 8, 128),
    "qwen3-14b": Attention(40, 8, 128),
    "qwen3-32b": Attention(64, 8, 128),
    "qwen3-30b-a3b": Attention(48, 4, 128),
    "qwen3-235b-a22b": Attention(94, 4, 128),
    "smollm2-135m": Attention(30, 3, 64),
}
"""Common models by name, in bfloat16."""


def preset(name: str, dtype: str | None = None) -> Attention:
    """Look a model up; ``dtype`` is one of :data:`radixtier.tools.breakeven.DTYPES`."""
    if name not in PRESETS:
        raise BadValue(f"no preset {name}", f"Choose one of {', '.join(PRESETS)}, or give --model-config FILE")
    attention = PRESETS[name]
    return attention if dtype is None else replace(attention, dtype_bytes=ITEM_BYTES[dtype])


def from_config(path: Path, dtype: str | None = None) -> Attention:
    """Read a model's ``config.json``.

    Parameters
    ----------
    path
        The file, or the directory that it lies in.
    dtype
        One of :data:`radixtier.tools.breakeven.DTYPES`; what the file says by default.

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
        layers = int(model["num_hidden_layers"])
        if "kv_lora_rank" in model:
            latent = int(model["kv_lora_rank"]) + int(model["qk_rope_head_dim"])
            name = dtype or model.get("dtype") or model.get("torch_dtype") or content.get("torch_dtype") or "bfloat16"
            found = Attention(layers, 0, 0, ITEM_BYTES[name], latent)
        else:
            heads = int(model.get("num_key_value_heads") or model["num_attention_heads"])
            # Elements of one byte, so that the width of a head is in bytes.
            found = Attention(layers, heads, kv_bytes_of(file, dtype) // (2 * layers * heads), dtype_bytes=1)
        if found.rank_bytes() < 1:
            raise ValueError("a token of no bytes")
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError, RecursionError) as error:
        if "--kv-bytes-per-token" in str(error):
            raise
        raise ValueError(f"{file} does not tell ({error!s}): give --kv-bytes-per-token") from error
    return found
