"""The CPU engine's tests compare with stock SGLang, imported as a CPU server would import it."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def torch_native() -> type:
    """Stock `TorchNativeAttnBackend`; skips where SGLang is not installed."""
    pytest.importorskip("sglang")
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    return TorchNativeAttnBackend
