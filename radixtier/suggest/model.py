"""What a model needs and what it is, from the files of its directory.

Owns the reading of ``config.json`` for two questions: how many bytes of KV a token takes on a device, and whether the
tier refuses the model for certain. Invariant: no weights are read and nothing is downloaded. The server has the last
word: what is not known here, it checks at start. Any thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.tools.attention import ITEM_BYTES, from_config

SLIDING = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "GptOssForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
        "Step3p5ForCausalLM",
    }
)
"""Architectures whose sliding-window layers SGLang gives a pool of their own; others it may treat as full attention."""

STATES = frozenset({"mamba", "mamba2", "linear_attention", "conv"})
"""Kinds of layers, as ``layer_types`` names them, that keep a state instead of KV."""

SPARSE = ("index_topk", "indexer_n_heads", "sparse_attention_config")
"""Keys of models whose sparse attention keeps an index beside the KV: DeepSeek V3.2's, Qwen's, MiniMax M3's."""

WITHOUT = "Serve it without --enable-radix-tier"


class Refused(NamedTuple):
    """Why the tier does not serve a model, and what to do."""

    why: str
    fix: str = WITHOUT


class Model(NamedTuple):
    """A model, as far as its files tell.

    Attributes
    ----------
    path : str
        As it was given.
    kv_bytes : int
        KV of one token, all layers, K and V.
    told_by : str
        Where that comes from, for a reader.
    weights : int or None
        Bytes of its weights on the device; None where they are not here.
    refused : Refused or None
        Why the tier refuses it, if that is certain.
    checked : bool
        Whether there was a config.json to tell.
    heads, kv_heads : int or None
        Of attention; None where they are not told.
    latent : bool
        Whether KV is a latent (MLA), of which every rank has all, and which is stored once.
    """

    path: str
    kv_bytes: int
    told_by: str
    weights: int | None = None
    refused: Refused | None = None
    checked: bool = True
    heads: int | None = None
    kv_heads: int | None = None
    latent: bool = False

    def splits(self, ranks: int) -> bool:
        """Whether the heads can be split over so many tensor parallel ranks."""
        if self.heads is None or self.kv_heads is None:
            return True
        return self.heads % ranks == 0 and (self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0)

    def rank_bytes(self, ranks: int) -> int:
        """Return the KV of one token on one of so many ranks; each has at least one head, as others may, too."""
        if self.kv_heads is None:
            return -(-self.kv_bytes // ranks)
        return -(-self.kv_bytes // self.kv_heads) * max(1, self.kv_heads // ranks)


def read_model(path: str, *, cpu: bool, kv_dtype: str | None = None, kv_bytes: int | None = None) -> Model:
    """Read a model's directory.

    Parameters
    ----------
    path : str
        A directory, or a name that only the server can look up: then `kv_bytes` must be given.
    cpu : bool
        Whether it will run on a CPU, where SGLang is started with float32.
    kv_dtype : str or None
        One of :data:`radixtier.tools.attention.DTYPES`, as it will be given to the server.
    kv_bytes : int or None
        KV of one token, where the caller knows it.

    Raises
    ------
    OSError
        When ``config.json`` cannot be read.
    ValueError
        When nothing tells the KV of a token; the message names the flag to use.
    """
    file = Path(path) / "config.json"
    if not file.is_file():
        if kv_bytes is None:
            raise ValueError(f"--model-path {path}: no config.json here that tells its KV: give --kv-bytes-per-token")
        return Model(path, kv_bytes, "as given", checked=False)
    config = _load(file)
    if refused := refusal(config):
        return Model(path, kv_bytes or 0, "as given", refused=refused)
    dtype = kv_dtype or _kv_dtype(config, file.parent, cpu)
    weights, heads = _weights(file.parent, config, cpu), _heads(_text(config))
    latent = _text(config).get("kv_lora_rank") is not None
    if kv_bytes is not None:
        kv_heads = 1 if latent else None
        return Model(path, kv_bytes, "as given", weights, heads=heads, kv_heads=kv_heads, latent=latent)
    found = from_config(file, dtype)
    each = f"{found.kv_heads} KV heads of {found.head_dim}"
    rows = each if found.latent is None else f"a latent and rotary key of {found.latent}"
    told = f"{found.layers} layers, {rows}, {dtype}"
    kv_heads = 1 if latent else found.kv_heads
    return Model(path, found.rank_bytes(), told, weights, heads=heads, kv_heads=kv_heads, latent=latent)


def refusal(config: dict[str, Any]) -> Refused | None:
    """Say why the tier refuses a model, from the content of its ``config.json``; None unless that is certain."""
    text = _text(config)
    names = config.get("architectures") or []
    if config.get("is_encoder_decoder") or "MllamaForConditionalGeneration" in names:
        return Refused("the KV of its encoder is not a prefix of tokens")
    if _has_state(text):
        return Refused("its Mamba or linear-attention layers keep a state that pages do not hold")
    if any(text.get(key) is not None for key in SPARSE):
        why = "its sparse attention keeps an index beside the KV, in a pool that does not move with the pages yet"
        return Refused(why)
    if SLIDING.intersection(names) or text.get("is_hybrid_swa"):
        fix = f"{WITHOUT}, or try --disable-hybrid-swa-memory"
        return Refused("its sliding-window layers keep KV in a pool of their own", fix)
    width = text.get("head_dim") if text.get("kv_lora_rank") is None else None
    if width and text.get("v_head_dim") not in (None, width):
        return Refused("its K and V rows differ in width, and then live in two buffers")
    return None


def _has_state(text: dict[str, Any]) -> bool:
    kinds = text.get("layer_types")
    if kinds:
        return bool(STATES.intersection(kinds))
    if "M" in (text.get("hybrid_override_pattern") or "") or text.get("linear_attn_config"):
        return True
    return text.get("model_type") in STATES or any(key.startswith(("mamba_", "ssm_")) for key in text)


def _heads(text: dict[str, Any]) -> int | None:
    heads = text.get("num_attention_heads")
    return heads if isinstance(heads, int) else None


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}): download the model again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object: download the model again")
    return content


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part that describes the language model."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _dtype(config: dict[str, Any]) -> str:
    text = _text(config)
    named = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return str(named or "float32")


def _kv_dtype(config: dict[str, Any], directory: Path, cpu: bool) -> str:
    """Return the element type of KV as SGLang would choose it."""
    quantization = config.get("quantization_config") or {}
    extra = directory / "hf_quant_config.json"
    if not quantization and extra.is_file():
        quantization = _load(extra).get("quantization") or {}
    if str(quantization.get("kv_cache_quant_algo")).upper() == "FP8":
        return "fp8_e4m3"
    if cpu:
        return "float32"
    named = _dtype(config)
    # SGLang serves float32 checkpoints, and those that do not say, in half precision.
    return "float16" if named == "float32" else named


def _weights(directory: Path, config: dict[str, Any], cpu: bool) -> int | None:
    """Return the bytes that the weights take on the device; quantized ones are taken as they are on disk."""
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    on_disk = sum(file.stat().st_size for file in files)
    if not on_disk:
        return None
    if config.get("quantization_config"):
        return on_disk
    return on_disk * (4 if cpu else 2) // ITEM_BYTES.get(_dtype(config), 2)
