"""What is refused at start: every row of the tables, on SGLang's own server arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang.srt.arg_groups.overrides import declare_resolution
from sglang.srt.server_args import ServerArgs
from sglang_rig import MLA, VISION, command_line, write_model

from radixtier.sglang.refusals import (
    CONTRADICTIONS,
    MODELS,
    SETTLED_MODELS,
    UNSUPPORTED,
    check_decisions,
    check_input,
    check_model,
    check_settled_model,
)

OFFENCES: dict[str, tuple[str, Any]] = {
    "--dp-size": ("dp_size", 2),
    "--attn-dp-size": ("attn_dp_size", 2),
    "--pp-size": ("pp_size", 2),
    "--dcp-size": ("dcp_size", 2),
    "--attn-cp-size": ("attn_cp_size", 2),
    "--moe-dp-size": ("moe_dp_size", 2),
    "--dwdp-size": ("dwdp_size", 2),
    "--elastic-ep-backend": ("elastic_ep_backend", "mooncake"),
    "--nnodes": ("nnodes", 2),
    "--speculative-algorithm": ("speculative_algorithm", "EAGLE"),
    "--uno-lora-path": ("uno_lora_path", "/lora"),
    "--decoupled-spec-role": ("decoupled_spec_role", "drafter"),
    "--disaggregation-mode": ("disaggregation_mode", "prefill"),
    "--disaggregation-decode-retraction-backup": ("disaggregation_decode_retraction_backup", "host_pool"),
    "--disaggregation-decode-enable-offload-kvcache": ("disaggregation_decode_enable_offload_kvcache", True),
    "--disaggregation-decode-host-receive-threshold": ("disaggregation_decode_host_receive_threshold", 0.5),
    "--enable-streaming-session": ("enable_streaming_session", True),
    "--enable-session-radix-cache": ("enable_session_radix_cache", True),
    "--enable-pdmux": ("enable_pdmux", True),
    "--use-ray": ("use_ray", True),
    "--encoder-only": ("encoder_only", True),
    "--enable-lmcache": ("enable_lmcache", True),
    "--enable-flexkv": ("enable_flexkv", True),
    "--radix-cache-backend": ("radix_cache_backend", "flexkv"),
    "--hicache-storage-backend": ("hicache_storage_backend", "file"),
    "--enable-unified-cache-external-linker": ("enable_unified_cache_external_linker", True),
    "--enable-hisparse": ("enable_hisparse", True),
    "--enable-unified-memory": ("enable_unified_memory", True),
    "--enable-kv-cache-sharding": ("enable_kv_cache_sharding", True),
    "--kv-cache-dtype": ("kv_cache_dtype", "nvfp4"),
    "--hicache-host-memory-mode": ("hicache_host_memory_mode", "buffer_only"),
    "--disable-radix-cache": ("disable_radix_cache", True),
    "--dllm-algorithm": ("dllm_algorithm", "LowConfidence"),
    "--device": ("device", "xpu"),
    "--hicache-ratio": ("hicache_ratio", 3.0),
    "--hicache-size": ("hicache_size", 10),
    "--hicache-host-memory-fraction": ("hicache_host_memory_fraction", 0.5),
    "--hicache-write-policy": ("hicache_write_policy", "write_back"),
    "--hicache-mem-layout": ("hicache_mem_layout", "layer_first"),
    "--hicache-io-backend": ("hicache_io_backend", "kernel_ascend"),
    "--hicache-storage-backend-extra-config": ("hicache_storage_backend_extra_config", "{}"),
}


def test_every_flag_row_has_an_offence_here() -> None:
    assert list(OFFENCES) == [row.flag for row in (*UNSUPPORTED, *CONTRADICTIONS)]


@pytest.mark.parametrize("flag", OFFENCES)
def test_an_offending_flag_is_refused(flag: str) -> None:
    field, value = OFFENCES[flag]
    [problem] = check_input(ServerArgs(model_path="m", **{field: value}))
    assert problem.setting == flag
    assert problem.value == value
    assert problem.why
    assert problem.fix


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: row.flag)
def test_what_resolution_decides_is_refused_as_well(row: Any) -> None:
    field, value = OFFENCES[row.flag]
    record = ServerArgs(model_path="m")
    declare_resolution(record, "test", **{field: value})
    [problem] = check_decisions(record)
    assert problem.setting == row.flag


@pytest.mark.parametrize("dtype", ["mxfp8", "fp4_mx_block16"])
def test_other_kv_dtypes_with_scales(dtype: str) -> None:
    assert len(check_input(ServerArgs(model_path="m", kv_cache_dtype=dtype))) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"device": "cuda:1"},
        {"device": "cpu"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"enable_hierarchical_cache": True},
        {"hicache_io_backend": "direct", "hicache_mem_layout": "page_first_direct"},
        {"tp_size": 8},
        {"tp_size": 4, "ep_size": 2},
        {"page_size": 1, "radix_eviction_policy": "slru", "enable_lora": True},
    ],
)
def test_what_is_supported_passes(fields: dict[str, Any]) -> None:
    assert check_input(ServerArgs(model_path="m", **fields)) == []


MODEL_OFFENCES: dict[str, dict[str, Any]] = {
    "a state": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "an index beside": {**MLA, "architectures": ["DeepseekV32ForCausalLM"], "index_topk": 64, "index_head_dim": 128},
    "differ in width": {"v_head_dim": 8},
    "its encoder": {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama"},
}

HYBRID_SWA = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
}


def record_of(directory: Path, fields: dict[str, Any], **arguments: Any) -> ServerArgs:
    model = write_model(directory / "model", **fields)
    return ServerArgs(model_path=model, device="cpu", dtype="float32", **arguments)


def test_every_model_row_has_an_offence_here() -> None:
    assert len(MODEL_OFFENCES) == len(MODELS)
    assert len(SETTLED_MODELS) == 1


@pytest.mark.parametrize("why", MODEL_OFFENCES)
def test_an_unsupported_model_is_refused(why: str, tmp_path: Path) -> None:
    fields = MODEL_OFFENCES[why]
    [problem] = check_model(record_of(tmp_path, fields))
    assert problem.setting == "--model-path"
    assert problem.value == fields.get("architectures", ["LlamaForCausalLM"])[0]
    assert why in problem.why


def test_sparse_attention_with_heads_is_refused_too(tmp_path: Path) -> None:
    fields = {"architectures": ["MiniMaxM3SparseForCausalLM"], "sparse_attention_config": {"sparse_index_dim": 64}}
    [problem] = check_model(record_of(tmp_path, fields))
    assert "an index beside" in problem.why


def test_a_hybrid_swa_model_is_refused(tmp_path: Path) -> None:
    [problem] = check_settled_model(record_of(tmp_path, HYBRID_SWA))
    assert "sliding-window" in problem.why


def test_a_hybrid_swa_model_in_plain_memory_passes(tmp_path: Path) -> None:
    record = record_of(tmp_path, HYBRID_SWA, disable_hybrid_swa_memory=True)
    assert check_settled_model(record) == []


@pytest.mark.parametrize(
    "fields", [{}, MLA, VISION, {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}]
)
def test_supported_models_pass(fields: dict[str, Any], tmp_path: Path) -> None:
    record = record_of(tmp_path, fields)
    record.disable_hybrid_swa_memory = "Gemma3" in str(fields)
    assert check_model(record) + check_settled_model(record) == []


@pytest.mark.parametrize("fields", [MODEL_OFFENCES["a state"], HYBRID_SWA])
def test_the_command_line_ends_before_sglang_complains(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang's own checks of such models raise; ours come first, as one line."""
    # An attention backend that GPT-OSS takes; on a CPU without AMX it becomes torch_native.
    flags = ["--attention-backend", "intel_amx", "--enable-radix-tier", "--radix-tier-dram-size", "64MiB"]
    record = command_line(write_model(tmp_path / "model", **fields), *flags)
    with pytest.raises(SystemExit) as end:
        record.resolve_once()
    assert end.value.code == 2
    [line] = [text for text in capsys.readouterr().err.splitlines() if text.startswith("radixtier: error:")]
    assert fields["architectures"][0] in line
