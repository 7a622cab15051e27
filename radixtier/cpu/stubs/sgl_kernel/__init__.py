"""Stands in for `sgl_kernel` in a ``--device cpu`` server whose real `sgl_kernel` cannot serve a CPU.

Not a module of radixtier: `radixtier.cpu.environment` puts the directory above on PYTHONPATH of one server's process
tree, and only there. Owns the kernels that a CPU server calls on every run, in plain torch for any processor.
Invariant: a kernel that is not here never returns a wrong result: other ``*_cpu`` names import, since SGLang imports
them unconditionally, and raise when called; every other name does not exist, so that SGLang's own fallbacks apply.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NoReturn

import torch

__version__ = "0.0.0+radixtier.cpu"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's run of new slots into its row of the token table.

    Request `i` takes the next ``end_offset[i] - start_offset[i]`` entries of `out_cache_loc` into columns
    ``start_offset[i]:end_offset[i]`` of row ``req_pool_indices[i]``; `pool_len` is the width of the table.
    """
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        if end > pool_len:
            raise ValueError(f"request slot {row} grows to {end} tokens, the token table has {pool_len} columns")
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy rows `src_loc` to rows `tgt_loc` in every KV buffer; sources are read before any target is written.

    `data_ptrs` holds addresses of buffers whose rows are `strides` bytes long.
    """
    if tgt_loc.numel() == 0:
        return
    target, source = tgt_loc.to(torch.int64), src_loc.to(torch.int64)
    rows = int(torch.maximum(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        table = torch.frombuffer(memory, dtype=torch.uint8).view(rows, stride)
        table[target] = table[source]


def _init_cpu_threads_env(cpu_ids: object) -> None:
    """Leave the threads as OMP_NUM_THREADS made them; the real kernel pins them to `cpu_ids`. Called on Arm only."""


def _initialize(size: int, rank: int) -> None:
    """Have no all-reduce over shared memory, which the real kernels bring: collectives then go over gloo.

    SGLang tells the groups that it builds next by this variable that there is one. Called on Arm only.
    """
    os.environ["LOCAL_SIZE"] = "0"


# On Arm these two are called as operators without being imported.
torch.ops.sgl_kernel.init_cpu_threads_env = _init_cpu_threads_env
torch.ops.sgl_kernel.initialize = _initialize


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.endswith("_cpu"):
        raise AttributeError(f"the CPU stand-in for sgl_kernel has no {name!r}")

    def missing(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} is not part of radixtier's CPU stand-in: this feature needs the CPU build of sgl-kernel"
        )

    return missing
