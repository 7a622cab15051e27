"""A stand-in for KvikIO, importable as the real one is, here and in child processes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radixtier.io import kvikio as engine_module


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvikio"]:
        del sys.modules[name]


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, fresh: nothing in this process has used it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "fake")
    monkeypatch.setenv(engine_module.LOG_VARIABLE, "/nowhere/cufile.log")
    monkeypatch.setattr(engine_module, "_is_set_up", False)
    monkeypatch.delenv("FAKE_KVIKIO", raising=False)
    _forget()
    yield importlib.import_module("kvikio")
    _forget()


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Tell the stand-in what is to go wrong."""
    return lambda words: monkeypatch.setenv("FAKE_KVIKIO", words)
