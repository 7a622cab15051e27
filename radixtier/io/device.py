"""A little GPU memory without a GPU library of the size of torch: for trials of what an engine can do.

Owns the memory from construction to :meth:`DeviceBytes.close`. Uses NVIDIA's own bindings of the driver, which come
with SGLang; nothing of them is imported before. One thread.
"""

from __future__ import annotations

import ctypes
from typing import Any


class DeviceBytes:
    """``nbytes`` bytes on the first GPU that this process sees, as KvikIO takes them.

    Raises
    ------
    Exception
        Whatever the bindings raise, or a `RuntimeError` with the driver's word for it, where there is no such memory.
    """

    def __init__(self, nbytes: int) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.nbytes = nbytes
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", device))
        self._pointer = self._call("cuMemAlloc", nbytes)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *result = getattr(self._driver, name)(*arguments)
        if int(error) != 0:
            raise RuntimeError(f"{name}: {getattr(error, 'name', error)}")
        return result[0] if result else None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (int(self._pointer), False), "version": 3}

    def fill(self, byte: int) -> None:
        """Set every byte."""
        self._call("cuMemsetD8", self._pointer, byte, self.nbytes)
        self._call("cuCtxSynchronize")

    def tobytes(self) -> bytes:
        """Return a copy of them."""
        copy = ctypes.create_string_buffer(self.nbytes)
        self._call("cuMemcpyDtoH", ctypes.addressof(copy), self._pointer, self.nbytes)
        return copy.raw

    def close(self) -> None:
        """Give the memory back."""
        self._call("cuMemFree", self._pointer)
