"""The picture of the tree: sums add up, however the tree is cut, and whatever happened to it while it was read."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.control import sources as sources_module
from radixtier.control.commands import Command, ReadRows, ReadTree, Refusal
from radixtier.control.encoding import PIECE, encode
from radixtier.control.openapi import document
from radixtier.control.picture import LEAST_ITEMS, LISTED, LONGEST_PATH, SUMMED, Picture
from radixtier.control.rows import NONE, Rows
from radixtier.control.sources import KEPT_S, Pictures, tree_sources

Tree = list[tuple[int, int]]
"""Node and parent; :data:`NONE` or a number that does not exist at the root."""


def rows_of(tree: Tree, seed: int = 0) -> Rows:
    """Rows with figures that differ from node to node."""
    n, draw = len(tree), np.random.default_rng(seed)
    node = np.array([each for each, _ in tree], np.int64)
    parent = np.array([each for _, each in tree], np.int64)
    tokens = draw.integers(1, 40, n) * 16
    parts = [tokens // k for k in (2, 3, 4, 5)]
    used = np.where(draw.random(n) > 0.3, draw.random(n) * 1000, np.nan)
    session = {int(each): f"s{each}" for each in node[::5]}
    pinned = {int(each): {"dram": 5.0} for each in node[::7]}
    return Rows(
        node, parent, np.zeros(n, np.int64), tokens, *parts, used, draw.integers(0, 5, n), used + 1, session, pinned
    )


@st.composite
def trees(draw: Any) -> Tree:
    """Forests in which some parents are missing, and numbers have gaps."""
    n = draw(st.integers(0, 60))
    numbers = np.cumsum(draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))).tolist()
    found: Tree = []
    for i, number in enumerate(numbers):
        parent = draw(st.sampled_from([NONE, *numbers[:i], number - 1])) if i else NONE
        found.append((number, parent))
    gone = draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    return [(number, parent) for number, parent in found if number not in gone]


def children_of(items: list[dict[str, Any]]) -> dict[int | None, list[dict[str, Any]]]:
    found = defaultdict(list)
    for item in items:
        found[item["parent"]].append(item)
    return found


def truth(tree: Tree, rows: Rows) -> dict[int, dict[str, int]]:
    """The sums below every node, the slow way."""
    own = {row["node"]: row for row in rows.to_json()}
    below = {node: {"nodes": 1, **{name: own[node][name] for name in SUMMED}} for node, _ in tree}
    for node, _ in reversed(tree):
        parent = dict(tree)[node]
        if parent in below:
            for name, value in below[node].items():
                below[parent][name] += value
    return below


@settings(max_examples=300)
@given(trees(), st.integers(LEAST_ITEMS, 70), st.data())
def test_every_cut_of_a_tree_adds_up(tree: Tree, most: int, data: Any) -> None:
    rows = rows_of(tree)
    picture = Picture(rows, 5.0)
    numbers = [node for node, _ in tree]
    root = data.draw(st.sampled_from([None, *numbers]))
    answer = picture.to_json(None if root is None else picture.find(root), most)
    jsonschema.validate(answer, document()["components"]["schemas"]["Tree"] | {"components": document()["components"]})
    below, own = truth(tree, rows), {row["node"]: row for row in rows.to_json()}
    items = answer["nodes"]
    assert (answer["taken"], answer["total_nodes"], answer["root"]) == (5.0, len(tree), root)
    assert len(items) <= most
    seen: set[int] = set()
    for at, item in enumerate(items):
        number = item["node"]
        assert number not in seen
        top = item["parent"] is None or (root is not None and at == 0)
        assert top or item["parent"] in seen, "parents before children"
        seen.add(number)
        if item["merged"]:
            assert number < 0 and item["session"] is None and item["pinned"] == {}
        else:
            assert item["below"] == below[number]
            known = item.pop("parent"), own[number]["parent"]
            assert known[0] == (known[1] if known[1] in own else None) or (root is not None and at == 0)
            item["parent"] = known[0]
            assert all(item[name] == own[number][name] for name in own[number] if name != "parent")
    if root is not None:
        assert items[0]["node"] == root and answer["path"][-1]["node"] == root
        assert all(a["node"] == b["parent"] for a, b in zip(answer["path"], answer["path"][1:], strict=False))
        items[0]["parent"] = None
    _check_sums(items, tree, own, below, numbers if root is None else None)


def _check_sums(items: Any, tree: Tree, own: Any, below: Any, every: list[int] | None) -> None:
    children = children_of(items)
    real = children_of([{"node": node, "parent": parent if parent in own else None} for node, parent in tree])
    for item in items:
        if item["merged"]:
            siblings = [each["node"] for each in real[item["parent"]]]
            shown = {each["node"] for each in children[item["parent"]]}
            together = [number for number in siblings if number not in shown]
            assert item["merged"] == len(together)
            for name in (*SUMMED, "lost", "hits"):
                assert item[name] == sum(own[number][name] for number in together)
            for name, value in item["below"].items():
                assert value == sum(below[number][name] for number in together)
        else:
            for name in SUMMED:
                parts = sum(child["below"][name] for child in children[item["node"]])
                assert item["below"][name] == item[name] + parts, "a part of the subtree is missing or there twice"
            assert item["below"]["nodes"] == 1 + sum(child["below"]["nodes"] for child in children[item["node"]])
    if every is not None:
        assert sum(item["below"]["nodes"] for item in children[None]) == len(every)
        assert sum(item["below"]["tokens"] for item in children[None]) == sum(own[each]["tokens"] for each in every)


def test_the_largest_subtrees_are_kept_and_as_many_as_fit() -> None:
    tree = [(0, NONE), *((each, 0) for each in range(1, 10)), *((10 + each, 9) for each in range(30))]
    tokens = np.full(len(tree), 16)
    tokens[5] = 1600
    rows = replace(rows_of(tree), tokens=tokens)
    items = Picture(rows, 0.0).to_json(None, 5)["nodes"]
    assert [(item["node"], item["parent"], item["merged"]) for item in items] == [
        (0, None, 0),
        (5, 0, 0),
        (9, 0, 0),
        (-1, 0, 7),
        (-2, 9, 30),
    ]
    assert len(Picture(rows, 0.0).to_json(None, 40)["nodes"]) == 40 == len(tree)
    assert [item["merged"] for item in Picture(rows, 0.0).to_json(None, 2)["nodes"]] == [0, 9]


def test_one_that_is_left_over_stands_for_itself() -> None:
    rows = rows_of([(0, NONE), (1, 0), (2, 0)])
    items = Picture(rows, 0.0).to_json(None, 3)["nodes"]
    assert [(item["node"], item["merged"]) for item in items] == [(0, 0), (1, 0), (2, 0)]


def test_a_forest_in_two_items() -> None:
    rows = rows_of([(each, NONE) for each in range(9)])
    items = Picture(rows, 0.0).to_json(None, LEAST_ITEMS)["nodes"]
    assert [item["merged"] for item in items] == [0, 8]
    assert Picture(Rows.empty(), 0.0).to_json(None, 10)["nodes"] == []
    assert len(Rows.joined([])) == 0 and Rows.empty().to_json() == []


def test_hottest_and_coldest() -> None:
    n = 3 * LISTED
    rows = rows_of([(each, NONE) for each in range(n)])
    hits = np.arange(n)
    used = np.where(np.arange(n) < 2, np.nan, 1000.0 - np.arange(n))
    answer = Picture(replace(rows, hits=hits, last_used=used), 0.0).to_json(None, 5)
    assert [row["node"] for row in answer["hottest"]] == list(range(n - 1, n - 1 - LISTED, -1))
    assert [row["node"] for row in answer["coldest"]] == [0, 1, *range(n - 1, n + 1 - LISTED, -1)]
    same = Picture(replace(rows, hits=np.ones(n, np.int64)), 0.0).to_json(None, 5)
    assert len({row["node"] for row in same["hottest"]}) == LISTED


def test_a_chain_as_deep_as_it_is_long() -> None:
    n = 5000
    rows = rows_of([(each, each - 1 if each else NONE) for each in range(n)])
    picture = Picture(rows, 0.0)
    items = picture.to_json(None, 100)["nodes"]
    assert [item["below"]["nodes"] for item in items] == [*range(n, n - 99, -1), n - 99]
    assert items[-1]["merged"] == 1 and len(picture.to_json(n - 1, 10)["path"]) == LONGEST_PATH


def test_long_lists_are_encoded_as_short_ones_are() -> None:
    answer = {"a": list(range(3 * PIECE + 5)), "b": {"c": [{"x": None}] * (PIECE + 1), "d": []}, "e": "ü", 'f"': True}
    assert json.loads(encode(answer)) == answer
    assert json.loads(encode({})) == {}
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"a": [float("nan")] * 100})
    with pytest.raises(TypeError):
        encode({"a": {"b": object()}})


# Reading it


class Scheduler:
    """Lists the nodes of a tree, some at a time, while the test changes it in between."""

    def __init__(self, tree: Tree) -> None:
        self.tree = dict(tree)
        self.asked: list[ReadRows] = []
        self.between: Any = lambda: None

    def __call__(self, command: Command) -> Mapping[str, Any]:
        assert isinstance(command, ReadRows)
        self.asked.append(command)
        numbers = [node for node in sorted(self.tree) if node > command.after]
        some = numbers[:4]
        parts = [rows_of([(node, self.tree[node]) for node in part]) for part in (some[:1], some[1:])]
        answer = {"parts": parts, "next": some[-1] if len(some) < len(numbers) else None, "total": len(self.tree)}
        self.between()
        return answer


def test_a_tree_that_changes_between_two_pages() -> None:
    scheduler = Scheduler([(each, each // 2 if each else NONE) for each in range(20)])

    def change() -> None:
        scheduler.tree.pop(5, None)
        scheduler.tree[100 + len(scheduler.asked)] = 7 if len(scheduler.asked) % 2 else NONE

    scheduler.between = lambda: change() if len(scheduler.asked) < 4 else None
    answer = tree_sources(scheduler)[ReadTree](ReadTree(None, 1000))
    numbers = [item["node"] for item in answer["nodes"]]
    assert len(set(numbers)) == len(numbers) == answer["total_nodes"] == 22 and 5 not in numbers
    children = children_of(answer["nodes"])
    assert {10, 11} <= {item["node"] for item in children[None]}, "their parent was gone: they hang from the root"
    assert sum(item["below"]["nodes"] for item in children[None]) == 22


def test_a_picture_is_shared_for_a_while() -> None:
    clock = [0.0]
    scheduler = Scheduler([(each, NONE) for each in range(6)])
    pictures = Pictures(scheduler, lambda: clock[0])
    first = pictures.latest()
    assert pictures.latest() is first and len(scheduler.asked) == 2
    clock[0] = KEPT_S
    assert pictures.latest() is not first and len(scheduler.asked) == 4


def test_those_who_ask_at_the_same_time_get_the_same_picture() -> None:
    scheduler = Scheduler([(each, NONE) for each in range(6)])
    scheduler.between = lambda: time.sleep(0.02)
    pictures = Pictures(scheduler)
    found: list[Picture] = []
    threads = [threading.Thread(target=lambda: found.append(pictures.latest())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert len(found) == 8 and len({id(each) for each in found}) == 1 and len(scheduler.asked) == 2


def test_a_scheduler_without_time_is_a_refusal_and_the_next_one_may_try() -> None:
    clock = [0.0]
    scheduler = Scheduler([(each, NONE) for each in range(60)])

    def slow() -> None:
        clock[0] += 15.0

    scheduler.between = slow
    pictures = Pictures(scheduler, lambda: clock[0])
    with pytest.raises(Refusal, match="8 of 60 nodes") as refused:
        pictures.latest()
    assert refused.value.status == 504
    scheduler.between = lambda: None
    assert len(pictures.latest().rows) == 60


def test_who_waited_for_another_has_only_the_rest_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "READ_S", 0.05)
    clock = [0.0]
    scheduler = Scheduler([(each, NONE) for each in range(60)])
    pictures = Pictures(scheduler, lambda: clock[0])
    began, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        assert go_on.wait(20.0)

    scheduler.between = wait
    with ThreadPoolExecutor() as pool:
        first = pool.submit(pictures.latest)
        assert began.wait(20.0)
        with pytest.raises(Refusal, match="for somebody else") as refused:
            pictures.latest()
        assert refused.value.status == 503
        go_on.set()
        assert len(first.result(20.0).rows) == 60


def test_a_node_that_is_not_there() -> None:
    sources = tree_sources(Scheduler([(3, NONE)]))
    with pytest.raises(Refusal, match="node 4 does not exist") as refused:
        sources[ReadTree](ReadTree(4, 10))
    assert refused.value.status == 404
    assert sources[ReadTree](ReadTree(3, 10))["nodes"][0]["node"] == 3
