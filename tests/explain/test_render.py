"""Records as data and as text."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from radixtier.explain.history import Reason, RequestRecord
from radixtier.explain.nodes import Event, NodeReport
from radixtier.explain.render import (
    REQUEST_HEAD,
    node_json,
    node_text,
    outcome_text,
    request_json,
    request_line,
    request_text,
)
from radixtier.policy.hints import Hint, Kind

NOON = 1_790_000_000.0


def record() -> RequestRecord:
    made = RequestRecord("r-1", "s1", NOON, 0.25, prompt_tokens=4096, hbm=1024, dram=2048, nvme=512)
    made.because(Reason.NEVER_SEEN, 200)
    made.because(Reason.EVICTED, 256, when=NOON - 60, rule="lru")
    made.because(Reason.DECLINED, 50, "write budget")
    made.hints.append(Hint(Kind.PIN, "a1").granted(4096, 1024, "DRAM's share is full").to_json())
    return made


def test_a_request() -> None:
    data = json.loads(json.dumps(request_json(record())))
    assert data["served"] == {"hbm": 1024, "dram": 2048, "nvme": 512} and data["recomputed"] == 512
    assert data["causes"][1] == {"reason": "evicted", "tokens": 256, "detail": "", "when": NOON - 60, "rule": "lru"}
    assert request_text(data).splitlines() == [
        "request r-1, session s1, arrived 2026-09-21 14:13:20, waited 0.250 s",
        "  prompt          4096 tokens",
        "  from HBM        1024",
        "  from DRAM       2048",
        "  from NVMe        512",
        "  computed         512",
        "          200 never seen",
        "          256 evicted 2026-09-21 14:12:20 by lru",
        "           50 declined: write budget",
        "            6 without a record of why",
        "  hint pin a1: clipped, 1024 of 4096 tokens: DRAM's share is full",
    ]


def test_a_list_of_requests() -> None:
    line = request_line(request_json(record()))
    assert line.split() == ["2026-09-21", "14:13:20", "4096", "1024", "2048", "512", "512", "0.250", "r-1"]
    assert line.index("r-1") == REQUEST_HEAD.index("request")


def test_a_node() -> None:
    report = NodeReport(
        node=7,
        parent=3,
        start_token=64,
        tokens=128,
        places={"DRAM and NVMe": 96, "NVMe": 32},
        last_used=NOON,
        hits=3,
        session="s1",
        expected=NOON + 30,
        pinned={"dram": 12.4},
        events=[Event(NOON - 9, "demoted", "lru"), Event(NOON - 1, "promoted", "")],
    )
    assert node_text(json.loads(json.dumps(node_json(report)))).splitlines() == [
        "node 7: tokens 64 to 192, behind node 3",
        "  DRAM and NVMe         96 tokens",
        "  NVMe                  32 tokens",
        "  used by 3 requests, last 2026-09-21 14:13:20",
        "  session s1",
        "  expected again 2026-09-21 14:13:50",
        "  pinned in dram for another 12 s",
        "  2026-09-21 14:13:11  demoted (lru)",
        "  2026-09-21 14:13:19  promoted",
    ]
    assert node_text(node_json(NodeReport(0))).splitlines() == [
        "node 0: tokens 0 to 0, behind the root",
        "  used by 0 requests",
    ]


def test_text_from_clients_cannot_drive_the_terminal() -> None:
    text = request_text(request_json(RequestRecord("\x1b[2J\n\u202e", session="\r")))
    assert text.startswith("request ?[2J??, session ?,")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [*request_json(record()), *node_json(NodeReport(0)), "kind", "status", "reason", "when", "rule", "what", "why"]


@given(
    st.dictionaries(
        st.sampled_from(FIELDS), JSON | st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=6
    )
)
def test_whatever_a_server_says_becomes_some_text(data: dict[str, Any]) -> None:
    for render in (request_text, request_line, node_text, outcome_text):
        assert isinstance(render(data), str)
