"""The fingerprint of weights: copies agree, whatever changes the KV does not."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from radixtier.weights import FILE_SAMPLE, FILE_SAMPLES, MAX_HEADER, weights_fingerprint

TENSORS = {"a": 4096, "b": 100, "c": 1 << 20, "empty": 0}
"""Name -> bytes."""


def safetensors(file: Path, *, changed: str = "", fill: int = 1) -> None:
    header, at, data = {}, 0, b""
    for name, size in TENSORS.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        data += bytes([fill + (name == changed)]) * size
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"hidden_size": 8}')
    (directory / "tokenizer.json").write_text("{}")
    safetensors(directory / "model-1.safetensors")
    safetensors(directory / "model-2.safetensors", fill=7)
    return directory


def test_a_copy_under_another_name_with_other_times_is_equal(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    found = weights_fingerprint(model)
    assert found is not None and len(found) == 32 and int(found, 16)
    assert weights_fingerprint(copy) == found


def test_links_to_the_files_are_as_good_as_the_files(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in model.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert weights_fingerprint(snapshot) == weights_fingerprint(model)


@pytest.mark.parametrize("name", [name for name, size in TENSORS.items() if size])
def test_one_changed_tensor_differs(model: Path, name: str) -> None:
    before = weights_fingerprint(model)
    safetensors(model / "model-2.safetensors", changed=name, fill=7)
    assert weights_fingerprint(model) != before


def _other_config(model: Path) -> None:
    (model / "config.json").write_text('{"hidden_size": 9}')


def _quantised(model: Path) -> None:
    (model / "hf_quant_config.json").write_text("{}")


def _other_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("{}")


def _renamed_file(model: Path) -> None:
    (model / "model-1.safetensors").rename(model / "model-3.safetensors")


def _missing_file(model: Path) -> None:
    (model / "model-1.safetensors").unlink()


@pytest.mark.parametrize("change", [_other_config, _quantised, _other_index, _renamed_file, _missing_file])
def test_what_changes_the_model_differs(model: Path, change: Callable[[Path], None]) -> None:
    before = weights_fingerprint(model)
    change(model)
    assert weights_fingerprint(model) not in (before, None)


def test_how_text_is_generated_does_not_matter(model: Path) -> None:
    before = weights_fingerprint(model)
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    (model / "tokenizer.json").write_text("[]")
    assert weights_fingerprint(model) == before


def test_revision_and_extra_texts_are_told_apart(model: Path) -> None:
    variants = [
        weights_fingerprint(model),
        weights_fingerprint(model, revision=""),
        weights_fingerprint(model, revision="main"),
        weights_fingerprint(model, extra=["main"]),
        weights_fingerprint(model, extra=["ma", "in"]),
        weights_fingerprint(model, revision="ma", extra=["in"]),
    ]
    assert None not in variants
    assert len(set(variants)) == len(variants)


def test_adapters_count_with_their_order(model: Path, tmp_path: Path) -> None:
    adapters = [tmp_path / "x", tmp_path / "y"]
    for fill, directory in enumerate(adapters):
        directory.mkdir()
        (directory / "adapter_config.json").write_text("{}")
        safetensors(directory / "adapter_model.safetensors", fill=fill)
    both = weights_fingerprint(model, adapters=adapters)
    others = [weights_fingerprint(model), weights_fingerprint(model, adapters=adapters[::-1])]
    safetensors(adapters[1] / "adapter_model.safetensors", fill=1, changed="b")
    others.append(weights_fingerprint(model, adapters=adapters))
    assert None not in (both, *others)
    assert both not in others


def test_nothing_is_known_without_weights(model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    assert weights_fingerprint(empty) is None
    assert weights_fingerprint(tmp_path / "absent") is None
    assert weights_fingerprint(model, adapters=[empty]) is None


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.gguf"])
@pytest.mark.parametrize("at", [0, FILE_SAMPLE, -1])
def test_other_formats_are_sampled_from_the_first_byte_to_the_last(tmp_path: Path, name: str, at: int) -> None:
    small, large = FILE_SAMPLES * FILE_SAMPLE, 2 * FILE_SAMPLES * FILE_SAMPLE
    for size in (small, large):
        if size == large and at > 0:
            continue  # between two samples
        file = tmp_path / name
        file.write_bytes(bytes(size))
        before = weights_fingerprint(tmp_path)
        assert weights_fingerprint(file) is not None
        flip(file, at)
        assert weights_fingerprint(tmp_path) not in (before, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", MAX_HEADER + 1) + b"{}",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 4) + b"nope" + bytes(100),
        struct.pack("<Q", 2) + b"[]" + bytes(100),
        struct.pack("<Q", 7) + b'{"a":1}' + bytes(100),
        struct.pack("<Q", 30) + b'{"a":{"data_offsets":[0,900]}}' + bytes(100),
        struct.pack("<Q", 30) + b'{"a":{"data_offsets":[-9,10]}}' + bytes(100),
        struct.pack("<Q", 32) + b'{"a":{"data_offsets":["0","9"]}}' + bytes(100),
        struct.pack("<Q", 30) + b'{"a":{"data_offsets":[1,2,3]}}' + bytes(100),
    ],
)
def test_a_malformed_header_falls_back_to_samples(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    before = weights_fingerprint(tmp_path)
    assert before is not None
    if content:
        flip(file, -1)
        assert weights_fingerprint(tmp_path) != before
