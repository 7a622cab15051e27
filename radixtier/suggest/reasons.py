"""Why each choice was made, in one line, and what is in the way.

Owns the words and the least that is worth starting with. Pure but for the sizes of existing file systems; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radixtier.config import CPU_SHARE, DRAM_SHARE, NVME_SHARE
from radixtier.machine import file_systems
from radixtier.policy.write_budget import parse_budget
from radixtier.suggest.model import Model
from radixtier.suggest.ranks import CHAT, USABLE_HBM, ranks_for
from radixtier.suggest.servers import Facts, Server, Wishes
from radixtier.tools.findings import Finding
from radixtier.units import format_bytes

MOST_WEIGHTS = 0.95
"""Of a GPU's memory, beyond which weights leave no room to serve at all."""

IN_USE = 2 << 30
"""Bytes in use on a GPU from which on somebody else seems to work there."""

MORE_RAM = "free some RAM, raise the cgroup's limit, or take a smaller model"


def about_model(model: Model) -> Iterator[Finding]:
    """Tell what a token of the model takes, and whether the tier serves it."""
    if model.refused:
        yield Finding("problem", "model", f"{model.path}: {model.refused.why}", model.refused.fix)
        return
    yield Finding("ok", "KV", f"{format_bytes(model.kv_bytes)} per token ({model.told_by})")
    if model.weights is not None:
        yield Finding("ok", "weights", f"{format_bytes(model.weights)} on the device")
    if not model.checked:
        fix = "give the model's directory to have it checked; a server that refuses it says so at its start"
        what = "not looked at: the tier refuses sliding windows, sparse and linear attention, Mamba"
        yield Finding("warning", "model", what, fix)


def about_gpus(facts: Facts) -> Iterator[Finding]:
    """Tell which GPUs there are, and whether the weights fit."""
    if not facts.gpus:
        yield Finding("ok", "device", "no GPU: --device cpu in float32, as `radixtier serve` sets it up")
        return
    ranks = ranks_for(facts.gpus, facts.model)
    for gpu in facts.gpus:
        memory = "memory unknown" if gpu.memory is None else format_bytes(gpu.memory)
        yield Finding("ok", f"GPU {gpu.number}", f"{gpu.name}, {memory}")
        if gpu.split:
            fix = "give --gpu-memory, and set CUDA_VISIBLE_DEVICES to the instance yourself"
            yield Finding("warning", f"GPU {gpu.number}", "divided into MIG instances, which have less", fix)
        if gpu.used >= IN_USE:
            fix = "stop what runs there, or hide this GPU with CUDA_VISIBLE_DEVICES"
            yield Finding("warning", f"GPU {gpu.number}", f"{format_bytes(gpu.used)} are in use already", fix)
        weights = facts.model.weights
        if gpu.memory is not None and weights is not None and weights > ranks * gpu.memory * MOST_WEIGHTS:
            what = f"{format_bytes(weights)} of weights do not fit"
            fix = "take a smaller or quantized model, or more GPUs of one kind"
            yield Finding("problem", f"GPU {gpu.number}", what, fix)
    if len(facts.gpus) > 1:
        yield Finding("ok", "servers", _servers(facts, ranks))


def _servers(facts: Facts, ranks: int) -> str:
    """Say which GPUs work together."""
    count = len(facts.gpus) // ranks
    if ranks == 1:
        what = f"{count} GPUs, one server each: the model fits on one, and needs no traffic between them"
    else:
        what = f"--tp-size {ranks}: weights and a long prompt take {ranks} GPUs"
        what += f", so {count} servers" if count > 1 else ""
        left = [gpu.number for gpu in facts.gpus[count * ranks :]]
        what += f"; GPU {', '.join(left)} stays free" if left else ""
    return f"{what}; put a router with session affinity in front" if count > 1 else what


