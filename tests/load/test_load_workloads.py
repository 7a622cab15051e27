"""What is asked: counts, lengths, sharing, order, determinism."""

from __future__ import annotations

import dataclasses
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_fakes import FakeTarget

from radixtier.lab.traces.recording import Header, TraceWriter
from radixtier.lab.traces.trace import BadTrace
from radixtier.load.play import Conversation, play
from radixtier.load.workloads.catalogue import WORKLOADS
from radixtier.load.workloads.common import Length, Source, arranged, length
from radixtier.load.workloads.long_document import LongDocument
from radixtier.load.workloads.multi_turn import MultiTurn
from radixtier.load.workloads.no_reuse import NoReuse
from radixtier.load.workloads.shared_prefix import SharedPrefix
from radixtier.load.workloads.trace import TraceReplay, scale

PAGE = 16
SMALL: dict[str, Any] = {
    "multi-turn": MultiTurn(clients=3, turns=3, first=Length(40, 60), request=Length(5, 9), output=Length(2, 4)),
    "shared-prefix": SharedPrefix(groups=3, prompts=4, system=Length(50, 70), question=Length(5, 9)),
    "long-document": LongDocument(documents=3, questions=2, document=Length(90, 99), question=Length(5, 9)),
    "no-reuse": NoReuse(prompts=7, request=Length(30, 40)),
}


