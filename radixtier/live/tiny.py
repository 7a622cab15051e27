"""Makes a Llama-like model of a few hundred kilobytes, with random weights, for tests that need a real server.

Owns the recipe. Invariant: same arguments, same bytes. The model says nothing sensible, but its next token depends on
the whole prefix, so a test that compares greedy outputs sees a wrong page of KV. Any thread may call it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from radixtier.live.convert import byte_level_tokenizer, llama_config, tokenizer_config, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Scores q.k / sqrt(d) get a deviation of GAIN ** 2: attention that picks few of thousands of tokens, so that
# averaging does not wash the prefix out.
QK_GAIN = 2.0


def make_tiny_model(
    path: Path | str,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    context: int = 8192,
    seed: int = 0,
) -> Path:
    """Write a random-weight Llama with a byte-level tokenizer (one token per byte).

    Parameters
    ----------
    path
        Directory to create or to fill; files of the same names are overwritten.
    layers, hidden, heads, kv_heads, head_dim
        Shape of the model; `heads` must be a multiple of `kv_heads` and `head_dim` even. KV takes
        ``2 * layers * kv_heads * head_dim * 4`` bytes per token in float32. Tensor parallel ranks get
        ``heads / ranks`` heads each and as many KV heads, but at least one.
    context
        Tokens of context.
    seed
        Seeds the weights.

    Returns
    -------
    Path
        `path`, ready for ``--model-path``.
    """
    from safetensors.numpy import save_file

    if heads % kv_heads or head_dim % 2:
        raise ValueError(f"heads={heads} must be a multiple of kv_heads={kv_heads}, head_dim={head_dim} even")
    target = Path(path)
    target.mkdir(parents=True, exist_ok=True)
    vocab = {token: index for index, token in enumerate([*_SPECIAL, *_byte_alphabet()])}
    config = llama_config(
        hidden=hidden,
        intermediate=2 * hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=-(-len(vocab) // 64) * 64,
        context=context,
        rope_theta=10000.0,
        eps=1e-5,
        tied=False,
        bos=vocab["<|im_start|>"],
        eos=vocab["<|im_end|>"],
        pad=vocab["<|endoftext|>"],
    )
    save_file(_weights(config, seed), target / "model.safetensors", metadata={"format": "pt"})
    write_json(target / "config.json", config)
    write_json(target / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    write_json(target / "tokenizer.json", byte_level_tokenizer(vocab, [], list(_SPECIAL), split_digits=False))
    write_json(
        target / "tokenizer_config.json",
        tokenizer_config("<|im_start|>", "<|im_end|>", "<|endoftext|>", context, _CHAT_TEMPLATE),
    )
    return target


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the bytes 0..255: printable Latin-1 as it is, the rest from U+0100 on."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def random_matrix(random: np.random.Generator, rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
    """Return weights that turn inputs of deviation 1 into outputs of deviation `gain`."""
    import numpy as np

    values = random.standard_normal((rows, columns), dtype=np.float32)
    values *= gain / columns**0.5
    return values


def _weights(config: dict[str, int], seed: int) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]

    matrix = partial(random_matrix, random)
    ones = np.ones(hidden, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": random.standard_normal((vocab, hidden), dtype=np.float32),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab, hidden, 3.0),
    }
    for layer in range(config["num_hidden_layers"]):
        weights |= {
            f"model.layers.{layer}.{name}.weight": values
            for name, values in (
                ("input_layernorm", ones),
                ("self_attn.q_proj", matrix(q_rows, hidden, QK_GAIN)),
                ("self_attn.k_proj", matrix(kv_rows, hidden, QK_GAIN)),
                ("self_attn.v_proj", matrix(kv_rows, hidden)),
                ("self_attn.o_proj", matrix(hidden, q_rows, 2.0)),
                ("post_attention_layernorm", ones),
                ("mlp.gate_proj", matrix(inner, hidden)),
                ("mlp.up_proj", matrix(inner, hidden)),
                ("mlp.down_proj", matrix(hidden, inner)),
            )
        }
    return weights
