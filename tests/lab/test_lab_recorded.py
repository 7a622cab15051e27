"""radixtier's own traces: what was served comes back as it was, and one clear line for what cannot be."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.lab.traces import recorded
from radixtier.lab.traces.recorded import RecordedTrace
from radixtier.lab.traces.recording import Header, TraceWriter
from radixtier.lab.traces.trace import BadTrace, Request, Served

PAGE = 4


class Names:
    """Keys of pages: one per prefix of tokens, however far apart."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, ...], int] = {}

    def keys(self, tokens: Sequence[int], whole: int | None = None) -> npt.NDArray[np.uint64]:
        ends = range(PAGE, (len(tokens) if whole is None else whole) + 1, PAGE)
        prefixes = [tuple(tokens[:end]) for end in ends]
        # Multiplied by an odd number: all 64 bits are in use, and no two are equal.
        found = [self._of.setdefault(each, len(self._of) + 1) * 0x9E3779B97F4A7C15 % 2**64 for each in prefixes]
        return np.array(found, np.uint64)


def named(trace: RecordedTrace) -> dict[int, int]:
    """Node -> its key."""
    return {node: key for key, node in trace._node_of.items()}


def test_a_turn_and_its_follow_up(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    names = Names()
    writer = TraceWriter(file, Header(page_tokens=PAGE, page_bytes=100, hbm_pages=7, eviction="lru"))
    first, answer = list(range(10)), [100, 101, 102]
    second = [*first, *answer, 200, 201, 202]
    writer.arrive(0.5, 1, 9, 10, names.keys(first))
    writer.start(0.75, 1, 0, 0, 0)
    writer.end(2.0, 1, 3, names.keys(first + answer, 12))
    writer.arrive(5.0, 2, 9, 16, names.keys(second))
    writer.start(5.5, 2, 4, 4, 4)
    writer.end(6.0, 2, 1, names.keys([*second, 300], 16))
    writer.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [len(line.get("keys", ())) for line in lines] == [0, 2, 0, 1, 1, 0, 0], "a turn costs its new pages"
    assert lines[4]["after"] == lines[3]["keys"][0] and "after" not in lines[1]
    trace = RecordedTrace(file)
    assert trace.recorded == {"page_tokens": PAGE, "page_bytes": 100, "hbm_pages": 7, "eviction": "lru"}
    assert trace.block_tokens == PAGE and not trace.skipped
    # 13 tokens: the last one of the answer was never in the cache. 16 tokens: the last page is whole, but cannot match.
    assert list(trace.requests()) == [
        Request(0.5, 9, [0, 1], 10, 3, None, [2], Served(0, 0, 0, 0.75, 2.0)),
        Request(5.0, 9, [0, 1, 2], 16, 1, 3.0, [3], Served(4, 4, 4, 5.5, 6.0)),
    ]


@pytest.mark.parametrize(
    ("tokens", "output", "path", "answer"),
    [
        (0, 1, 0, 0),
        (1, 1, 0, 0),
        (1, 4, 0, 1),
        (4, 0, 0, 0),
        (4, 1, 0, 1),
        (5, 1, 1, 0),
        (8, 0, 1, 0),
        (8, 1, 1, 1),
        (8, 4, 1, 1),
        (8, 5, 1, 2),
    ],
)
def test_the_last_token_is_never_looked_up_nor_kept(
    tmp_path: Path, tokens: int, output: int, path: int, answer: int
) -> None:
    out, names = io.StringIO(), Names()
    writer = TraceWriter(out, Header(PAGE))
    served = list(range(tokens + output))
    writer.arrive(0.0, 0, 0, tokens, names.keys(served[:tokens]))
    writer.start(0.0, 0, 0, 0, 0)
    writer.end(1.0, 0, output, names.keys(served, max(0, tokens + output - 1)))
    writer.close()
    file = tmp_path / "t.jsonl"
    file.write_text(out.getvalue())
    (request,) = RecordedTrace(file).requests()
    assert (len(request.path), len(request.answer)) == (path, answer)
    assert [*request.path, *request.answer] == list(range(path + answer))


# ---- round trip -------------------------------------------------------------------------------------

TURNS = st.lists(
    st.tuples(
        st.integers(0, 2),  # session
        st.integers(0, 99),  # where it branches off from what the session had, in percent
        st.integers(0, 11),  # new tokens of the prompt
        st.integers(0, 9),  # tokens of the answer
        st.sampled_from(["ended", "ended", "ended", "aborted", "waiting", "running", "dropped"]),
        st.integers(0, 3),  # events until it goes on
    ),
    max_size=14,
)


def play(turns: Any, writer: TraceWriter, names: Names) -> list[Any]:
    """Serve turns that overlap; returns what a reader has to find, in order of arrival."""
    history: dict[int, list[int]] = {}
    token = itertools.count(1000)
    clock = itertools.count()
    plays: list[Iterator[None]] = []
    found: list[Any] = []

    def serve(number: int, session: int, branch: int, new: int, output: int, fate: str) -> Iterator[None]:
        before = history.get(session, list(range(5)))
        prompt = before[: len(before) * (100 - branch) // 100] + [next(token) for _ in range(new)]
        answer = [next(token) for _ in range(output)]
        writer.arrive(time := float(next(clock)), number, session, len(prompt), names.keys(prompt))
        row = [time, session, names.keys(prompt, max(0, len(prompt) - 1)).tolist(), len(prompt), 0, [], None]
        found.append(row)
        yield
        if fate == "dropped":
            writer.abort(float(next(clock)), number)
        if fate in ("dropped", "waiting"):
            row[6] = "left out"
            return
        row[6] = (len(prompt) // 2, 0, len(prompt) // 4, float(next(clock)), None)
        writer.start(row[6][3], number, *row[6][:3])
        yield
        if fate == "aborted":
            writer.abort(float(next(clock)), number)
        elif fate == "ended":
            kept = max(0, len(prompt) + output - 1)
            writer.end(time := float(next(clock)), number, output, names.keys(prompt + answer, kept))
            row[4], row[6] = output, (*row[6][:4], time)
            row[5] = names.keys(prompt + answer, kept).tolist()[len(row[2]) :]
            history[session] = prompt + answer

    for number, (session, branch, new, output, fate, gap) in enumerate(turns):
        plays.append(serve(number, session, branch, new, output, fate))
        next(plays[-1])
        for _ in range(gap):
            if plays and next(plays[0], "over") == "over":
                del plays[0]
    for each in plays:
        for _ in each:
            pass
    return [row for row in found if row[6] != "left out"]


@settings(max_examples=150)
@given(TURNS, st.integers(2, 12))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, turns: Any, remembered: int) -> None:
    """Whatever the writer forgets: equal pages are equal nodes, and other pages are others."""
    file = tmp_path_factory.mktemp("t") / "t.jsonl"
    writer = TraceWriter(file, Header(PAGE), remembered=remembered)
    wanted = play(turns, writer, Names())
    writer.close()
    trace = RecordedTrace(file)
    found = list(trace.requests())
    key = named(trace)
    assert [
        [
            request.time,
            request.session,
            [key[node] for node in request.path],
            request.input_tokens,
            request.output_tokens,
            [key[node] for node in request.answer],
            tuple(request.served or ()),
        ]
        for request in found
    ] == wanted
    assert len(trace.nodes) == len(key)


def test_a_long_prompt_that_is_known_is_one_short_line() -> None:
    """Of 2,000 pages the ten new ones are looked at, and the last known one in front of them."""

    class Counted(set[int]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            Counted.asked += 1
            return super().__contains__(key)

    out = io.StringIO()
    writer = TraceWriter(out, Header(64))
    keys = np.arange(1, 2001, dtype=np.uint64)
    writer.arrive(0.0, 1, 0, 64 * 1990, keys[:1990])
    writer._young = Counted(writer._young)
    before = len(out.getvalue())
    writer.arrive(1.0, 2, 0, 64 * 2000, keys)
    assert Counted.asked == 11 and len(out.getvalue()) - before < 400


def test_what_is_remembered_is_bounded_and_what_was_forgotten_is_written_again() -> None:
    out = io.StringIO()
    writer = TraceWriter(out, Header(64), remembered=10)
    for at in range(100):
        writer.arrive(0.0, at, 0, 64, np.array([at], np.uint64))
        assert len(writer._young) + len(writer._old) <= 10
    writer.arrive(0.0, 100, 0, 64, np.array([0], np.uint64))
    assert '"keys": ["0000000000000000"]' in out.getvalue().splitlines()[-1]


def test_time_does_not_go_back_and_files_are_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    writer = TraceWriter(file, Header(64))
    writer.abort(5.0, 1)
    writer.abort(4.0, 2)
    writer.flush()
    assert [json.loads(line)["t"] for line in file.read_text().splitlines()[1:]] == [5.0, 5.0]
    writer.close()
    with pytest.raises(FileExistsError):
        TraceWriter(file, Header(64))


def test_a_full_disk_is_told_to_the_caller_alone() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        writer = TraceWriter(full, Header(64))
        writer.arrive(0.0, 1, 0, 0, np.empty(0, np.uint64))
        with pytest.raises(OSError, match="No space"):
            writer.flush()
        with pytest.raises(OSError, match="No space"):
            full.close()


# ---- reading ----------------------------------------------------------------------------------------

HEADER = '{"radixtier_trace": 1, "page_tokens": 4}'
KEYS = [f"{number:016x}" for number in range(1, 20)]


def event(t: float, name: str, number: int, **more: Any) -> str:
    return json.dumps({"t": t, name: number, **more})


def arrival(t: float, number: int, tokens: int, *keys: str, after: str | None = None) -> str:
    more = {} if after is None else {"after": after}
    return event(t, "arrive", number, session=0, **{"in": tokens}, **more, keys=list(keys))


def reading(tmp_path: Path, *lines: str, skip_bad: bool = False) -> RecordedTrace:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(line + "\n" for line in lines))
    return RecordedTrace(file, skip_bad)


def test_requests_wait_for_those_that_arrived_before(tmp_path: Path) -> None:
    lines = [HEADER, arrival(0, 1, 3), arrival(1, 2, 3), event(1, "start", 1, hit=[0, 0, 0])]
    lines += [event(1, "start", 2, hit=[1, 1, 1]), event(2, "end", 2, out=1, keys=[]), event(3, "abort", 1)]
    found = list(reading(tmp_path, *lines).requests())
    assert [request.served for request in found] == [Served(0, 0, 0, 1.0, None), Served(1, 1, 1, 1.0, 2.0)]
    assert [request.path for request in found] == [[], []]


def test_one_that_does_not_end_does_not_hold_the_others_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "HELD", 10)
    lines = [HEADER]
    for number in range(30):
        lines += [arrival(number, number, 3), event(number, "start", number, hit=[0, 0, 0])]
        lines += [event(number, "end", number, out=2, keys=[])] if number else []
    lines.append(event(99, "end", 0, out=2, keys=[]))
    trace = reading(tmp_path, *lines)
    found = trace.requests()
    next(found)
    assert trace._now == 10.0, "given out when ten others waited"
    assert [request.output_tokens for request in found] == [2] * 29


def test_think_times_are_from_the_end_of_the_turn_before(tmp_path: Path) -> None:
    lines = [HEADER]
    for number, (arrives, ends) in enumerate([(0, 2), (5, 6), (5.5, 9), (10, 11)]):
        lines += [arrival(arrives, number, 3), event(arrives, "start", number, hit=[0, 0, 0])]
        lines += [event(ends, "end", number, out=1, keys=[])]
    lines[1:] = sorted(lines[1:], key=lambda line: float(json.loads(line)["t"]))
    found = reading(tmp_path, *lines).requests()
    assert [request.think_s for request in found] == [None, 3.0, None, 1.0], "the third overlaps the second"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "no object with one of arrive, start, end, abort"),
        ('{"t": 9}', "no object with one of"),
        (HEADER, "no object with one of"),
        (event(0.5, "abort", 1), "t 0.5 is before the line above"),
        ('{"t": NaN, "abort": 1}', "NaN is no number in JSON"),
        ('{"t": 1e999, "abort": 1}', "'1e999' is too large a number"),
        ('{"t": true, "abort": 1}', "t True is no number"),
        ('{"abort": 1}', "abort without t"),
        (event(9, "abort", 7), "abort of request 7, which has not arrived or is over"),
        (event(9, "abort", 0), "abort of request 0, which has not arrived or is over"),
        (event(9, "abort", -1), "abort -1 is no whole number from 0"),
        ('{"t": 9, "abort": true}', "abort True is no whole number"),
        ('{"t": 9, "abort": 1, "why": 3}', "unknown field 'why': a line has t, abort"),
        (event(9, "end", 1, out=1, keys=[]), "request 1 ends, but did not start"),
        (event(9, "start", 1, hit=[1, 2]), "hit [1, 2] is no list of three"),
        (event(9, "start", 1, hit=[9, 2, 0]), "hit [9, 2, 0] is more than the 10 tokens"),
        (event(9, "start", 1, hit=[1, 2.5, 0]), "hit 2.5 is no whole number"),
        (event(9, "end", 2, out=1, keys=KEYS[:3]), "10 + 1 tokens leave 2 pages, but these are 3"),
        (event(9, "end", 2, out=9, keys=KEYS[4:6]), "not behind those of the prompt"),
        (event(9, "end", 2, out=9, keys=KEYS[2:4], after=KEYS[0]), "not behind those of the prompt"),
        (event(9, "end", 2, out=2**31, keys=[]), "out 2147483648 is no whole number"),
        (arrival(9, 1, 3), "request 1 has arrived before"),
        (arrival(9, 3, 9, KEYS[0]), "9 tokens have 2 whole pages of 4, but keys and those in front of them are 1"),
        (arrival(9, 3, 8, KEYS[9], after=KEYS[8]), f"after {KEYS[8]}, which no line above has named"),
        (arrival(9, 3, 8, KEYS[0], KEYS[0]), f"key {KEYS[0]} follows another page than before"),
        (arrival(9, 3, 8, KEYS[9], KEYS[1]), f"key {KEYS[1]} follows another page than before"),
        (arrival(9, 3, 8, KEYS[9], KEYS[9]), "keys has a key twice"),
        (arrival(9, 3, 4, "12"), "key '12' is not 16 hex digits"),
        (arrival(9, 3, 4, "+000000000000001"), "is not 16 hex digits"),
        (event(9, "arrive", 3, session=0, **{"in": 4}, keys=[5]), "key 5 is not 16 hex digits"),
        (event(9, "arrive", 3, session=0, **{"in": 4}, keys="abc"), "keys 'abc' is no list"),
        (event(9, "arrive", 3, session=0, **{"in": 4}, keys=[], after=3), "key 3 is not 16 hex digits"),
        (event(9, "arrive", 3, session="x", **{"in": 4}, keys=[]), "session 'x' is no whole number"),
        (event(9, "arrive", 3, session=0, keys=[]), "arrive without in"),
        ('{"t": 9, "arr', "not a line of JSON"),
    ],
)
def test_a_bad_line_is_named_and_can_be_skipped(tmp_path: Path, line: str, why: str) -> None:
    lines = [HEADER, arrival(0, 0, 3), event(1, "abort", 0), arrival(1, 1, 10, *KEYS[:2])]
    lines += [arrival(1, 2, 10, *KEYS[:2]), event(2, "start", 2, hit=[8, 0, 0])]
    lines += [line, event(9.5, "end", 2, out=3, keys=KEYS[2:3], after=KEYS[1])]
    with pytest.raises(BadTrace) as error:
        list(reading(tmp_path, *lines).requests())
    text = str(error.value)
    assert text.startswith(f"{tmp_path / 't.jsonl'}:7: ") and why in text and len(text) < 300
    trace = reading(tmp_path, *lines, skip_bad=True)
    (request,) = trace.requests()
    assert ([*request.path], [*request.answer], request.served) == ([0, 1], [2], Served(8, 0, 0, 2.0, 9.5))
    assert (trace.skipped, trace.first_bad, len(trace.nodes)) == (1, text, 3)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("[]", "no header"),
        ('{"t": 0, "abort": 1}', "no header"),
        ('{"radixtier_trace": 2, "page_tokens": 4}', "radixtier_trace 2: this release reads 1"),
        ('{"radixtier_trace": true, "page_tokens": 4}', "radixtier_trace True"),
        ('{"radixtier_trace": 1}', "no page_tokens"),
        ('{"radixtier_trace": 1, "page_tokens": 0}', "page_tokens 0 is no whole number from 1"),
        ('{"radixtier_trace": 1, "page_tokens": 4, "hbm_pages": -1}', "hbm_pages -1"),
        ('{"radixtier_trace": 1, "page_tokens": 4, "page_bytes": 0}', "page_bytes 0"),
        ('{"radixtier_trace": 1, "page_tokens": 4, "eviction": 3}', "eviction 3 is no text"),
        ('{"radixtier_trace": 1, "page_tokens": 4, "model": "x"}', "unknown field 'model'"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, header: str, why: str) -> None:
    with pytest.raises(BadTrace) as error:
        reading(tmp_path, header, arrival(0, 0, 3))
    assert str(error.value).startswith(f"{tmp_path / 't.jsonl'}:1: ") and why in str(error.value)


def test_a_header_alone_is_a_trace_without_requests(tmp_path: Path) -> None:
    assert list(reading(tmp_path, HEADER).requests()) == []
