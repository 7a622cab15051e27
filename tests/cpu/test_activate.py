"""`activate` lets stock host pools exist, and move bytes, without a GPU; twice is once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from radixtier.cpu.environment import environment

# In a process of its own: the engine stays in a process once it is there.
_SCRIPT = """
import itertools

import torch
from radixtier.cpu import activate
activate()
activate()
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry, AttnForwardMethod

wrapped = TorchNativeAttnBackend._run_sdpa_forward_extend
assert wrapped.__wrapped__.__module__.startswith("sglang."), "installed twice"
assert AttentionBackendRegistry.get_handler("torch_native")(None, None) is AttnForwardMethod.MLA
PAGE, LAYERS = 4, 2

def mha():
    device = MHATokenToKVPool(16 * PAGE, PAGE, torch.float32, 2, 8, LAYERS, "cpu", enable_memory_saver=False)
    return MHATokenToKVPoolHost, device, (*device.k_buffer, *device.v_buffer), {}

def mla():
    device = MLATokenToKVPool(16 * PAGE, PAGE, torch.float32, 12, 4, LAYERS, "cpu", enable_memory_saver=False)
    return MLATokenToKVPoolHost, device, device.kv_buffer, {"target_layer_num": LAYERS}

WAYS = (("page_first_direct", "direct"), ("layer_first", "direct"), ("page_first", "kernel"), ("layer_first", "kernel"))
for kind, (layout, backend) in itertools.product((mha, mla), WAYS):
    cls, device, buffers, more = kind()
    info = device.get_device_pool_infos()[0].buffer_info
    host = cls(
        info, 2.0, 0, PAGE, layout, device_capacity_tokens=16 * PAGE, start_layer=0, end_layer=LAYERS, **more
    )
    assert not host.pin_memory
    slots = torch.cat([torch.arange(p * PAGE, p * PAGE + PAGE) for p in (3, 1, 9)])
    handles = host.alloc(3 * PAGE)
    for buffer in buffers:
        buffer.normal_()
    before = [buffer[slots].clone() for buffer in buffers]
    host.backup_from_device_all_layer(device, handles, slots, backend)
    for buffer in buffers:
        buffer.zero_()
    for layer in range(LAYERS):
        host.load_to_device_per_layer(device, handles, slots, layer, backend)
    after = [buffer[slots] for buffer in buffers]
    assert all(map(torch.equal, before, after)), (kind, layout, backend)
    for buffer in buffers:
        assert buffer.flatten(1).any(dim=1).nonzero().flatten().tolist() == sorted(slots.tolist())
print("done")
"""


def test_stock_host_pools_work_in_every_layout() -> None:
    pytest.importorskip("sglang")
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT]
    run = subprocess.run(command, env=environment(os.environ), capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout.strip().endswith("done"), run.stderr[-3000:]
