"""Environment of the configuration tests: no variable of ours, and no SGLang tests without SGLang."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore = ["test_flags.py", "test_refusals.py", "test_startup.py"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RADIXTIER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Directory of a tiny Llama without weights."""
    from sglang_rig import write_model

    return write_model(tmp_path / "model")
