"""A real SGLang server with the tier, and a model of random weights, for the end-to-end tests.

One server per page size serves all tests, the second from an SGLang with the patch; every test starts with empty tiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_rig import REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, patched_copy, tier_flags, with_path

from radixtier.lab.traces.opening import open_trace
from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.live.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session", params=[(16, False), (1, True)], ids=["page_size=16", "page_size=1-patched"])
def running(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiered]:
    page_size, patched = request.param
    directory = tmp_path_factory.mktemp("server")
    store = directory / "nvme"
    store.mkdir()
    env = with_path(patched_copy(directory)) if patched else None
    flags = [*tier_flags(store, page_size), "--radix-tier-record", str(directory / "trace.jsonl")]
    with Server("of the test", tiny_model, flags, directory / "log", env=env) as server:
        server.start(START_TIMEOUT_S)
        yield Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), page_size, store, directory / "trace.jsonl")
        assert server.running(), server.failure("died during the tests")
    trace = open_trace(directory / "trace.jsonl")
    assert list(trace.requests()), "all that the tests did can be read"


@pytest.fixture
def tiered(running: Tiered) -> Tiered:
    assert running.server.running(), running.server.failure("died in an earlier test")
    running.client.flush()
    return running
