"""The schema against the server: requests made from it by the hundred, each answered as it says.

Schemathesis makes requests that the schema allows and such that it does not. No answer may be a failure of the server;
every one has to be of a status, a media type and a form that the schema names; and what the schema does not allow has
to be refused. Once with a scheduler that answers by a script, once with the real cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import schemathesis
from control_rig import LOOPBACK, PATIENCE_S, serving
from drain_rig import SIZES, until_status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from radixtier.control import (
    Command,
    Drain,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ListNodes,
    ReadEvents,
    ReadHistory,
    ReadRows,
    Refusal,
    Rows,
)
from radixtier.control.openapi import document
from radixtier.explain import NodeReport, RequestRecord
from radixtier.explain.render import node_json, request_json

KEY = "secret"
EXAMPLES = 20

CONFORM = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

FREE = ("/radix_tier/nodes", "/radix_tier/tree", "/radix_tier/history", "/radix_tier/events", "/radix_tier/drain")
FREE += ("/radix_tier/explain", "/radix_tier/state", "/radix_tier/openapi.json")
"""Paths whose fields do not depend on each other, so that all that the schema allows has to be taken."""


def state() -> dict[str, Any]:
    counts = dict.fromkeys(("clean", "cold"), 3)
    tier = {"capacity": 64, "used": 16}
    return {
        "pid": 1, "page_tokens": 4, "page_bytes": 64, "tiers": {"hbm": tier, "dram": tier}, "pages": counts,
        "nodes": 2, "policies": {"eviction": "lru"}, "counters": {}, "nvme_drained": None,
        "health": {"status": "ok", "reasons": []},
    }  # fmt: skip


def rows(after: int, limit: int) -> Rows:
    node = np.arange(after + 1, min(after + 1 + limit, 50))
    some = np.full(len(node), 16)
    none = np.full(len(node), np.nan)
    return Rows(node, node // 2 - 1, some * 0, some, some, some, some, some * 0, none, some, none)


def script(command: Command) -> Mapping[str, Any]:
    """Answers as the cache would."""
    if isinstance(command, GiveHint):
        return command.hint.granted(64, 64).to_json()
    if isinstance(command, ExplainRequests):
        if command.rid is not None:
            raise Refusal(404, f"request {command.rid} is not known")
        return {"requests": [request_json(RequestRecord("r1", prompt_tokens=64, hbm=60))] * min(3, command.limit)}
    if isinstance(command, ExplainNode):
        return {"nodes": [node_json(NodeReport(4, tokens=64, places={"HBM": 64}))]}
    if isinstance(command, (ListNodes, ReadRows)):
        limit = command.limit if isinstance(command, ListNodes) else 20
        found = rows(command.after, limit)
        what = {"rows": found} if isinstance(command, ListNodes) else {"parts": [found]}
        more = len(found) and int(found.node[-1]) < 49
        return what | {"next": int(found.node[-1]) if more else None, "total": 50}
    if isinstance(command, Drain):
        return {"status": "draining", "unwritten_pages": 3, "directories": ["/a"], "reason": "x", "control": None}
    return state()


SOURCES: dict[type, Any] = {
    ReadHistory: lambda command: {"interval_s": 1.0, "at": [1.0, 2.0], "series": {"tick_ms": [0.5, None]}},
    ReadEvents: lambda command: {"events": [{"at": 1.0, "level": "warning", "text": "x", "times": 2}]},
}


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with serving(LOOPBACK, script, KEY, sources=SOURCES) as server:
        yield f"http://{server.address}"


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    from harness import Server

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        server = Server(Path(name), **SIZES, control=LOOPBACK, control_key=KEY)
        ends.callback(server.cache.monitor.close)
        ends.callback(server.close)
        trunk = server.prompt(3, 1)
        for seed in range(2, 9):
            server.serve(trunk + server.prompt(2, seed), session=f"s{seed}")
            server.settle()
        stop = threading.Event()

        def ticks() -> None:
            while not stop.wait(0.001):
                server.events()

        thread = threading.Thread(target=ticks)
        thread.start()
        ends.callback(thread.join, PATIENCE_S)
        ends.callback(stop.set)
        yield f"http://{server.cache.control.address}"
        stop.set()
        thread.join(PATIENCE_S)
        until_status(server, "drained")


def operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(document())
    return [result.ok() for result in schema.get_all_operations()]


OPERATIONS = operations()


def play(url: str, operation: Any, mode: GenerationMode, examples: int, checks: list[Any]) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        response = case.call(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE_S)
        case.validate_response(response, checks=checks)

    one()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_what_the_schema_allows(operation: Any, scripted: str) -> None:
    more = [positive_data_acceptance] if operation.path in FREE else []
    play(scripted, operation, GenerationMode.POSITIVE, EXAMPLES, [*CONFORM, *more])


TAKING = [operation for operation in OPERATIONS if operation.query.items or operation.body.items]
"""Those that take something that could be wrong."""


@pytest.mark.parametrize("operation", TAKING, ids=lambda operation: operation.label)
def test_what_the_schema_does_not_allow(operation: Any, scripted: str) -> None:
    play(scripted, operation, GenerationMode.NEGATIVE, EXAMPLES, [*CONFORM, negative_data_rejection])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_the_real_cache_answers_in_the_same_form(operation: Any, real: str) -> None:
    play(real, operation, GenerationMode.POSITIVE, 10, CONFORM)


@given(st.sampled_from(OPERATIONS), st.sampled_from(["", "Bearer", "Bearer wrong", "Basic secret"]))
def test_without_the_key_there_is_nothing(scripted: str, operation: Any, key: str) -> None:
    answer = requests.request(
        operation.method, scripted + operation.path, headers={"Authorization": key}, json={}, timeout=PATIENCE_S
    )
    assert answer.status_code == 401 and set(answer.json()) == {"error"}
