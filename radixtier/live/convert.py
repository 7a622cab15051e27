"""Turns a llama GGUF file into a float32 Hugging Face model directory.

Owns the mapping of names, shapes and tokenizer data between the two formats. Invariant: the directory describes
the same function as the GGUF does, up to the rounding that its quantisation already lost. Pure file work: any
thread may call it. Needs `gguf`, `numpy` and `safetensors`, imported on first use, never torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def hf_tensor_name(gguf_name: str) -> str:
    """Name a tensor the way Hugging Face's Llama does.

    Parameters
    ----------
    gguf_name
        For example ``blk.3.attn_q.weight``.

    Raises
    ------
    ValueError
        For a tensor that a llama GGUF is not known to have.
    """
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{int(parts[1])}.{_BLOCK_NAMES[parts[2]]}.{kind}"
    raise ValueError(f"unknown tensor {gguf_name!r} in the GGUF file: only llama models can be converted")


def interleave_rope_rows(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Permute the rows of a q or k projection as a llama GGUF stores them.

    GGUF rotates neighbouring rows (2i, 2i+1), Hugging Face rotates the two halves (i, i + d/2).

    Parameters
    ----------
    weight
        ``[heads * head_dim, hidden]``.
    heads
        Query heads for q, KV heads for k.
    """
    rows, hidden = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, hidden)
    return halves.swapaxes(1, 2).reshape(rows, hidden)


def restore_rope_rows(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo :func:`interleave_rope_rows`: rows come back in the order Hugging Face expects."""
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)


def convert_llama_gguf(source: Path, target: Path) -> None:
    """Write config, tokenizer, chat template and float32 weights of a llama GGUF.

    Parameters
    ----------
    source
        The GGUF file, any quantisation that the `gguf` package can undo.
    target
        An existing, empty directory.

    Raises
    ------
    ValueError
        The file holds another architecture, or tensors a llama model does not have.
    ImportError
        `gguf` or `safetensors` is missing; the extra ``radixtier[demo]`` brings both.
    """
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ValueError(f"{source.name} holds a {fields['general.architecture']!r} model, expected 'llama'")
    heads = {
        "attn_q": int(fields["llama.attention.head_count"]),
        "attn_k": int(fields["llama.attention.head_count_kv"]),
    }
    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = restore_rope_rows(values, heads[kind])
        weights[hf_tensor_name(tensor.name)] = np.ascontiguousarray(values)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = _config(fields, tied="lm_head.weight" not in weights)
    write_json(target / "config.json", config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(target / "generation_config.json", {name: config[name] for name in special})
    _write_tokenizer(fields, target)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, UTF-8, with a final newline."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def llama_config(
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    context: int,
    rope_theta: float,
    eps: float,
    tied: bool,
    bos: int,
    eos: int,
    pad: int,
) -> dict[str, Any]:
    """Build the ``config.json`` of a float32 Hugging Face Llama; every size is in elements or tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rope_theta": rope_theta,
        "rms_norm_eps": eps,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }


def byte_level_tokenizer(
    vocab: dict[str, int], merges: list[str], special: list[str], *, split_digits: bool
) -> dict[str, Any]:
    """Build the ``tokenizer.json`` of a byte-level BPE.

    Parameters
    ----------
    vocab
        Token text (bytes written in GPT-2's printable alphabet) to id.
    merges
        Pairs ``"left right"``, best first.
    special
        Tokens of `vocab` that text is cut at before BPE and that decoding may skip.
    split_digits
        Every digit is a token of its own, as in SmolLM.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if split_digits else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def tokenizer_config(bos: str, eos: str, pad: str, context: int, chat_template: str) -> dict[str, Any]:
    """Build the ``tokenizer_config.json`` that goes with :func:`byte_level_tokenizer`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    import numpy as np

    def number(name: str) -> int:
        return int(fields[f"llama.{name}"])

    # GGUF holds a float32: its shortest decimal is the value the model was trained with (1e-05).
    eps = float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"])))
    return llama_config(
        hidden=number("embedding_length"),
        intermediate=number("feed_forward_length"),
        layers=number("block_count"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        head_dim=number("rope.dimension_count"),
        vocab=number("vocab_size"),
        context=number("context_length"),
        rope_theta=float(fields["llama.rope.freq_base"]),
        eps=eps,
        tied=tied,
        bos=int(fields["tokenizer.ggml.bos_token_id"]),
        eos=int(fields["tokenizer.ggml.eos_token_id"]),
        pad=int(fields["tokenizer.ggml.padding_token_id"]),
    )


def _write_tokenizer(fields: dict[str, Any], target: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    model, pre = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if (model, pre) != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer {model}/{pre} is not known, expected gpt2/smollm")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges: list[str] = fields["tokenizer.ggml.merges"]
    write_json(target / "tokenizer.json", byte_level_tokenizer(vocab, merges, special, split_digits=True))
    write_json(
        target / "tokenizer_config.json",
        tokenizer_config(
            bos=tokens[fields["tokenizer.ggml.bos_token_id"]],
            eos=tokens[fields["tokenizer.ggml.eos_token_id"]],
            pad=tokens[fields["tokenizer.ggml.padding_token_id"]],
            context=int(fields["llama.context_length"]),
            chat_template=fields["tokenizer.chat_template"],
        ),
    )
