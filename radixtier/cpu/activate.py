"""Puts the CPU engine into one process of a ``--device cpu`` server.

Owns the list of replaced names. Invariant: replaces by assignment, once per process, only what stock SGLang lacks or
wastes on a CPU. Called on the main thread, from the plugin, before pools and models exist.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

HOST_RESERVE_BYTES = 2 << 30

_active = False


def activate() -> None:
    """Make stock host pools and stock `torch_native` attention work well on a CPU in this process.

    Idempotent. Imports torch and the SGLang modules it touches. Call it only when the server runs with
    ``--device cpu``: it takes pinned memory away from every host pool.

    - `HostKVCache` allocates plain memory: there is no driver to pin it for. Of the machine's memory it leaves
      `HOST_RESERVE_BYTES` free instead of the 10 GiB of a GPU server, more than many a machine without one has.
    - The transfer kernels that pools import only on a GPU get CPU versions (`radixtier.cpu.transfers`): I/O backend
      ``direct`` with layouts ``page_first_direct`` and ``layer_first``, ``kernel`` with ``page_first`` and
      ``layer_first``.
    - `TorchNativeAttnBackend` computes new tokens only (`radixtier.cpu.attention`).
    - Models with MLA (DeepSeek's) use it in the form that attends to the latents in the KV pool, for prefill too.
    """
    global _active
    if _active:
        return
    _active = True
    _allocate_unpinned()
    _install_transfers()
    _install_attention()
    _attend_to_latents()


def _allocate_unpinned() -> None:
    base: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.base")
    stock = base.HostKVCache.__init__

    @functools.wraps(stock)
    def unpinned(self: Any, *, pin_memory: bool, **arguments: Any) -> None:
        del pin_memory
        stock(self, pin_memory=False, **arguments)

    base.HostKVCache.__init__ = unpinned
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = HOST_RESERVE_BYTES


def _install_transfers() -> None:
    from radixtier.cpu.transfers import CPU_KERNELS

    for name, kernels in CPU_KERNELS.items():
        module = importlib.import_module(name)
        for kernel in kernels:
            setattr(module, kernel.__name__, kernel)


def _install_attention() -> None:
    from radixtier.cpu.attention import install

    backend = importlib.import_module("sglang.srt.layers.attention.torch_native_backend")
    install(backend.TorchNativeAttnBackend)


def _attend_to_latents() -> None:
    """Have `torch_native` attend to latents always.

    For a backend without a rule of its own stock takes keys and values per head when nothing is cached; this one reads
    them from the pool, which has latents.
    """
    handlers: Any = importlib.import_module("sglang.srt.models.deepseek_common.attention_backend_handler")
    absorbed = handlers.AttnForwardMethod.MLA
    handlers.AttentionBackendRegistry.register("torch_native", lambda layer, batch: absorbed)
