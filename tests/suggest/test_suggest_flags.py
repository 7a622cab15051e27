"""A suggestion is taken: by SGLang's parser with the plugin's flags, by the configuration, by resolution on a CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from suggest_rig import smi_row, write_config, write_smi, write_weights

from radixtier.cli import serve, suggest
from radixtier.machine import Machine
from radixtier.settings import load_config
from radixtier.suggest.model import SLIDING
from radixtier.suggest.servers import PAGE_SIZE

TINY = {
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


def parsed(arguments: list[str]) -> Any:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    return prepare_server_args([*arguments, "--skip-tokenizer-init"])


def suggested(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert suggest.main([*arguments, "--json"]) == 0
    servers: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["servers"]
    for path in (path for server in servers for path in server["make"]):
        os.makedirs(path, exist_ok=True)
    return servers


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("with_store", [True, False])
def test_commands_for_gpus(
    tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    count: int, with_store: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", write_smi(tmp_path / "bin", *(smi_row(i) for i in range(count))))
    (tmp_path / "kv").mkdir()
    paths = ["--path", str(tmp_path / "kv")] if with_store else []
    model = write_config(tmp_path / "model", TINY)
    servers = suggested(capsys, "--model-path", model, "--ram", "64GiB", *paths)
    assert len(servers) == count
    for server in servers:
        record = parsed(server["arguments"])
        config, problems, _ = load_config(record._radix_tier_flags, {})
        assert problems == [] and config.enable and config.validate(Machine(64 << 30)) == []
        assert bool(config.nvme_path) == with_store
        assert (record.enable_metrics, record.enable_cache_report, record.page_size) == (True, True, 64)


def test_a_command_for_gpus_that_work_together(
    tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from radixtier.sglang.resolution import kv_bytes_per_token

    monkeypatch.setenv("PATH", write_smi(tmp_path / "bin", *(smi_row(i, memory=1024) for i in range(4))))
    (tmp_path / "kv").mkdir()
    model = write_config(tmp_path / "model", TINY)
    write_weights(model, 1 << 31)
    servers = suggested(capsys, "--model-path", model, "--ram", "64GiB", "--path", str(tmp_path / "kv"))
    assert [(server["gpu"], server["tp_size"]) for server in servers] == [("0,1", 2), ("2,3", 2)]
    for server in servers:
        record = parsed(server["arguments"])
        assert record.tp_size == 2
        config, problems, _ = load_config(record._radix_tier_flags, {})
        assert problems == [] and config.validate(Machine(64 << 30)) == []
        # float16: SGLang would serve it so, and half the KV of float32 on each of the two ranks.
        assert server["kv_bytes_per_token"] == 256
        record.dtype = "float16"
        assert kv_bytes_per_token(record) == 128


def test_the_yaml_is_taken(
    tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", write_smi(tmp_path / "bin", smi_row(0)))
    (tmp_path / "kv").mkdir()
    asked = ["--model-path", write_config(tmp_path / "model", TINY), "--ram", "64GiB", "--path", str(tmp_path / "kv")]
    [server] = suggested(capsys, *asked)
    assert suggest.main([*asked, "--yaml"]) == 0
    (tmp_path / "server.yaml").write_text(capsys.readouterr().out)
    record = parsed(["--config", str(tmp_path / "server.yaml")])
    assert record._radix_tier_flags == parsed(server["arguments"])._radix_tier_flags
    assert (record.port, record.page_size, record.enable_metrics) == (30000, 64, True)


def test_a_cpu_server_resolves_to_the_sizes_that_were_told(
    tmp_path: Path, room: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from radixtier import machine
    from radixtier.sglang.resolution import sizes_of

    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 3 << 30)
    (tmp_path / "kv").mkdir()
    model = write_config(tmp_path / "model", TINY)
    [server] = suggested(capsys, "--model-path", model, "--ram", "1GiB", "--path", str(tmp_path / "kv"))
    arguments, _, _ = serve.prepare(server["arguments"], {})
    record = parsed(arguments)
    record.resolve_once()
    sizes = sizes_of(record)
    assert (sizes.bytes_per_token, sizes.page_size) == (server["kv_bytes_per_token"], server["page_size"])
    assert (sizes.hbm_tokens, sizes.dram_tokens, sizes.nvme_tokens) == (
        server["hbm_tokens"],
        server["dram_tokens"],
        server["nvme_tokens"],
    )


def test_pages_are_those_that_the_server_would_choose() -> None:
    from radixtier.sglang.resolution import PAGE_SIZE as SERVERS_CHOICE

    assert PAGE_SIZE == SERVERS_CHOICE


@pytest.mark.parametrize("name", sorted(SLIDING))
def test_sliding_windows_are_those_that_sglang_keeps_apart(name: str) -> None:
    from sglang.srt.configs.model_config import is_hybrid_swa_model

    assert is_hybrid_swa_model([name], None)
