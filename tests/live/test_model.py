"""Prepared models: a GGUF comes out as the weights that went in, a cached directory is whole or made anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from radixtier.live import convert, model
from radixtier.live.tiny import make_tiny_model

safetensors = pytest.importorskip("safetensors.numpy")


def quiet(line: str) -> None:
    del line


def test_rope_rows_come_back() -> None:
    weight = np.arange(6 * 8 * 5, dtype=np.float32).reshape(6 * 8, 5)
    stored = convert.interleave_rope_rows(weight, 6)
    assert stored[1].tolist() == weight[4].tolist()
    assert np.array_equal(convert.restore_rope_rows(stored, 6), weight)


def test_unknown_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="only llama models"):
        convert.hf_tensor_name("blk.0.ssm_in.weight")


def test_gguf_comes_out_as_the_model_that_went_in(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    original = make_tiny_model(tmp_path / "tiny", layers=2, heads=4, kv_heads=2)
    config = json.loads((original / "config.json").read_text())
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    weights = safetensors.load_file(original / "model.safetensors")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template("{{ messages }}")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = {hf: gguf_name for gguf_name, hf in gguf_names(config["num_hidden_layers"]).items()}
    for name, values in weights.items():
        kind = name.split(".")[-2]
        stored = convert.interleave_rope_rows(values, heads[kind]) if kind in heads else values
        writer.add_tensor(names[name], stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    target = tmp_path / "out"
    target.mkdir()
    convert.convert_llama_gguf(tmp_path / "tiny.gguf", target)
    back = safetensors.load_file(target / "model.safetensors")
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    assert json.loads((target / "config.json").read_text()) == config
    converted = json.loads((target / "tokenizer.json").read_text())
    assert converted["model"]["vocab"] == tokenizer["model"]["vocab"]
    assert converted["added_tokens"] == tokenizer["added_tokens"]
    assert json.loads((target / "tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"


def gguf_names(layers: int) -> dict[str, str]:
    top = ["token_embd.weight", "output_norm.weight", "output.weight"]
    kinds = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    names = top + [f"blk.{layer}.{kind}.weight" for layer in range(layers) for kind in kinds]
    return {name: convert.hf_tensor_name(name) for name in names}


def test_tiny_model_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    one, two, other = (make_tiny_model(tmp_path / str(i), seed=i // 2) for i in range(3))
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert (one / "model.safetensors").stat().st_size < 4 << 20


def test_tiny_tokenizer_has_a_token_per_byte(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = make_tiny_model(tmp_path / "tiny") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    text = "né\n<|im_end|> \x00 9"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode()) - len("<|im_end|>") + 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


class TestCache:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def prepare(self, content: str = "weights") -> tuple[Path, int]:
        built = 0

        def build(target: Path) -> None:
            nonlocal built
            built += 1
            (target / "model").write_text(content)

        return model.prepare_cached("toy", build, quiet), built

    def test_is_built_once(self, cache: Path) -> None:
        path, built = self.prepare()
        assert (path, built) == (cache / "toy", 1)
        assert self.prepare() == (path, 0)
        assert [entry.name for entry in cache.iterdir()] == ["toy"]

    @pytest.mark.parametrize("damage", ["other bytes", "shorter", "gone", "no manifest"])
    def test_damage_is_repaired(self, damage: str) -> None:
        path, _ = self.prepare()
        if damage == "other bytes":
            (path / "model").write_text("WEIGHTS")
        elif damage == "shorter":
            (path / "model").write_text("")
        elif damage == "gone":
            (path / "model").unlink()
        else:
            (path / "radixtier-model.json").unlink()
        assert self.prepare() == (path, 1)
        assert (path / "model").read_text() == "weights"
        assert [entry.name for entry in path.parent.iterdir()] == ["toy"]

    def test_failed_build_leaves_nothing(self, cache: Path) -> None:
        def build(target: Path) -> None:
            (target / "half").write_text("x")
            raise RuntimeError("no weights")

        with pytest.raises(RuntimeError, match="no weights"):
            model.prepare_cached("toy", build, quiet)
        assert list(cache.iterdir()) == []

    def test_the_first_of_two_wins(self) -> None:
        def build(target: Path) -> None:
            (target / "model").write_text("second")
            self.prepare("first")

        assert (model.prepare_cached("toy", build, quiet) / "model").read_text() == "first"