def about_sizes(facts: Facts, server: Server) -> Iterator[Finding]:
    """Tell the size of each tier, and where it comes from."""
    config, sizes = server.config, server.sizes
    assert config.dram_size is not None and config.nvme_size is not None
    ranks = sizes.ranks
    count = max(1, len(facts.gpus) // ranks)
    part = f" on each of {ranks} ranks" if ranks > 1 else ""
    yield Finding("ok", "page", f"{sizes.page_size} tokens, {format_bytes(sizes.page_bytes)}{part}: one read or write")
    if not server.gpus:
        yield _tier("HBM", sizes.hbm_tokens or 0, f"{config.hbm_size}, {CPU_SHARE} of the available RAM", MORE_RAM)
    elif server.hbm_tokens is None:
        yield Finding("ok", "HBM", "SGLang's choice: what the weights leave of the GPU's memory")
    else:
        of = "the GPU" if ranks == 1 else "each GPU"
        why = f"SGLang's choice, about {USABLE_HBM:.0%} of {of} less weights"
        yield _tier("HBM", server.hbm_tokens, why, "take a smaller or quantized model, or a larger GPU")
    share = DRAM_SHARE if server.gpus else CPU_SHARE
    split = "" if count == 1 else f" over {count} servers"
    why = f"{config.dram_size}, {share} of {format_bytes(facts.ram)} of RAM{split}"
    yield _tier("DRAM", sizes.dram_tokens, why, MORE_RAM)
    yield from _about_ram(facts, server)
    if config.nvme_path:
        of = f" of {len(config.nvme_path)} drives" if len(config.nvme_path) > 1 else ""
        among = split if server.make else ""
        why = f"{config.nvme_size}, {NVME_SHARE} of the free space{of}{among}"
        yield _tier("NVMe", sizes.nvme_tokens, why, "free some space, name another --path, or none")
        if CHAT <= sizes.nvme_tokens < sizes.dram_tokens:
            fix = "free some space, or leave --path out"
            yield Finding("warning", "NVMe", "smaller than DRAM: it brings little beside the restart", fix)


def _tier(name: str, tokens: int, why: str, fix: str) -> Finding:
    found = f"{why}: {tokens:,} tokens, {tokens // CHAT:,} chats of 8k"
    if tokens >= CHAT:
        return Finding("ok", name, found)
    return Finding("problem", name, f"{found}: not one long prompt", fix)


def _about_ram(facts: Facts, server: Server) -> Iterator[Finding]:
    """On a CPU the weights live in RAM as well, beside both tiers."""
    if server.gpus or facts.model.weights is None:
        return
    needed = facts.model.weights + 2 * int(facts.ram * CPU_SHARE)
    if needed > facts.ram:
        what = f"{format_bytes(facts.model.weights)} of weights and the tiers need {format_bytes(needed)}"
        yield Finding("problem", "RAM", f"{what}, there are {format_bytes(facts.ram)}", "take a smaller model")


def about_drives(facts: Facts, servers: Sequence[Server]) -> Iterator[Finding]:
    """Tell how drives are shared out, and which others there are."""
    config = servers[0].config
    for group in file_systems([directory.path for directory in facts.directories]):
        if len(group.directories) > 1:
            where = ", ".join(group.directories)
            what = f"{where} lie on one file system: no faster than one of them"
            yield Finding("warning", "drives", what, "name one directory per drive")
    if config.nvme_path and len(servers) > 1:
        own = not servers[0].make
        why = "drives of its own: a drive in trouble concerns one server" if own else "a directory on every drive"
        yield Finding("ok", "drives", f"each server has {why}")
    if not config.nvme_path:
        yield Finding("ok", "NVMe", "no --path given: a tier of DRAM only, of which nothing is left after a restart")
    for other in facts.others:
        yield Finding("ok", "also there", other)


def about_the_rest(wishes: Wishes, servers: Sequence[Server]) -> Iterator[Finding]:
    """Tell the write budget, where the server can be asked, and where its metrics are."""
    config = servers[0].config
    per_day = parse_budget(config.write_budget, None)
    if config.nvme_path and per_day:
        assert config.nvme_size is not None
        hours = 24 * config.nvme_size.amount / per_day
        fills = f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
        what = f"{config.write_budget}, --dwpd {wishes.dwpd:g} of the file systems; NVMe fills in {fills} at that rate"
        yield Finding("ok", "writes", what)
    elif config.nvme_path:
        yield Finding("ok", "writes", "no budget: NVMe is written as fast as pages come; mind the drives' endurance")
    where = config.control or "the server's choice, which its log names"
    yield Finding("ok", "control", f"{where}: radixtier top, explain, hint, drain")
    yield Finding("ok", "metrics", f"http://127.0.0.1:{servers[0].port}/metrics, by --enable-metrics")
