"""Readers: paths as the files spell them, and one clear line for what cannot be read."""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.lab.traces.mooncake import MooncakeTrace
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.sessions import SessionTrace
from radixtier.lab.traces.trace import ROOT, BadTrace, Nodes
from radixtier.policy.admission import FANOUT


def write(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def mooncake(time: float, *ids: int) -> dict[str, Any]:
    return {"timestamp": time, "input_length": 1, "output_length": 1, "hash_ids": list(ids)}


def test_equal_ids_are_one_node_and_a_follow_up_is_the_same_session(tmp_path: Path) -> None:
    rows = [mooncake(0, 1, 2, 3), mooncake(1000, 1, 4), mooncake(2500, 1, 2, 5, 6), mooncake(3000, 9)]
    trace = open_trace(write(tmp_path / "t.jsonl", rows))
    found = list(trace.requests())
    assert [request.time for request in found] == [0.0, 1.0, 2.5, 3.0]
    assert [list(request.path) for request in found] == [[0, 1, 2], [0, 3], [0, 1, 4, 5], [6]]
    assert [request.session for request in found] == [0, 1, 0, 2]
    assert trace.nodes.parent == [ROOT, 0, 1, 0, 1, 4, ROOT]
    assert trace.nodes.depth == [0, 1, 2, 1, 2, 3, 0] and trace.nodes.pages == [1] * 7


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not a line of JSON"),
        ("[1]", "no object"),
        ('{"timestamp": 1}', "no object"),
        (json.dumps(mooncake(-1, 1)), "timestamp -1"),
        (json.dumps(mooncake(3, 1)), "before the line above"),
        ('{"timestamp": "x", "hash_ids": [1]}', "timestamp 'x'"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "timestamp nan"),
        (json.dumps(mooncake(9)), "or empty"),
        ('{"timestamp": 9, "hash_ids": [1.5]}', "hash id 1.5"),
        (json.dumps(mooncake(9, 2, 1)), "hash id 2 follows another"),
    ],
)
def test_a_bad_line_of_mooncake_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = write(tmp_path / "t.jsonl", [mooncake(5, 1, 2)])
    file.write_text(file.read_text() + "\n" + line + "\n")
    with pytest.raises(BadTrace) as error:
        list(MooncakeTrace(file).requests())
    assert str(error.value).startswith(f"{file}:3: ") and why in str(error.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", "not a list of 7"),
        ("[0, 1, 2]", "not a list of 7"),
        ("[0, -1, 1, 1, 0, 0, 5]", "-1 is no time"),
        ("[0, true, 1, 1, 0, 0, 5]", "True is no time"),
        ("[0, 1, 1, 1, 0, 6, 5]", "6 shared of 5"),
        ("[0, 1, 1, 1, 0, 0, 0]", "0 shared of 0"),
        ("[0, 1, 1, 1, 0, 0.5, 5]", "0.5 shared"),
        ("[0, 1, 1, 1, 0, 5, 9]", "shares 5 blocks with a line that has 4"),
        ("[[0], 1, 1, 1, 0, 0, 9]", "the session"),
    ],
)
def test_a_bad_line_of_sessions_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("[0, 0.0, 1, 1, 0, 0, 4]\n" + line + "\n")
    with pytest.raises(BadTrace) as error:
        list(SessionTrace(file).requests())
    assert str(error.value).startswith(f"{file}:2: ") and why in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\xfa"])
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadTrace, match=rf"{file}:1: "):
        open_trace(file)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    file.write_bytes(gzip.compress(b"[0, 0.0, 1, 1, 0, 0, 4]\n" * 1000)[:-20])
    with pytest.raises(BadTrace, match="damaged"):
        list(open_trace(file).requests())


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 100), st.integers(0, 5)), max_size=30)


@given(ROWS)
def test_paths_of_sessions_are_those_of_single_blocks(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    """Against a stack of blocks per session: same lengths, same sharing with every other line, whatever the cuts."""
    lines, totals = [], {}
    for session, time, part, more in rows:
        shared = totals.get(session, 0) * part // 100
        total = shared + more or 1
        totals[session] = total
        lines.append([session, float(time), 1, 1, 0.0, shared, total])
    if not lines:
        return
    file = write(tmp_path_factory.mktemp("t") / "t.jsonl", lines)
    trace = SessionTrace(file)
    found = list(trace.requests())
    assert [request.time for request in found] == sorted(request.time for request in found)
    by_session: dict[int, list[list[int]]] = {}
    for request in found:
        nodes, first, pages = trace.nodes, trace.nodes.first, trace.nodes.pages
        assert all(nodes.parent[node] == above for above, node in pairwise([ROOT, *request.path]))
        blocks = [block for node in request.path for block in range(first[node], first[node] + pages[node])]
        by_session.setdefault(request.session, []).append(blocks)
    order = list(dict.fromkeys(line[0] for line in lines))
    for number, name in enumerate(order):
        stack: list[tuple[int, int]] = []
        expected = []
        for row, (session, _, _, _, _, shared, total) in enumerate(lines):
            if session == name:
                stack = stack[:shared] + [(row, place) for place in range(shared, total)]
                expected.append(list(stack))
        names: dict[tuple[int, int], int] = {}
        for blocks, wanted in zip(by_session[number], expected, strict=True):
            assert [names.setdefault(want, block) for want, block in zip(wanted, blocks, strict=True)] == blocks
        assert len(set(names.values())) == len(names)


def test_lines_long_after_the_start_are_left_out_and_starts_are_seeded(tmp_path: Path) -> None:
    rows = [["a", 0.0, 1, 1, 0, 0, 3], ["a", 50_000.0, 1, 1, 0, 3, 5], ["a", 60.0, 1, 1, 0, 5, 6]]
    first, second = SessionTrace(write(tmp_path / "t.jsonl", rows)).requests()
    start = random.Random(0).uniform(0.0, 86_400.0)
    assert (first.time, second.time) == (start, start + 60.0)
    assert len(second.path) == 2, "of the five shared blocks, the three that were there"


def test_the_first_children_go_on_with_the_lead_of_their_parent() -> None:
    nodes = Nodes()
    root = nodes.add(ROOT, 2)
    children = [nodes.add(root, 3) for _ in range(FANOUT + 2)]
    assert [nodes.lead[child] for child in children[:FANOUT]] == [0] * FANOUT
    assert [nodes.lead[child] for child in children[FANOUT:]] == [nodes.first[child] for child in children[FANOUT:]]
    grandchild = nodes.add(children[-1], 1)
    assert nodes.lead[grandchild] == nodes.first[children[-1]]
    assert len(set(nodes.keys(children[1], 0, 3).tolist()) | set(nodes.keys(children[0], 0, 3).tolist())) == 6
