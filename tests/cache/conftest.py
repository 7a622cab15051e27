"""The real unified radix cache on CPU tensors; skipped where SGLang is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a server built with ``clock=clock`` takes for the time; it stands still until told otherwise."""
    from harness import CLOCKED, Clock

    clock = Clock()
    for name in CLOCKED:
        monkeypatch.setattr(f"radixtier.sglang.{name}.time", clock)
    return clock


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Builds servers in miniature; all are closed at the end."""
    from harness import Server

    servers: list[Any] = []

    def make(hbm: int, dram: int, nvme: int, **options: Any) -> Any:
        directory = options.pop("directory", tmp_path / f"nvme{len(servers)}")
        directory.mkdir(exist_ok=True)
        servers.append(Server(directory, hbm, dram, nvme, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(params=["mha", "mla"])
def make_either(request: pytest.FixtureRequest, make_server: Callable[..., Any]) -> Callable[..., Any]:
    """Builds servers in miniature of models with K and V per head, and of models with a latent (MLA)."""
    return partial(make_server, kind=request.param)
