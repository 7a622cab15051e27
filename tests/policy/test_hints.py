"""How hints are read and answered, whatever a client sends."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.hints import (
    LONGEST_S,
    MOST_ACTIONS,
    MOST_ID,
    TTL_S,
    VERSION,
    Hint,
    Kind,
    Status,
    read_envelope,
    read_hint,
)
from radixtier.policy.pins import Tier
from radixtier.units import BadValue


def action(kind: Any = "pin", version: Any = VERSION, payload: Any = None, action_id: Any = "a1") -> dict[str, Any]:
    return {
        "action_id": action_id,
        "action_type": kind,
        "action_version": version,
        "payload": {} if payload is None else payload,
    }


def envelope(*actions: Any) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


@pytest.mark.parametrize("nothing", [None, {}, envelope(), {"actions": None}, object(), 3, "text"])
def test_no_envelope_no_hints(nothing: object) -> None:
    assert read_envelope(nothing) == ([], [])


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_needs_no_more_than_its_name(kind: Kind) -> None:
    hints, refused = read_envelope(envelope(action(kind.value), action(kind.value.title())))
    tier = Tier.NVME if kind in (Kind.DEMOTE, Kind.RETAIN) else Tier.DRAM
    assert hints == [Hint(kind, "a1", TTL_S, tier)] * 2 and refused == []


def test_objects_are_read_like_mappings() -> None:
    one = SimpleNamespace(**action("pin", payload={"ttl_s": 5, "tier": "nvme", "start_token": 16, "end_token": 64}))
    hints, refused = read_envelope(SimpleNamespace(actions=[one]))
    assert hints == [Hint(Kind.PIN, "a1", 5.0, Tier.NVME, 16, 64)] and refused == []


def test_sglangs_own_envelope_is_read() -> None:
    hints = pytest.importorskip("sglang.srt.managers.kv_hints")
    typed = hints.decode_kv_hints_envelope(envelope(action("prefetch", payload={"by_s": 2.5}), action("kv.fetch")))
    found, refused = read_envelope(typed)
    assert found == [Hint(Kind.PREFETCH, "a1", by_s=2.5)]
    assert [outcome.reason[:19] for outcome in refused] == ["unknown action type"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (action("evict"), "unknown action type"),
        (action(None), "unknown action type"),
        (action(version="2"), "action_version '2'"),
        (action(version=1), "action_version 1 "),
        (action(payload=[1]), "payload: not an object"),
        (action(payload={"ttl": 5}), "Write ttl_s"),
        (action("demote", payload={"ttl_s": 5}), "demote: no such field: 'ttl_s'"),
        (action(payload={"ttl_s": 0}), "ttl_s 0: nothing would last"),
        (action(payload={"ttl_s": -1}), "ttl_s -1: not a number of seconds"),
        (action(payload={"ttl_s": "5"}), "ttl_s '5': not a number of seconds"),
        (action(payload={"ttl_s": True}), "ttl_s True: not a number"),
        (action(payload={"ttl_s": math.nan}), "ttl_s nan: not a number"),
        (action(payload={"ttl_s": math.inf}), "ttl_s inf: not a number"),
        (action("prefetch", payload={"by_s": -math.inf}), "by_s -inf: not a number"),
        (action(payload={"tier": "hbm"}), "tier 'hbm': nothing can be kept there. Write dram or nvme"),
        (action(payload={"tier": ["dram"]}), "tier ['dram']"),
        (action(payload={"start_token": 1.5}), "start_token 1.5: not a token position"),
        (action(payload={"end_token": -1}), "end_token -1: not a token position"),
        (action(payload={"end_token": 10**5000}), "end_token of thousands of digits: not a token position"),
        (action(payload={"start_token": 8, "end_token": 8}), "end_token 8: not behind start_token 8"),
        ({}, "unknown action type"),
        (7, "unknown action type"),
        (None, "unknown action type"),
    ],
)
def test_a_bad_action_is_rejected_with_a_reason_and_the_others_are_read(bad: Any, words: str) -> None:
    hints, refused = read_envelope(envelope(bad, action("share", action_id="good")))
    assert [hint.action_id for hint in hints] == ["good"]
    assert len(refused) == 1 and refused[0].status is Status.REJECTED
    assert words in refused[0].reason and len(refused[0].reason) < 200


def test_an_envelope_is_read_up_to_a_number_of_actions() -> None:
    hints, refused = read_envelope(envelope(*[action() for _ in range(MOST_ACTIONS + 5)]))
    assert len(hints) == MOST_ACTIONS
    assert [outcome.reason for outcome in refused] == [f"{MOST_ACTIONS + 5} actions; the first {MOST_ACTIONS} are read"]
    assert read_envelope({"actions": "pin"})[1][0].reason == "actions: not a list"
    assert len(read_envelope(envelope(action(action_id="x" * 10_000)))[0][0].action_id) == MOST_ID


def test_long_times_are_cut_and_said_so() -> None:
    pin = read_hint(Kind.PIN, "", {"ttl_s": 10**400})
    assert pin.ttl_s == LONGEST_S
    outcome = pin.granted(64, 64)
    assert outcome.status is Status.CLIPPED and outcome.granted == 64 and outcome.reason == "ttl_s cut to 86400"
    assert read_hint(Kind.PREFETCH, "", {"by_s": 1e9}).by_s == LONGEST_S
    assert read_hint(Kind.PIN, "", {"ttl_s": None, "tier": None}) == Hint(Kind.PIN)


@pytest.mark.parametrize(
    ("start", "end", "length", "span"),
    [(0, None, 100, (0, 100)), (16, 64, 100, (16, 64)), (16, 640, 100, (16, 100)), (200, None, 100, (100, 100))],
)
def test_a_span_lies_within_the_path(start: int, end: int | None, length: int, span: tuple[int, int]) -> None:
    assert Hint(Kind.PIN, start_token=start, end_token=end).span(length) == span


def test_outcomes() -> None:
    hint = Hint(Kind.PIN, "a")
    assert hint.granted(64, 64, "unused").to_json() == {
        "action_id": "a",
        "kind": "pin",
        "status": "accepted",
        "tokens_asked": 64,
        "tokens_granted": 64,
        "reason": "",
    }
    clipped = hint.granted(64, 16, "DRAM's share is full")
    assert (clipped.status, clipped.granted, clipped.reason) == (Status.CLIPPED, 16, "DRAM's share is full")
    assert hint.granted(64, 0).status is Status.REJECTED and hint.granted(64, 0).reason
    assert hint.deferred(64, "idle bandwidth first").status is Status.DEFERRED
    with pytest.raises(BadValue, match="ttl_s"):
        read_hint(Kind.PIN, "a", {"ttl_s": {}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(["ttl_s", "tier", "by_s", "start_token", "end_token", "x"]), JSON, max_size=4)
ACTIONS = st.builds(
    action, st.sampled_from([kind.value for kind in Kind]) | JSON, st.just(VERSION) | JSON, FIELDS | JSON, JSON
)


@given(st.lists(ACTIONS | JSON, max_size=6) | JSON)
def test_whatever_is_sent_gets_one_answer_each(actions: Any) -> None:
    hints, refused = read_envelope({"actions": actions})
    if isinstance(actions, list):
        assert len(hints) + len(refused) == len(actions)
    for hint in hints:
        assert 0 < hint.ttl_s <= LONGEST_S and 0 <= hint.by_s <= LONGEST_S
        assert hint.end_token is None or 0 <= hint.start_token < hint.end_token
    assert all(outcome.reason and outcome.status is Status.REJECTED for outcome in refused)
