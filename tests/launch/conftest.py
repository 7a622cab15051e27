"""The scripts are tried on a machine that is made up, with the GPUs of the tests of ``radixtier suggest``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "suggest"))

from launch_rig import Rig
from suggest_rig import GIB, write_config, write_weights

if importlib.util.find_spec("sglang") is None:
    collect_ignore = ["test_launch_flags.py"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Directory of an 8B model with 16 GiB of weights that take no room."""
    path = write_config(tmp_path / "model")
    write_weights(path, 16 * GIB)
    return path


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "kv").mkdir(mode=0o700)
    return str(tmp_path / "kv")
