"""What the tier does not support yet, and what contradicts it: one table, checked before the model loads.

Owns the rows and nothing else. Invariant: whatever would make the tier wrong, useless or silently off has a
row, and each row has a test. Main thread of the launching process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from radixtier.config import Problem, RadixTierConfigError


@dataclass(frozen=True)
class Row:
    """One refusal.

    Attributes
    ----------
    flag : str
        The flag of SGLang, or ``--model-path`` for a property of the model.
    offence : Callable
        From resolved arguments (or a model config) to the offending value; None if there is none.
    why, fix : str
        For the operator; no closing period.
    """

    flag: str
    offence: Callable[[Any], Any]
    why: str
    fix: str


def _field(name: str, *allowed: Any) -> Callable[[Any], Any]:
    """Return an offence: the field's value, if it is none of the allowed ones."""

    def offence(view: Any) -> Any:
        value = getattr(view, name)
        return None if value in allowed else value

    offence.__name__ = name
    return offence


_SERVERS = "Set it to 1, and run several servers, each with directories of its own"
_SET_TO_1 = "Set it to 1"
_ONE_CACHE = "it is another cache below HBM, in the tier's place"
_DROP = "Drop this flag, or --enable-radix-tier"

UNSUPPORTED = (
    Row(
        "--dp-size",
        _field("dp_size", 1),
        "each replica has a tree of its own, and they would take the same files for their stores",
        _SERVERS,
    ),
    Row(
        "--attn-dp-size",
        _field("attn_dp_size", 1),
        "each attention group has a tree of its own, and they would take the same files for their stores",
        "Set it to 1, which splits attention over all ranks, or run several servers",
    ),
    Row(
        "--pp-size",
        _field("pp_size", 1),
        "a pipeline's stages come to the same decision at different times, and the tier agrees on one at a time",
        _SET_TO_1,
    ),
    Row(
        "--dcp-size",
        _field("dcp_size", 1),
        "a page's tokens would lie on several ranks, and a page on NVMe is the work of one",
        _SET_TO_1,
    ),
    Row(
        "--attn-cp-size",
        _field("attn_cp_size", 1),
        "a prompt would be computed in parts by several ranks, with which the tier has not been tested",
        _SET_TO_1,
    ),
    Row(
        "--moe-dp-size",
        _field("moe_dp_size", 1),
        "it belongs to context parallelism, with which the tier has not been tested",
        _SET_TO_1,
    ),
    Row(
        "--dwdp-size",
        _field("dwdp_size", 0, 1),
        "it gives every rank requests and a tree of its own, and they would take the same files for their stores",
        _SERVERS,
    ),
    Row(
        "--elastic-ep-backend",
        _field("elastic_ep_backend", None),
        "ranks would come and go, and a page's bytes lie on all of them",
        _DROP,
    ),
    Row(
        "--nnodes",
        _field("nnodes", 1),
        "sizes, directories and the control endpoint are those of one machine",
        "Set it to 1, and run a server on each machine",
    ),
    Row(
        "--speculative-algorithm",
        _field("speculative_algorithm", None),
        "the draft model's KV has no pages in the tier yet",
        _DROP,
    ),
    Row("--uno-lora-path", _field("uno_lora_path", None), "it turns speculative decoding on", _DROP),
    Row(
        "--decoupled-spec-role",
        _field("decoupled_spec_role", "null"),
        "speculative decoding over two engines is not supported yet",
        _DROP,
    ),
    Row(
        "--disaggregation-mode",
        _field("disaggregation_mode", "null"),
        "prefill and decode servers address host memory by physical page, which moves under the tier",
        "Run a server that does both",
    ),
    Row(
        "--disaggregation-decode-retraction-backup",
        _field("disaggregation_decode_retraction_backup", None),
        "it pins pages of the host pool, which the tier could then never reclaim",
        _DROP,
    ),
    Row(
        "--disaggregation-decode-enable-offload-kvcache",
        _field("disaggregation_decode_enable_offload_kvcache", False),
        _ONE_CACHE,
        _DROP,
    ),
    Row(
        "--disaggregation-decode-host-receive-threshold",
        _field("disaggregation_decode_host_receive_threshold", 1.0),
        "it receives KV into host memory by physical page, which moves under the tier",
        _DROP,
    ),
    Row(
        "--enable-streaming-session",
        _field("enable_streaming_session", False),
        "a session's private record has no place in the tree from which to promote",
        _DROP,
    ),
    Row(
        "--enable-session-radix-cache",
        _field("enable_session_radix_cache", False),
        "it needs SGLang's Python tree core, with which the tier has not been tested",
        _DROP,
    ),
    Row(
        "--enable-pdmux",
        _field("enable_pdmux", False),
        "prefill and decode on two streams would need a fence per stream",
        _DROP,
    ),
    Row("--use-ray", _field("use_ray", False), "schedulers in Ray actors are not supported yet", _DROP),
    Row("--encoder-only", _field("encoder_only", False), "an encoder has no KV cache", _DROP),
    Row("--enable-lmcache", _field("enable_lmcache", False), _ONE_CACHE, _DROP),
    Row("--enable-flexkv", _field("enable_flexkv", False), _ONE_CACHE, _DROP),
    Row("--radix-cache-backend", _field("radix_cache_backend", None, "radixtier"), _ONE_CACHE, _DROP),
    Row("--hicache-storage-backend", _field("hicache_storage_backend", None), _ONE_CACHE, _DROP),
    Row(
        "--enable-unified-cache-external-linker",
        _field("enable_unified_cache_external_linker", False),
        _ONE_CACHE,
        _DROP,
    ),
    Row(
        "--enable-hisparse",
        _field("enable_hisparse", False),
        "it moves host pages by itself, by physical number",
        _DROP,
    ),
    Row(
        "--enable-unified-memory",
        _field("enable_unified_memory", False),
        "its device pages hold the state of several pools in one",
        _DROP,
    ),
    Row(
        "--enable-kv-cache-sharding",
        _field("enable_kv_cache_sharding", False),
        "a rank would hold only a part of each page",
        _DROP,
    ),
    Row(
        "--kv-cache-dtype",
        _field("kv_cache_dtype", "auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
        "its scales live in buffers of their own, which do not move with the pages yet",
        "Use auto, bf16, fp8_e4m3 or fp8_e5m2",
    ),
    Row(
        "--hicache-host-memory-mode",
        _field("hicache_host_memory_mode", "cache"),
        "the tier keeps pages in host memory; buffer_only would not",
        "Use cache, the default",
    ),
    Row(
        "--disable-radix-cache",
        _field("disable_radix_cache", False),
        "the tier is a part of the radix cache",
        "Drop this flag, or --enable-radix-tier (some models turn it off by themselves)",
    ),
    Row(
        "--dllm-algorithm",
        _field("dllm_algorithm", None),
        "diffusion models run without the hierarchical cache",
        _DROP,
    ),
    Row(
        "--device",
        lambda view: _field("device", None, "cuda", "cpu")(_Stripped(view)),
        "the tier has transfers for CUDA and for CPUs",
        "Use cuda or cpu",
    ),
)
"""Checked on the operator's input and again on what resolution made of it."""

_SIZED_BY_US = "--radix-tier-dram-size sizes host memory"
_NO_STORAGE = "no HiCache storage backend runs beside the tier, so it would have no effect"

CONTRADICTIONS = (
    Row("--hicache-ratio", _field("hicache_ratio", None), _SIZED_BY_US, "Drop this flag"),
    Row("--hicache-size", _field("hicache_size", 0), _SIZED_BY_US, "Drop this flag"),
    Row(
        "--hicache-host-memory-fraction",
        _field("hicache_host_memory_fraction", 0.8, None),
        _SIZED_BY_US,
        "Drop this flag",
    ),
    Row(
        "--hicache-write-policy",
        _field("hicache_write_policy", "write_through"),
        "pages reach the tier when SGLang writes them through",
        "Use write_through, the default",
    ),
    Row(
        "--hicache-mem-layout",
        _field("hicache_mem_layout", "page_first", "page_first_direct"),
        "whole pages move between DRAM and NVMe, and this layout cuts them up",
        "Drop this flag",
    ),
    Row(
        "--hicache-io-backend",
        _field("hicache_io_backend", "kernel", "direct"),
        "the tier has no transfers for it",
        "Use kernel or direct",
    ),
    Row(
        "--hicache-storage-backend-extra-config",
        _field("hicache_storage_backend_extra_config", None),
        _NO_STORAGE,
        "Drop this flag",
    ),
)
"""Flags of stock HiCache that the tier decides itself; checked on the input only."""

_OTHER_MODEL = "Serve it without --enable-radix-tier"

MODELS = (
    Row(
        "--model-path",
        lambda model: _architecture(model) if _has_state(model) else None,
        "its Mamba or linear-attention layers keep a state that pages do not hold",
        _OTHER_MODEL,
    ),
    Row(
        "--model-path",
        lambda model: _architecture(model) if _is_sparse(model) else None,
        "its sparse attention keeps an index beside the KV, in a pool that does not move with the pages yet",
        _OTHER_MODEL,
    ),
    Row(
        "--model-path",
        lambda model: _architecture(model) if _is_mha(model) and model.has_asymmetric_kv else None,
        "its K and V rows differ in width, and then live in two buffers",
        _OTHER_MODEL,
    ),
    Row(
        "--model-path",
        lambda model: _architecture(model) if model.is_encoder_decoder else None,
        "the KV of its encoder is not a prefix of tokens",
        _OTHER_MODEL,
    ),
)
"""What a model is, whatever the flags; checked as soon as its config can be read."""

SETTLED_MODELS = (
    Row(
        "--model-path",
        lambda model: _architecture(model) if model.is_hybrid_swa else None,
        "its sliding-window layers keep KV in a pool of their own",
        "Serve it without --enable-radix-tier, or with --disable-hybrid-swa-memory if it allows that",
    ),
)
"""What a model is once resolution has chosen its memory; checked at the end."""


def refuse(server_args: Any, problems: Sequence[Problem]) -> None:
    """Do not start if there are problems.

    Raises
    ------
    SystemExit
        With status 2, one line per problem on standard error, if the arguments come from a command line.
    RadixTierConfigError
        If they come from anywhere else.
    """
    if not problems:
        return
    if not hasattr(server_args, "_radix_tier_flags"):
        raise RadixTierConfigError(problems)
    for problem in problems:
        print(f"radixtier: error: {problem}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def check_input(server_args: Any) -> list[Problem]:
    """Check the operator's flags before SGLang resolves them."""
    return _check((*UNSUPPORTED, *CONTRADICTIONS), server_args)


def check_decisions(server_args: Any) -> list[Problem]:
    """Check what resolution has made of them so far."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return _check(UNSUPPORTED, resolving_view(server_args))


def check_model(server_args: Any) -> list[Problem]:
    """Check what the model is."""
    from sglang.srt.arg_groups.overrides import model_config_of

    return _check(MODELS, model_config_of(server_args))


def check_settled_model(server_args: Any) -> list[Problem]:
    """Check what the model is with everything that resolution decided."""
    from sglang.srt.configs.model_config import ModelConfig

    # Built anew: resolution keeps the config it built first, but may have changed the SWA setting since.
    return _check(SETTLED_MODELS, ModelConfig.from_server_args(server_args))


def _check(rows: tuple[Row, ...], subject: Any) -> list[Problem]:
    offences = ((row, row.offence(subject)) for row in rows)
    return [Problem(row.flag, value, row.why, row.fix) for row, value in offences if value is not None]


class _Stripped:
    """The device without its index: ``cuda:0`` is ``cuda``."""

    def __init__(self, view: Any) -> None:
        self.device = view.device and view.device.split(":")[0]


def _architecture(model: Any) -> str:
    return ", ".join(model.hf_config.architectures or ["a model without a named architecture"])


def _has_state(model: Any) -> bool:
    from sglang.srt.configs.hybrid_arch import mambaish_config

    return model.attention_arch.name == "SSM" or mambaish_config(model) is not None


def _is_sparse(model: Any) -> bool:
    from sglang.srt.configs.model_config import is_deepseek_dsa, is_minimax_sparse
    from sglang.srt.layers.attention.qsa.config import is_qwen_qsa

    configs = (model.hf_config, model.hf_text_config)
    return any(is_deepseek_dsa(each) or is_minimax_sparse(each) or is_qwen_qsa(each) for each in configs)


def _is_mha(model: Any) -> bool:
    return bool(model.attention_arch.name == "MHA")
