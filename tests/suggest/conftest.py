"""No variable of ours or of CUDA; no SGLang tests without SGLang; directories that look like drives of 500 GiB."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from suggest_rig import GIB, write_smi

from radixtier import machine
from radixtier.suggest import drives

if importlib.util.find_spec("sglang") is None:
    collect_ignore = ["test_suggest_flags.py"]

_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("RADIXTIER_", "CUDA_")) or name == "XDG_RUNTIME_DIR":
            monkeypatch.delenv(name)
    # A machine with GPUs must not change what is tested.
    monkeypatch.setenv("PATH", write_smi(tmp_path / "no-gpu", status=9, error="No devices were found"))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file system is ext4 and has 500 GiB free of 1,000 GB."""
    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 500 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(10**12, 0, 500 * GIB))
    monkeypatch.setattr(drives, "file_system_type", lambda path: "ext4")
    monkeypatch.setattr(drives, "rotates", lambda path: False)


@pytest.fixture
def separate(monkeypatch: pytest.MonkeyPatch, room: None) -> None:
    """Every directory is a file system of its own."""
    from radixtier import config
    from radixtier.suggest import reasons, servers

    def apart(paths: object) -> list[machine.FileSystem]:
        return [machine.FileSystem((str(path),), 500 * GIB) for path in paths]  # type: ignore[attr-defined]

    for module in (config, reasons, servers):
        monkeypatch.setattr(module, "file_systems", apart)
    monkeypatch.setattr(servers, "drive_bytes", lambda paths: 10**12 * len(list(paths)))
