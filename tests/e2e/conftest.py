"""A real SGLang server with the tier, and a model of random weights, for the end-to-end tests.

One server per page size serves all tests; every test starts with empty tiers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_rig import REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, tier_flags

from radixtier.lab.traces.opening import open_trace
from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.live.tiny import make_tiny_model
from radixtier.seams.installed import package_directory


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session", params=[16, 1], ids=lambda size: f"page_size={size}")
def running(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiered]:
    directory = tmp_path_factory.mktemp("server")
    store = directory / "nvme"
    store.mkdir()
    flags = [*tier_flags(store, request.param), "--radix-tier-record", str(directory / "trace.jsonl")]
    with Server("of the test", tiny_model, flags, directory / "log") as server:
        server.start(START_TIMEOUT_S)
        yield Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), request.param, store, directory / "trace.jsonl")
        assert server.running(), server.failure("died during the tests")
    trace = open_trace(directory / "trace.jsonl")
    assert list(trace.requests()), "all that the tests did can be read"


@pytest.fixture
def tiered(running: Tiered) -> Tiered:
    assert running.server.running(), running.server.failure("died in an earlier test")
    running.client.flush()
    return running


@pytest.fixture
def copied_sglang(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH with the installed SGLang, in links: the patch replaces those that it touches."""
    installed = package_directory()
    assert installed is not None
    shutil.copytree(installed, tmp_path / "site" / "sglang", copy_function=os.symlink)
    return tmp_path / "site"
