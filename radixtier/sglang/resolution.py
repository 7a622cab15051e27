"""The tier's part in SGLang's resolution of arguments: page size, transfers, token budget, last checks.

Each of the steps wraps one step of SGLang's pipeline, where its inputs are known and its outputs not yet
used. Decisions are declared, never written, so SGLang's record stays what the operator asked for. Main thread
of the launching process, before the model loads; only for servers with the tier.
"""

from __future__ import annotations

import logging
from typing import Any

from radixtier.config import Problem, RadixTierConfig, ResolvedSizes
from radixtier.footprint import footprint
from radixtier.machine import Machine
from radixtier.sglang.private import quantization_of, who_declared
from radixtier.sglang.refusals import check_decisions, check_model, check_settled_model, refuse
from radixtier.units import Unit, format_bytes

logger = logging.getLogger(__name__)

SOURCE = "radixtier"

MOST_PAGES = 2**31 - 1
"""Handles and slots are int32."""

PAGE_SIZE = {"cuda": 64, "cpu": 16}
"""Tokens. On a GPU large enough for one NVMe page read of some MiB, small enough to share prefixes well; on a
CPU, with small models and short prompts, sharing counts for more."""

TRANSFERS = {"kernel": "page_first", "direct": "page_first_direct"}
"""I/O backend -> the host layout that keeps a page in one piece: that is what moves to and from NVMe."""


def device_of(server_args: Any) -> str:
    """Return the kind of device, as resolution will: given, or detected."""
    from sglang.srt.utils.common import get_device

    return str(_view(server_args).device or get_device()).split(":")[0]


def no_auto_size(server_args: Any, previous: Any) -> None:
    """Around ``handle_hicache_ratio_default``: the tier sizes the host pool, so SGLang need not."""
    previous(server_args)
    _declare(server_args, hicache_host_memory_fraction=None)


def model_and_budget(server_args: Any, previous: Any) -> None:
    """Before ``handle_gpu_memory_settings``, which bounds CUDA graphs by the token budget."""
    refuse(server_args, check_decisions(server_args) + check_model(server_args))
    _declare_budget(server_args)
    previous(server_args)


def page_size(server_args: Any, previous: Any) -> None:
    """Just before SGLang's page size default: choose one that makes good I/O, unless there is one."""
    previous(server_args)
    view = _view(server_args)
    if view.page_size is not None:
        given = view.page_size == server_args.page_size
        source = "as given by --page-size" if given else f"set by {_who_set(server_args, 'page_size')}"
        logger.info("radixtier: page size %d, %s", view.page_size, source)
    else:
        tokens = _fitting_page_size(PAGE_SIZE[view.device], view.chunked_prefill_size)
        _declare(server_args, page_size=tokens)
        logger.info(
            "radixtier: page size %d, chosen because --page-size is not given: SGLang's default of 1 would "
            "make every I/O between tiers tiny",
            tokens,
        )


def transfers(server_args: Any, previous: Any) -> None:
    """Around ``handle_hicache``: the transfers that this device has, and the layout that goes with them."""
    view = _view(server_args)
    backend = "direct" if view.device == "cpu" or view.hicache_io_backend == "direct" else "kernel"
    layout = TRANSFERS[backend]
    if (view.hicache_io_backend, view.hicache_mem_layout) != (backend, layout):
        logger.info("radixtier: transfers by --hicache-io-backend %s, --hicache-mem-layout %s", backend, layout)
    _declare(server_args, hicache_io_backend=backend, hicache_mem_layout=layout)
    previous(server_args)


def decisions_so_far(server_args: Any, previous: Any) -> None:
    """Before ``handle_cache_compatibility``, which would raise for models that turn the radix cache off."""
    refuse(server_args, check_decisions(server_args))
    previous(server_args)


def check_resolved(server_args: Any) -> None:
    """Check what only resolution knows, settle the token budget, and tell the operator what was settled."""
    if _view(server_args).model_path.lower() in ("none", "dummy"):
        return
    refuse(server_args, check_decisions(server_args) + check_settled_model(server_args))
    _declare_budget(server_args)
    config: RadixTierConfig = server_args._radix_tier
    sizes = sizes_of(server_args)
    refuse(server_args, _check_sizes(config, sizes, _view(server_args)) + _check_latent_pool(server_args, sizes))
    logger.info("radixtier: %s", _summary(config, sizes))
    copies = _copies(server_args)
    if sizes.ranks > sizes.stores:
        logger.info(
            "radixtier: every rank has the whole latent of a token: HBM and DRAM hold it %d times, NVMe once",
            sizes.ranks,
        )
    elif copies > 1:
        logger.info(
            "radixtier: every KV head is on %d ranks, so a token takes %d times the bytes: fewer ranks (--tp-size) "
            "would keep more in the same space", copies, copies,
        )  # fmt: skip


