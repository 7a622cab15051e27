"""GPU memory that is ordinary memory; the word ``no-gpu`` in ``FAKE_KVIKIO`` takes the GPU away."""

from __future__ import annotations

import ctypes
import enum
import os
from typing import Any

_MEMORY: dict[int, Any] = {}


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


OK = CUresult.CUDA_SUCCESS


def cuInit(flags: int) -> tuple[CUresult]:
    gone = "no-gpu" in os.environ.get("FAKE_KVIKIO", "").split()
    return (CUresult.CUDA_ERROR_NO_DEVICE if gone else OK,)


def cuDeviceGet(ordinal: int) -> tuple[CUresult, int]:
    return OK, ordinal


def cuDevicePrimaryCtxRetain(device: int) -> tuple[CUresult, str]:
    return OK, "context"


def cuCtxSetCurrent(context: str) -> tuple[CUresult]:
    assert context == "context"
    return (OK,)


def cuCtxSynchronize() -> tuple[CUresult]:
    return (OK,)


def cuMemAlloc(nbytes: int) -> tuple[CUresult, int]:
    memory = ctypes.create_string_buffer(nbytes)
    _MEMORY[ctypes.addressof(memory)] = memory
    return OK, ctypes.addressof(memory)


def cuMemsetD8(pointer: int, byte: int, nbytes: int) -> tuple[CUresult]:
    ctypes.memset(pointer, byte, nbytes)
    return (OK,)


def cuMemcpyDtoH(target: int, pointer: int, nbytes: int) -> tuple[CUresult]:
    ctypes.memmove(target, pointer, nbytes)
    return (OK,)


def cuMemFree(pointer: int) -> tuple[CUresult]:
    del _MEMORY[pointer]
    return (OK,)
