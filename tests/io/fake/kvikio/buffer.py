"""Registration of GPU memory."""

from __future__ import annotations

from typing import Any

from kvikio import CALLS, misbehave


def memory_register(buf: Any) -> None:
    CALLS["register"] += 1
    misbehave("register")
    assert hasattr(buf, "__cuda_array_interface__"), "no device buffer"


def memory_deregister(buf: Any) -> None:
    CALLS["deregister"] += 1
    misbehave("deregister")
