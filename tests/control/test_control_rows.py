"""The nodes of the real cache over the real endpoint: which there are, where their tokens are, and in which pages."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

from drain_rig import SIZES, WAIT_S
from harness import PAGE, Server, ask

from radixtier.control import Address
from radixtier.control import clerk as clerk_module
from radixtier.control import pace as pace_module
from radixtier.control.client import ControlClient, ControlError
from radixtier.policy.hints import Kind
from radixtier.sglang import rows as rows_module


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    servers: list[Any] = []
    with tempfile.TemporaryDirectory() as short:

        def make(**options: Any) -> Any:
            directory = tmp_path / f"nvme{len(servers)}"
            directory.mkdir()
            options["control"] = Address(path=f"{short}/{len(servers)}.sock")
            servers.append(Server(directory, **{**SIZES, **options}))
            return servers[-1]

        yield make
        for server in servers:
            server.close()
            server.cache.monitor.close()


def every(server: Any, limit: int = 1000, after: int | None = None) -> list[dict[str, Any]]:
    """All rows, page by page."""
    found: list[dict[str, Any]] = []
    for _ in range(10_000):
        answer = ask(server, "nodes", after, limit)
        assert len(answer["nodes"]) <= limit
        found += answer["nodes"]
        if (after := answer["next"]) is None:
            return found
    raise AssertionError("the listing never ended")


def test_a_row_tells_where_the_tokens_of_a_node_are(make_server) -> None:
    server = make_server()
    trunk = server.prompt(4, 1)
    server.serve(trunk)
    server.settle()
    branch = trunk + server.prompt(2, 2)
    server.serve(branch, session="chat")
    server.settle()
    server.serve(trunk)
    first, second = every(server)
    assert (first["node"], first["parent"], second["parent"]) == (0, None, 0)
    assert [first[name] for name in ("start_token", "tokens", "hbm", "dram", "nvme", "lost")] == [0, 16, 16, 16, 16, 0]
    assert (second["start_token"], second["tokens"], second["session"], first["session"]) == (16, 8, "chat", None)
    assert (first["hits"], second["hits"]) == (3, 1) and first["last_used"] > second["last_used"] > 1e9
    server.evict_hbm()
    server.demote_all()
    first, second = every(server)
    assert [[row[name] for name in ("hbm", "dram", "nvme")] for row in (first, second)] == [[0, 0, 16], [0, 0, 8]]
    assert ask(server, "give_hint", Kind.PIN, {"tokens": trunk, "ttl_s": 60})["status"] == "deferred"
    first, second = every(server)
    assert 0 < first["pinned"]["dram"] <= 60 and second["pinned"] == {}


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_pages_hold_every_node_once_and_sums_are_those_of_the_tiers(make_server, limit: int) -> None:
    server = make_server(nvme=128)
    trunk = server.prompt(4, 1)
    for seed in range(2, 14):
        server.serve(trunk[: PAGE * (seed % 4)] + server.prompt(2, seed))
        server.settle()
    found = every(server, limit)
    numbers = [row["node"] for row in found]
    assert numbers == sorted(set(numbers)) == sorted(server.cache.mover.tree.runs)
    state = ask(server, "state")
    assert sum(row["nvme"] for row in found) == (state["pages"]["clean"] + state["pages"]["cold"]) * PAGE
    assert sum(row["dram"] for row in found) == state["tiers"]["dram"]["used"]
    tree = ask(server, "tree")
    assert tree["total_nodes"] == len(found) == state["nodes"]
    shown = {item["node"]: item for item in tree["nodes"]}
    assert {number: shown[number]["tokens"] for number in numbers} == {row["node"]: row["tokens"] for row in found}
    deepest = max(found, key=lambda row: row["start_token"])
    path = ask(server, "tree", root=deepest["node"])["path"]
    assert sum(row["tokens"] for row in path) == deepest["start_token"] + deepest["tokens"]


def test_the_listing_goes_on_while_nodes_come_and_go(make_server) -> None:
    server = make_server()
    for seed in range(8):
        server.serve(server.prompt(2, seed))
        server.settle()
    first = ask(server, "nodes", None, 3)
    assert [row["node"] for row in first["nodes"]] == [0, 1, 2] and first["next"] == 2
    pages = server.cache.mover.tree.pages_of(4)
    server.cache.mover.tree.forget(pages)
    for seed in range(8, 11):
        server.serve(server.prompt(2, seed))
        server.settle()
    second = ask(server, "nodes", 2, 3)
    assert [row["node"] for row in second["nodes"]] == [3, 5, 6]
    assert [row["node"] for row in every(server, after=6)] == [7, 8, 9, 10], "those that came since as well"
    assert ask(server, "nodes", 10)["nodes"] == [] and ask(server, "nodes", 10**18)["next"] is None


def test_a_page_is_bounded_in_pages_of_kv_and_in_nodes_that_are_gone(
    make_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    for seed in range(8):
        server.serve(server.prompt(2, seed))
        server.settle()
    monkeypatch.setattr(rows_module, "MOST_PAGES", 5)
    assert [len(ask(server, "nodes", after)["nodes"]) for after in (None, 1, 6)] == [2, 2, 1]
    monkeypatch.setattr(rows_module, "MOST_PAGES", 1)
    assert len(ask(server, "nodes")["nodes"]) == 1, "a long run is a page of its own"
    monkeypatch.setattr(rows_module, "MOST_GONE", 2)
    first = ask(server, "nodes", None, 1)
    assert len(first["nodes"]) == 1
    tree = server.cache.mover.tree
    for number in range(1, 7):
        tree.forget(tree.pages_of(number))
    second = ask(server, "nodes", 0, 1)
    assert (second["nodes"], second["next"]) == ([], 3)
    assert [row["node"] for row in every(server, 1)] == [0, 7]


@pytest.mark.parametrize("waits", [False, True])
def test_one_step_of_an_idle_scheduler_reads_the_whole_tree(
    make_server, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(clerk_module, "PAGE_ROWS", 2)
    monkeypatch.setattr(pace_module, "IDLE_S", WAIT_S)
    monkeypatch.setattr(pace_module, "LEAST_S", 0.0)
    monkeypatch.setattr(pace_module, "SHARE", 0.0)
    server = make_server()
    for seed in range(8):
        server.serve(server.prompt(2, seed))
        server.settle()
    request = server.request(server.prompt(2, 9))
    if waits:
        server.arrive(request)
    control = server.cache.control
    steps = 0
    with ThreadPoolExecutor() as pool:
        tree = pool.submit(ControlClient(control.address).tree)
        end = time.monotonic() + WAIT_S
        while not tree.done():
            assert time.monotonic() < end
            if control._desk.pending:
                server.events()
                steps += 1
    assert tree.result()["total_nodes"] == 8
    assert steps == (4 if waits else 1), "with somebody waiting, a page per step"


def test_an_empty_cache_and_one_that_was_flushed(make_server) -> None:
    server = make_server()
    assert every(server) == [] and ask(server, "tree")["nodes"] == []
    server.serve(server.prompt(3, 1))
    server.settle()
    server.cache.reset()
    assert every(server) == []
    with pytest.raises(ControlError, match="does not exist"):
        ask(server, "tree", root=0)


def test_history_and_events_come_from_the_monitor_or_not_at_all(make_server) -> None:
    server = make_server()
    assert set(ask(server, "history", 60)) == {"interval_s", "at", "series"}
    assert isinstance(ask(server, "events", 5)["events"], list)
    server.cache.control._cache = _Without(server.cache)
    for call in ("history", "events"):
        with pytest.raises(ControlError, match="by this server") as refused:
            ask(server, call)
        assert refused.value.status == 503


class _Without:
    """A cache that has no monitor."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        if name == "monitor":
            raise AttributeError(name)
        return getattr(self._cache, name)
