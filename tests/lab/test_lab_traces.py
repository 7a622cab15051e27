"""Readers: paths as the files spell them, and one clear line for what cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.lab.traces import lines as reading
from radixtier.lab.traces.mooncake import MooncakeTrace
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.recording import Header, TraceWriter
from radixtier.lab.traces.sessions import SessionTrace
from radixtier.lab.traces.trace import ROOT, BadTrace, Nodes
from radixtier.policy.admission import FANOUT


def write(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def mooncake(time: float, *ids: int) -> dict[str, Any]:
    return {"timestamp": time, "input_length": 512 * len(ids) - 5, "output_length": 7, "hash_ids": list(ids)}


def test_equal_ids_are_one_node_and_a_follow_up_is_the_same_session(tmp_path: Path) -> None:
    rows = [mooncake(0, 1, 2, 3), mooncake(1000, 1, 4), mooncake(2500, 1, 2, 5, 6), mooncake(3000, 9)]
    trace = open_trace(write(tmp_path / "t.jsonl", rows))
    found = list(trace.requests())
    assert [request.time for request in found] == [0.0, 1.0, 2.5, 3.0]
    assert [list(request.path) for request in found] == [[0, 1, 2], [0, 3], [0, 1, 4, 5], [6]]
    assert [request.session for request in found] == [0, 1, 0, 2]
    assert [(request.input_tokens, request.output_tokens) for request in found[:2]] == [(1531, 7), (1019, 7)]
    assert list(trace.nodes.parent) == [ROOT, 0, 1, 0, 1, 4, ROOT]
    assert list(trace.nodes.depth) == [0, 1, 2, 1, 2, 3, 0] and list(trace.nodes.pages) == [1] * 7


BAD_MOONCAKE = [
    ("{", "not a line of JSON"),
    ("[" * 100_000, "not a line of JSON"),
    ("9" * 10_000, "not a line of JSON"),
    ("[1]", "no object"),
    ('{"timestamp": 1}', "no object"),
    (json.dumps(mooncake(-1, 1)), "timestamp -1"),
    (json.dumps(mooncake(3, 1)), "timestamp 3 is before the line above"),
    ('{"timestamp": "x", "hash_ids": [1]}', "timestamp 'x'"),
    ('{"timestamp": true, "hash_ids": [1]}', "timestamp True"),
    ('{"timestamp": NaN, "hash_ids": [1]}', "NaN is no number"),
    ('{"timestamp": 1e999, "hash_ids": [1]}', "too large a number"),
    (f'{{"timestamp": {10**40}, "hash_ids": [1]}}', "timestamp 1000"),
    (json.dumps(mooncake(9)), "or empty"),
    ('{"timestamp": 9, "hash_ids": [1.5]}', "hash id 1.5"),
    ('{"timestamp": 9, "hash_ids": [false]}', "hash id False"),
    (f'{{"timestamp": 9, "hash_ids": [{10**40}]}}', "hash id 1000"),
    (json.dumps(mooncake(9, 2, 1)), "hash id 2 follows another"),
    (json.dumps(mooncake(9, 1, 1)), "hash id 1 follows another"),
    (json.dumps(mooncake(9, 7, 8, 7)), "an id twice"),
    (json.dumps(mooncake(9, 1, 2) | {"input_length": 512}), "input_length 512 does not fill 2 blocks"),
    (json.dumps(mooncake(9, 1) | {"input_length": 600}), "input_length 600 does not fill 1 blocks"),
    (json.dumps(mooncake(9, 1) | {"output_length": -1}), "output_length -1"),
    (json.dumps(mooncake(9, 1) | {"output_length": 1.0}), "output_length 1.0"),
    (json.dumps(mooncake(9, 1) | {"model": "x" * 1000}), "unknown field 'model': a line has timestamp, input_length"),
]


@pytest.mark.parametrize(("line", "why"), BAD_MOONCAKE)
def test_a_bad_line_of_mooncake_is_named_and_can_be_skipped(tmp_path: Path, line: str, why: str) -> None:
    file = write(tmp_path / "t.jsonl", [mooncake(5, 1, 2)])
    file.write_text(f"{file.read_text()}\n{line}\n{json.dumps(mooncake(9, 1, 3))}")
    with pytest.raises(BadTrace) as error:
        list(open_trace(file).requests())
    text = str(error.value)
    assert text.startswith(f"{file}:3: ") and why in text and "\n" not in text and len(text) < 300
    trace = open_trace(file, skip_bad=True)
    assert [list(request.path) for request in trace.requests()] == [[0, 1], [0, 2]]
    assert (trace.skipped, trace.first_bad, len(trace.nodes)) == (1, text, 3)


BAD_SESSIONS = [
    ("{}", "not a list of 7"),
    ("[0, 1, 2]", "not a list of 7"),
    ("[0, -1, 1, 1, 0, 0, 5]", "t_s -1 is no time"),
    ("[0, true, 1, 1, 0, 0, 5]", "t_s True is no number"),
    ("[0, 1, -1, 1, 0, 0, 5]", "input -1 is no whole number"),
    ("[0, 1, 1, 1.5, 0, 0, 5]", "output 1.5 is no whole number"),
    ("[0, 1, 1, 1, -2, 0, 5]", "think_s -2 is no time"),
    ("[0, 1, 1, 1, 0, 6, 5]", "shared_prefix_blocks 6 is no whole number from 0 to 5"),
    ("[0, 1, 1, 1, 0, 0, 0]", "total_blocks 0 is no whole number from 1"),
    ("[0, 1, 1, 1, 0, 0, 99999999999]", "total_blocks 99999999999 is no whole number"),
    ("[0, 1, 1, 1, 0, 0.5, 5]", "shared_prefix_blocks 0.5"),
    ("[0, 1, 1, 1, 0, 5, 9]", "shares 5 blocks with a line that has 4"),
    ("[[0], 1, 1, 1, 0, 0, 9]", "session [0] is neither"),
]


@pytest.mark.parametrize(("line", "why"), BAD_SESSIONS)
def test_a_bad_line_of_sessions_is_named_and_can_be_skipped(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f"[0, 0.0, 1, 1, 0, 0, 4]\n{line}\n[0, 9.0, 5, 6, null, 4, 8]\n")
    with pytest.raises(BadTrace) as error:
        list(open_trace(file).requests())
    assert str(error.value).startswith(f"{file}:2: ") and why in str(error.value)
    trace = open_trace(file, skip_bad=True)
    first, second = trace.requests()
    assert (trace.skipped, trace.first_bad) == (1, str(error.value))
    assert (second.input_tokens, second.output_tokens, second.think_s) == (5, 6, None)
    assert (first.think_s, second.time - first.time) == (0.0, 9.0)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\xfa", b"nonsense", b"[1, 2]", b'{"x": 1}', b"3"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes, skip_bad: bool) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadTrace, match=rf"{file}:1: "):
        open_trace(file, skip_bad=skip_bad)


def test_the_formats_are_told_to_who_has_another(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"prompt": "hello"}])
    with pytest.raises(BadTrace, match=r"three formats: Mooncake's .* of sessions .* recorded by a server"):
        open_trace(file)
    with pytest.raises(BadTrace, match="no header"):
        open_trace(write(file, [{"t": 0, "abort": 1}]))


def test_the_first_usable_line_tells_the_format(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("nonsense\n\ufeff{}\n" + json.dumps(mooncake(0, 1)) + "\n")
    trace = open_trace(file, skip_bad=True)
    assert isinstance(trace, MooncakeTrace) and len(list(trace.requests())) == 1 and trace.skipped == 2
    assert trace.first_bad == f"{file}:1: not a line of JSON"


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl"])
def test_an_archive_is_known_by_its_first_bytes_and_a_byte_order_mark_is_no_text(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(mooncake(0, 1, 2)).encode()))
    assert [list(request.path) for request in open_trace(file).requests()] == [[0, 1]]


def test_a_damaged_archive_ends_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    rows = [json.dumps(mooncake(time, *range(time % 9 + 1))) for time in range(1000)]
    file.write_bytes(gzip.compress("\n".join(rows).encode())[:-20])
    with pytest.raises(BadTrace, match="the archive is damaged or cut off here") as error:
        list(open_trace(file).requests())
    trace = open_trace(file, skip_bad=True)
    assert 900 < len(list(trace.requests())) < 1000
    assert (trace.skipped, trace.first_bad) == (1, str(error.value))


def test_a_line_without_end_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST", 1 << 20)
    file = tmp_path / "t.jsonl"
    good = json.dumps(mooncake(0, 1)).encode()
    file.write_bytes(b"[" * (3 << 20) + b"\n" + good + b"\n")
    with pytest.raises(BadTrace, match=rf"{file}:1: longer than 1 MiB"):
        open_trace(file)
    trace = open_trace(file, skip_bad=True)
    assert len(list(trace.requests())) == 1 and trace.skipped == 1


def test_a_line_cut_in_two_at_the_end_says_so(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(mooncake(0, 1)) + '\n{"timestamp": 5, "hash')
    with pytest.raises(BadTrace, match=rf"{file}:2: not a line of JSON; the file ends in the middle of it"):
        list(open_trace(file).requests())


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadTrace, match="a pipe or a device"):
        open_trace(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_trace(tmp_path)


def some_trace(kind: int) -> bytes:
    if kind == 0:
        rows: list[Any] = [mooncake(time, *range(time % 4 + 1)) for time in range(6)]
    elif kind == 1:
        rows = [[time % 2, float(time), 9, 9, None, max(0, time - 2), time + 1] for time in range(6)]
    else:
        out = io.StringIO()
        writer = TraceWriter(out, Header(4, 100, eviction="lru"))
        for number in range(3):
            keys = np.arange(1, 4 + number, dtype=np.uint64)
            writer.arrive(number, number, number % 2, 4 * len(keys) + 1, keys)
            writer.start(number, number, 4, 0, 0)
            writer.end(number, number, 3, keys)
        return out.getvalue().encode()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@settings(max_examples=300)
@given(
    st.integers(0, 2),
    st.lists(
        st.tuples(
            st.integers(0, 1 << 16),
            st.integers(0, 12),
            st.binary(max_size=3)
            | st.sampled_from(
                [b"-1", b"null", b"true", b"[]", b"{}", b"1e999", b"NaN", b"9" * 30, b'"', b"\n", b", 1"]
            ),
        ),
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
)
def test_a_mutated_trace_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, kind: int, changes: Any, packed: bool, skip_bad: bool
) -> None:
    """Whatever is cut out of a good file and put in its place: requests, or one line that names the place."""
    content = some_trace(kind)
    content = gzip.compress(content) if packed and len(changes) % 2 else content
    for at, cut, put in changes:
        at %= len(content) + 1
        content = content[:at] + put + content[at + cut :]
    file = tmp_path_factory.mktemp("t") / "t.jsonl"
    file.write_bytes(content)
    now, place, why = 0.0, "0", "read"
    try:
        trace = open_trace(file, skip_bad=skip_bad)
        for request in trace.requests():
            assert request.time >= now
            now = request.time
            whole = [*request.path, *request.answer]
            assert all(trace.nodes.parent[node] == above for above, node in pairwise([ROOT, *whole]))
            assert request.input_tokens >= 0 and request.output_tokens >= 0
    except BadTrace as error:
        place, why = str(error).removeprefix(f"{file}:").split(":", 1)
    assert place.isdecimal() and why and "\n" not in why


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_named(tmp_path_factory: pytest.TempPathFactory, content: bytes, skip_bad: bool) -> None:
    file = tmp_path_factory.mktemp("t") / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadTrace, match=r".*:\d+: ."):
        list(open_trace(file, skip_bad=skip_bad).requests())


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


def test_a_node_takes_few_bytes() -> None:
    """So that ten million of them fit into half a gigabyte."""
    nodes = Nodes()
    node = ROOT
    for _ in range(1000):
        node = nodes.add(node, 1)
    columns = [nodes.parent, nodes.pages, nodes.depth, nodes.first, nodes.lead, nodes._children]
    assert sum(column.itemsize for column in columns) == 33
    assert nodes.up(node) == list(range(1000)) and nodes.up(ROOT) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=20))
def test_a_chain_is_what_its_nodes_are_one_by_one(chains: list[tuple[int, int]]) -> None:
    single, at_once = Nodes(), Nodes()
    for below, count in chains:
        parent = min(below, len(single)) - 1
        wanted = []
        for _ in range(count):
            wanted.append(single.add(wanted[-1] if wanted else parent, 1))
        assert list(at_once.add_chain(parent, count)) == wanted
    assert vars(single).pop("_keys").size == vars(at_once).pop("_keys").size == 0
    assert vars(single) == vars(at_once)