def shared(a: Any, b: Any) -> int:
    """Tokens of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prompts(workload: Any, order: Any = "round-robin", seed: int = 0) -> list[Any]:
    """Everything that a server is asked, in order."""
    target = FakeTarget()
    play(target, workload.conversations(Source(target, seed), order), concurrency=1, order=order)
    return target.prompts


def test_every_workload_has_a_small_one_here() -> None:
    assert {*SMALL, "trace"} == set(WORKLOADS)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("order", ["round-robin", "random", "deep"])
def test_counts_and_determinism(name: str, order: str) -> None:
    workload = SMALL[name]
    asked = prompts(workload, order)
    assert len(asked) == workload.requests
    assert asked == prompts(workload, order)
    other = prompts(workload, order, seed=1)
    assert all(shared(a, b) < PAGE for a in asked for b in other)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_field_is_a_flag(name: str) -> None:
    for each in dataclasses.fields(WORKLOADS[name]):
        assert set(each.metadata) == {"read", "meaning", "quick"}
        if each.default is not None:
            assert each.metadata["read"](str(each.default)) == each.default
        quick = each.metadata["quick"]
        assert quick is None or each.metadata["read"](str(quick)) == quick


def test_names_are_those_of_one_load() -> None:
    target = FakeTarget()
    names = [
        each.name
        for label in ("1", "2")
        for workload in SMALL.values()
        for each in workload.conversations(Source(target, 0, workload, label), "round-robin")
    ]
    assert len(set(names)) == len(names)


def test_clients_build_on_what_was_said_and_share_nothing() -> None:
    asked = prompts(SMALL["multi-turn"])
    first, second, third = asked[:3], asked[3:6], asked[6:]
    for a, b, c in zip(first, second, third, strict=True):
        assert shared(a, b) == len(a) and shared(b, c) == len(b)
        assert 40 <= len(a) <= 60 and 5 + 2 <= len(b) - len(a) <= 9 + 4
    assert all(shared(a, b) < PAGE for at, a in enumerate(first) for b in first[at + 1 :])


def test_a_group_shares_its_system_message() -> None:
    asked = prompts(SMALL["shared-prefix"], "deep")
    groups = [asked[at : at + 4] for at in (0, 4, 8)]
    for group in groups:
        assert all(50 <= shared(a, b) <= 70 for a, b in pairwise(group))
    assert all(shared(a[0], b[0]) < PAGE for a, b in pairwise(groups))


def test_all_documents_come_before_the_second_question() -> None:
    first, second = (prompts(SMALL["long-document"])[at : at + 3] for at in (0, 3))
    for at, a in enumerate(first):
        assert [shared(a, b) >= 90 for b in second] == [at == number for number in range(3)]
    deep = prompts(SMALL["long-document"], "deep")
    assert all(shared(a, b) >= 90 for a, b in zip(deep[::2], deep[1::2], strict=True))


def test_no_two_prompts_share_a_page() -> None:
    asked = prompts(SMALL["no-reuse"])
    assert all(shared(a, b) < PAGE for at, a in enumerate(asked) for b in asked[at + 1 :])
    assert all(30 <= len(prompt) <= 40 for prompt in asked)


@given(st.lists(st.integers(0, 4), max_size=5), st.sampled_from(["round-robin", "random", "deep"]))
def test_arranging_loses_nothing(sizes: list[int], order: Any) -> None:
    import random

    groups = [[(group, at) for at in range(size)] for group, size in enumerate(sizes)]
    found = arranged(groups, order, random.Random(0))
    assert sorted(found) == sorted(each for group in groups for each in group)
    if order == "round-robin":
        assert [at for _, at in found] == sorted(at for _, at in found)
    if order == "deep":
        assert found == sorted(found)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "9:3", "0:3", "3:", "a", "99999999999", "٣"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        length(text)


@given(st.integers(1, 10_000), st.integers(0, 1000))
def test_lengths(least: int, more: int) -> None:
    made = Length(least, least + more)
    assert length(str(made)) == made


@pytest.mark.parametrize("text", ["0", "-2", "x", "nan", "inf"])
def test_what_is_no_scale(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        scale(text)


# ---- traces -----------------------------------------------------------------------------------------


def written(path: Path, lines: list[Any], packed: bool = False) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def replay(trace: Path, **fields: Any) -> list[Conversation]:
    return TraceReplay(trace=trace, **fields).conversations(Source(FakeTarget(), 0), "round-robin")


def made(conversations: list[Conversation]) -> dict[str, list[Any]]:
    found = {}
    for each in conversations:
        assert all(turn.prompt is not None for turn in each.turns)
        found[each.name.partition("-")[2]] = [turn.prompt() for turn in each.turns]  # type: ignore[misc]
    return found


def mooncake(time: int, ids: list[int], tokens: int, output: int = 3) -> dict[str, Any]:
    return {"timestamp": time, "input_length": tokens, "output_length": output, "hash_ids": ids}


def test_equal_blocks_become_equal_pieces(tmp_path: Path) -> None:
    lines = [mooncake(0, [1, 2, 3], 1500), mooncake(1000, [1, 4], 800), mooncake(3000, [1, 2, 3, 5], 1700)]
    conversations = replay(written(tmp_path / "t", lines), time_scale=2.0)
    assert [[turn.start_s for turn in each.turns] for each in conversations] == [[0.0, 1.5], [0.5]]
    assert [[turn.answer_tokens for turn in each.turns] for each in conversations] == [[3, 3], [3]]
    (first, third), (second,) = made(conversations).values()
    assert (len(first), len(second), len(third)) == (1500, 800, 1700)
    assert shared(first, second) == 512
    # The last block of the first prompt is a part of what the third has there.
    assert shared(first, third) == 1500


def test_sessions_think(tmp_path: Path) -> None:
    lines = [
        ["s", 0.0, 128, 5, None, 0, 2],
        ["s", 9.0, 192, 6, 4.0, 2, 3],
        ["s", 30.0, 192, 7, 8.0, 1, 3],
        ["t", 0.0, 64, 0, None, 0, 1],
    ]
    conversations = {each.name.partition("-")[2]: each for each in replay(written(tmp_path / "t", lines, packed=True))}
    turns = next(each.turns for each in conversations.values() if len(each.turns) == 3)
    assert [turn.think_s for turn in turns] == [0.0, 4.0, 8.0]
    assert [turn.answer_tokens for turn in turns] == [5, 6, 7]
    a, b, c = (turn.prompt() for turn in turns)  # type: ignore[misc]
    assert (len(a), len(b), len(c)) == (128, 192, 192)
    assert shared(a, b) == 128 and shared(b, c) == 64
    other = next(each.turns for each in conversations.values() if len(each.turns) == 1)
    assert other[0].answer_tokens == 16 and shared(other[0].prompt(), a) < PAGE  # type: ignore[misc]
    assert min(each.turns[0].start_s for each in conversations.values()) == 0.0


def test_a_recorded_trace_keeps_what_no_page_holds(tmp_path: Path) -> None:
    import numpy as np

    file = tmp_path / "t"
    writer = TraceWriter(file, Header(page_tokens=16))
    keys = np.asarray([11, 12, 13], np.uint64)
    for at, (tokens, pages) in enumerate(((40, 2), (56, 3), (8, 0))):
        writer.arrive(float(at), at, at, tokens, keys[:pages])
        writer.start(at + 0.1, at, 0, 0, 0)
        writer.end(at + 0.5, at, 2, keys[:pages])
    writer.close()
    (a,), (b,), (c,) = made(replay(file)).values()
    assert [len(prompt) for prompt in (a, b, c)] == [40, 56, 8]
    # Two whole pages are common; what follows them is nobody else's.
    assert shared(a, b) == 32 and shared(a, c) < 8


def test_a_trace_is_cut(tmp_path: Path) -> None:
    file = written(tmp_path / "t", [mooncake(at, [1, at + 2], 1024, 99) for at in range(9)])
    conversations = replay(file, limit=4, longest=700, longest_output=10)
    assert sum(len(each.turns) for each in conversations) == 4
    for (prompt,) in made(conversations).values():
        assert len(prompt) == 700
    assert {turn.answer_tokens for each in conversations for turn in each.turns} == {10}


def test_a_trace_replays_the_same_twice(tmp_path: Path) -> None:
    file = written(tmp_path / "t", [mooncake(at, [1, at + 2], 1000) for at in range(5)])
    assert made(replay(file)) == made(replay(file))


def test_a_trace_in_text(tmp_path: Path) -> None:
    class Text(FakeTarget):
        def piece(self, tokens: int, number: int) -> Any:
            return f" {number}" * tokens

    file = written(tmp_path / "t", [mooncake(0, [1, 2], 600)])
    (conversation,) = TraceReplay(trace=file).conversations(Source(Text(), 0), "round-robin")
    prompt = conversation.turns[0].prompt()  # type: ignore[misc]
    assert isinstance(prompt, str) and len(prompt.split()) == 600


def test_what_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="t:1"):
        replay(written(tmp_path / "t", [{"hello": 1}]))
    with pytest.raises(OSError, match="missing"):
        replay(tmp_path / "missing")
    with pytest.raises(ValueError, match="--trace"):
        TraceReplay().conversations(Source(FakeTarget(), 0), "round-robin")