def sizes_of(server_args: Any) -> ResolvedSizes:
    """Return the capacity of every tier for the model and page size that were resolved."""
    config: RadixTierConfig = server_args._radix_tier
    view = _view(server_args)
    same_bytes = _is_latent(server_args)
    return config.resolve(kv_bytes_per_token(server_args), view.page_size or 1, view.tp_size, same_bytes=same_bytes)


def _is_latent(server_args: Any) -> bool:
    """Whether the KV is a latent and a rotary key per token (MLA), which every rank has in full."""
    from sglang.srt.arg_groups.overrides import model_config_of

    return bool(model_config_of(server_args).attention_arch.name == "MLA")


def kv_bytes_per_token(server_args: Any) -> int:
    """Return the KV bytes of one token on one rank, all layers; known before the model loads."""
    from sglang.srt.arg_groups.overrides import model_config_of

    view = _view(server_args)
    model = model_config_of(server_args)
    if _is_latent(server_args):
        width = model.kv_lora_rank + model.qk_rope_head_dim
    else:
        width = model.get_num_kv_heads(view.tp_size) * (model.head_dim + model.v_head_dim)
    return max(1, int(width * model.num_attention_layers * _kv_item_bytes(model, view.kv_cache_dtype)))


def _copies(server_args: Any) -> int:
    """Return how many ranks hold the same KV head, as they do where there are fewer heads than ranks."""
    from sglang.srt.arg_groups.overrides import model_config_of

    ranks, model = _view(server_args).tp_size, model_config_of(server_args)
    return int(model.get_num_kv_heads(ranks) * ranks // model.get_total_num_kv_heads())


def _kv_item_bytes(model: Any, kv_cache_dtype: str) -> int:
    if kv_cache_dtype != "auto":
        return {"bf16": 2, "bfloat16": 2}.get(kv_cache_dtype, 1)
    # A checkpoint may say that its KV cache is FP8; SGLang follows it when the weights are loaded.
    quantization = quantization_of(model)
    algorithm = quantization.get("kv_cache_quant_algo") or quantization.get("quantization", {}).get(
        "kv_cache_quant_algo"
    )
    return 1 if str(algorithm).upper() == "FP8" else int(model.dtype.itemsize)


def _declare_budget(server_args: Any) -> None:
    config: RadixTierConfig = server_args._radix_tier
    if config.hbm_size is not None and config.hbm_size.unit is Unit.BYTES:
        _declare(server_args, max_total_tokens=sizes_of(server_args).hbm_tokens)


def _fitting_page_size(wanted: int, chunked_prefill_size: int | None) -> int:
    """Return the largest power of two up to ``wanted`` that divides a prefill chunk, as SGLang demands."""
    if chunked_prefill_size and chunked_prefill_size > 0:
        while chunked_prefill_size % wanted:
            wanted //= 2
    return wanted


def _check_sizes(config: RadixTierConfig, sizes: ResolvedSizes, view: Any) -> list[Problem]:
    page = f"one page of {sizes.page_size} tokens, {format_bytes(sizes.page_bytes * sizes.ranks)}"
    if sizes.ranks > 1:
        page += f" on {sizes.ranks} ranks"
    found = []
    if sizes.hbm_pages == 0:
        found.append(config.problem("hbm_size", f"less than {page}", "Give it at least some thousand tokens"))
    if not sizes.dram_pages:
        found.append(config.problem("dram_size", f"less than {page}", "Give it at least some thousand tokens"))
    if not sizes.nvme_slots and config.nvme_path:
        least = sizes.stores * footprint(sizes.directories, sizes.page_bytes, sizes.page_size, sizes.directories)
        fix = f"Give it at least {-(-least // 1024)}KiB, which holds one page per directory, or 0 for none"
        found.append(config.problem("nvme_size", f"with its journal less than {page}", fix))
    found += _check_against_machine(config, sizes, view)
    if not found and sizes.nvme_slots + sizes.dram_pages > MOST_PAGES:
        why = f"more than {MOST_PAGES:,} pages of {sizes.page_size} tokens, DRAM included"
        found.append(config.problem("nvme_size", why, "Ask for less, or set a larger --page-size"))
    if not found and 0 < (view.chunked_prefill_size or 0) > sizes.dram_tokens:
        logger.warning(
            "radixtier: %s holds %d tokens, less than one prefill chunk of %d: long prompts cannot be kept; "
            "make it larger, or lower --chunked-prefill-size",
            config.named("dram_size"),
            sizes.dram_tokens,
            view.chunked_prefill_size,
        )
    return found


def _check_latent_pool(server_args: Any, sizes: ResolvedSizes) -> list[Problem]:
    """Hold DRAM against a quirk of SGLang's MLA host pool: in this layout it looks at as many pages as layers."""
    from sglang.srt.arg_groups.overrides import model_config_of

    model = model_config_of(server_args)
    layers = model.num_attention_layers
    if model.attention_arch.name != "MLA" or _view(server_args).hicache_mem_layout != "page_first_direct":
        return []
    if not 0 < sizes.dram_pages < layers:
        return []
    config: RadixTierConfig = server_args._radix_tier
    why = f"less than {layers} pages, one per layer, which SGLang's host pool for MLA needs with direct transfers"
    return [config.problem("dram_size", why, f"Give it at least {layers * sizes.page_size}tok")]


def _check_against_machine(config: RadixTierConfig, sizes: ResolvedSizes, view: Any) -> list[Problem]:
    """Hold sizes against RAM, GPU memory and disk; those in tokens could not be before."""
    machine, ranks = Machine.probe(), sizes.ranks
    hbm_bytes = (sizes.hbm_pages or 0) * sizes.page_bytes
    dram_bytes = sizes.dram_bytes * ranks
    found = config.check_disk(sizes.nvme_bytes * sizes.stores)
    size = config.landing_size
    landing = 0
    if config.direct == "on":
        landing = size.amount * sizes.bytes_per_token if size.unit is Unit.TOKENS else size.amount // ranks
        if landing < sizes.slot_bytes:
            why = f"less than one page of {sizes.page_size} tokens, {format_bytes(sizes.slot_bytes * ranks)}"
            found.append(config.problem("landing_size", why, "Give it room for the longest path that is read at once"))
    if view.device == "cpu" and landing and not found:
        found += config.check_ram("landing_size", dram_bytes + landing * ranks, machine)
    if view.device == "cpu":
        alone = config.check_ram("hbm_size", hbm_bytes * ranks, machine)
        return found + (alone or config.check_ram("dram_size", hbm_bytes * ranks + dram_bytes, machine))
    found += config.check_ram("dram_size", dram_bytes, machine)
    capacity = _device_memory(view.device)
    if capacity is not None and hbm_bytes > capacity:
        share = f"the {format_bytes(hbm_bytes)} for each of {ranks} GPUs are " if ranks > 1 else ""
        why = f"{share}more than the {format_bytes(capacity)} that {'one' if ranks > 1 else 'the GPU'} has"
        found.append(config.problem("hbm_size", why, "Ask for less; the weights need room as well"))
    elif capacity is not None and hbm_bytes + landing > capacity:
        why = f"with the KV pool more than the {format_bytes(capacity)} that the GPU has"
        found.append(config.problem("landing_size", why, "Ask for less, or set --radix-tier-direct off"))
    return found


def _device_memory(device: str) -> int | None:
    from sglang.srt.utils.common import get_device_memory_capacity

    mebibytes = get_device_memory_capacity(device)
    return None if mebibytes is None else int(mebibytes * 2**20)


def _summary(config: RadixTierConfig, sizes: ResolvedSizes) -> str:
    hbm = "SGLang's choice" if sizes.hbm_tokens is None else f"{sizes.hbm_tokens} tokens"
    nvme = "none"
    if config.nvme_path:
        nvme_bytes = format_bytes(sizes.nvme_bytes * sizes.stores)
        nvme = f"{sizes.nvme_tokens} tokens ({nvme_bytes}) in {', '.join(config.nvme_path)}"
    dram = f"{sizes.dram_tokens} tokens ({format_bytes(sizes.dram_bytes * sizes.ranks)})"
    ranks = f" on {sizes.ranks} ranks together" if sizes.ranks > 1 else ""
    return f"tiers: HBM {hbm}, DRAM {dram}, NVMe {nvme}; {sizes.bytes_per_token * sizes.ranks} bytes per token{ranks}"


def _view(server_args: Any) -> Any:
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def _declare(server_args: Any, **fields: Any) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution

    declare_resolution(server_args, SOURCE, **fields)


def _who_set(server_args: Any, field: str) -> str:
    """Name the step of SGLang's resolution that declared a field last."""
    step = who_declared(server_args, field)
    return f"SGLang ({step})" if step else "SGLang"
