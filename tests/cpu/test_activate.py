"""`activate` lets stock host pools exist, and move bytes, without a GPU; twice is once."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from radixtier.cpu.environment import environment

# In a process of its own: the engine stays in a process once it is there.
_SCRIPT = """
import torch
from radixtier.cpu import activate
activate()
activate()
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost, get_mha_host_pool_cls

wrapped = TorchNativeAttnBackend._run_sdpa_forward_extend
assert wrapped.__wrapped__.__module__.startswith("sglang."), "installed twice"
PAGE, LAYERS = 4, 2
for layout, backend in (("page_first_direct", "direct"), ("layer_first", "direct"),
                        ("page_first", "kernel"), ("layer_first", "kernel")):
    device = MHATokenToKVPool(16 * PAGE, PAGE, torch.float32, 2, 8, LAYERS, "cpu", enable_memory_saver=False)
    info = device.get_device_pool_info() if hasattr(device, "get_device_pool_info") else device.device_pool_info()
    host = get_mha_host_pool_cls(info)(
        info, 2.0, 0, PAGE, layout, device_capacity_tokens=16 * PAGE, start_layer=0, end_layer=LAYERS
    )
    assert not host.pin_memory
    slots = torch.cat([torch.arange(p * PAGE, p * PAGE + PAGE) for p in (3, 1, 9)])
    handles = host.alloc(3 * PAGE)
    for layer in range(LAYERS):
        device.k_buffer[layer].normal_()
        device.v_buffer[layer].normal_()
    before = [b[slots].clone() for b in (*device.k_buffer, *device.v_buffer)]
    host.backup_from_device_all_layer(device, handles, slots, backend)
    for buffer in (*device.k_buffer, *device.v_buffer):
        buffer.zero_()
    for layer in range(LAYERS):
        host.load_to_device_per_layer(device, handles, slots, layer, backend)
    after = [b[slots] for b in (*device.k_buffer, *device.v_buffer)]
    assert all(map(torch.equal, before, after)), (layout, backend)
    assert all(float(b.abs().sum()) == float(b[slots].abs().sum()) for b in device.k_buffer)
print("done")
"""
