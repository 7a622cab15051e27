"""The modules without DOM, run in the browser that will run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dashboard_lists import history
from dashboard_server import serve
from dashboard_tree import NOW, large_tree, picture, small_tree
from dashboard_world import World

NONE = "\u2013"


@pytest.fixture(scope="module")
def call(browser: Any) -> Any:
    """Call a function of a module with JSON and return what it returns."""

    with serve(World()) as fake:
        context = browser.new_context(timezone_id="UTC", locale="en-US")
        page = context.new_page()
        page.goto(f"{fake.url}/radix_tier/dashboard/icon.svg")

        def run(module: str, function: str, *arguments: Any) -> Any:
            program = "async ([m, f, a]) => (await import(m))[f](...a)"
            return page.evaluate(program, [f"/radix_tier/dashboard/{module}", function, list(arguments)])

        run.page = page  # type: ignore[attr-defined]
        yield run
        context.close()


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("count", 0, "0"),
        ("count", 0.25, "0.25"),
        ("count", 999.7, "1k"),
        ("count", 12345, "12.3k"),
        ("count", 999_949, "1M"),
        ("count", 16_777_216, "16.8M"),
        ("count", None, NONE),
        ("whole", 1234567, "1,234,567"),
        ("bytes", 0, "0 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", 1 << 40, "1 TiB"),
        ("bytesRate", 2_150_000_000, "2.15 GB/s"),
        ("tokens", 1000, "1k tokens"),
        ("tokensRate", None, NONE),
        ("milliseconds", 0.113, "0.11 ms"),
        ("percent", 0, "0 %"),
        ("percent", 0.0312, "3.1 %"),
        ("percent", 0.0000001, "< 0.1 %"),
        ("percent", 0.99999, "> 99.9 %"),
        ("percent", 1, "100 %"),
        ("duration", 0, "0 ms"),
        ("duration", 0.0001, "< 1 ms"),
        ("duration", 0.042, "42 ms"),
        ("duration", 93, "1 min 33 s"),
        ("duration", 3600, "1 h"),
        ("duration", 93784, "1 d 2 h"),
        ("duration", -5, "0 ms"),
        ("clock", NOW, "20:26:40"),
        ("moment", NOW, "2026-05-28 20:26:40"),
        ("clock", 1e300, NONE),
        ("clock", None, NONE),
    ],
)
def test_numbers_have_units(call: Callable[..., Any], function: str, value: float | None, text: str) -> None:
    assert call("units.js", function, value) == text


@pytest.mark.parametrize(
    ("function", "at", "text"),
    [("ago", NOW - 93, "1 min 33 s ago"), ("ago", NOW, "just now"), ("until", NOW + 95, "in 1 min 35 s")],
)
def test_times_are_told_from_now(call: Callable[..., Any], function: str, at: float, text: str) -> None:
    assert call("units.js", function, at, NOW) == text


# Charts


def test_a_later_answer_is_joined_without_gap_or_repetition(call: Callable[..., Any]) -> None:
    joined = call("charting.js", "merge", history(300, NOW), history(30, NOW + 12), NOW + 12 - 300)
    assert joined["at"] == [NOW + 12 - 300 + i for i in range(301)]
    whole = history(301, NOW + 12)
    assert joined["at"] == whole["at"]
    assert joined["series"]["computed_tokens_per_s"] == whole["series"]["computed_tokens_per_s"]
    assert joined["series"]["read_p99_ms"] == whole["series"]["read_p99_ms"]


def test_a_series_that_comes_later_is_unknown_before(call: Callable[..., Any]) -> None:
    old = {"at": [1, 2], "series": {"a": [1, 1]}}
    new = {"at": [3], "series": {"b": [5]}}
    assert call("charting.js", "merge", old, new, 0) == {
        "at": [1, 2, 3],
        "series": {"a": [1, 1, None], "b": [None, None, 5]},
    }


def test_columns_are_means_and_stay_as_they_are_while_time_goes_on(call: Callable[..., Any]) -> None:
    first = history(300, NOW)
    later = history(300, NOW + 7)
    name = "hbm_tokens_per_s"
    a = call("charting.js", "columns", first, [name], NOW - 300, NOW, 10)
    b = call("charting.js", "columns", later, [name], NOW - 293, NOW + 7, 10)
    assert a["from"] % 10 == 0
    shift = round((b["from"] - a["from"]) / 10)
    inner = slice(3, 25)
    assert a["columns"][name][inner] == b["columns"][name][inner.start - shift : inner.stop - shift]
    index = 5
    start = a["from"] + 10 * index
    values = [v for t, v in zip(first["at"], first["series"][name], strict=True) if start < t <= start + 10]
    assert a["columns"][name][index] == pytest.approx(sum(values) / len(values))


def test_a_figure_counts_for_the_time_that_it_stands_for(call: Callable[..., Any]) -> None:
    """A scheduler step of 8 s makes one figure for all of them: no gap, and no less weight."""
    data = {"at": [10, 11, 12, 20, 21], "series": {"a": [4, 4, 4, 1, 4]}}
    found = call("charting.js", "columns", data, ["a"], 10, 21, 2)
    assert (found["from"], found["columns"]["a"]) == (10, [4, 1, 1, 1, 1, 4])
    assert call("charting.js", "recent", data, "a", 10) == pytest.approx((1 * 4 + 8 * 1 + 1 * 4) / 10)


def test_a_long_silence_is_a_gap(call: Callable[..., Any]) -> None:
    data = {"at": [10, 20, 1000], "series": {"a": [1, 1, 1]}}
    found = call("charting.js", "columns", data, ["a"], 0, 1000, 100)["columns"]["a"]
    assert found == [1, None, None, None, None, None, None, None, 1, 1]


def test_layers_lie_on_each_other_and_what_is_unknown_is_a_gap(call: Callable[..., Any]) -> None:
    assert call("charting.js", "stack", [[1, None, 2], [3, None, None]]) == [
        [[0, 1], None, [0, 2]],
        [[1, 4], None, [2, 2]],
    ]
    assert call("charting.js", "pieces", [None, 1, 2, None, 3]) == [[1, 3], [4, 5]]


@pytest.mark.parametrize("most", [0.003, 1, 7, 99, 12345, 3 << 30])
def test_ticks_cover_what_is_shown(call: Callable[..., Any], most: float) -> None:
    ticks = call("charting.js", "ticks", most, 4)
    assert ticks[0] == 0
    assert ticks[-1] >= most * 0.999
    assert 2 <= len(ticks) <= 6


def test_recent_is_the_mean_of_what_is_known(call: Callable[..., Any]) -> None:
    data = {"at": [0, 1, 2, 3], "series": {"a": [100, 4, None, 6], "b": [None] * 4}}
    assert call("charting.js", "recent", data, "a", 3) == 5
    assert call("charting.js", "recent", data, "b", 3) is None
    assert call("charting.js", "recent", data, "c", 3) is None


def test_a_server_that_does_not_answer_is_asked_less_often(call: Callable[..., Any]) -> None:
    assert [call("poll.js", "pauseMs", 2000, n) for n in (0, 1, 2, 3, 4, 50)] == [2000, 4000, 8000, 16000, 30000, 30000]


# Colours


def test_labels_can_be_read_on_every_ground(call: Callable[..., Any]) -> None:
    for ground in ([0, 0, 0], [255, 255, 255], [128, 128, 128], [242, 181, 68], [31, 79, 191]):
        ink = call("colours.js", "inkOn", ground)
        assert call("colours.js", "contrast", ink, ground) >= 4.5


# The tree

_LAYOUT = """async ([answer]) => {
  const { Tree } = await import("/radix_tier/dashboard/tree_model.js");
  const { layout } = await import("/radix_tier/dashboard/icicle_layout.js");
  const rows = layout(new Tree(answer));
  return rows.map((row) => row.map(({ item, x0, x1 }) => [item.node, x0, x1, item.parent, item.below.tokens]));
}"""


@pytest.mark.parametrize("nodes", [0, 1, 60, 20_000])
def test_every_item_has_its_place_below_its_parent(call: Any, nodes: int) -> None:
    rows = small_tree()[:nodes] if nodes <= 60 else large_tree(nodes)
    answer = picture(rows, None, 1500)
    assert answer is not None
    layers = call.page.evaluate(_LAYOUT, [answer])
    placed = {node: (x0, x1, depth) for depth, row in enumerate(layers) for node, x0, x1, _, _ in row}
    assert len(placed) == len(answer["nodes"]) + 1
    total = sum(row["tokens"] for row in rows)
    for depth, row in enumerate(layers[1:], 1):
        edge = 0.0
        for node, x0, x1, parent, tokens in row:
            px0, px1, pdepth = placed[parent]
            assert pdepth == depth - 1
            assert px0 - 1e-9 <= x0 <= x1 <= px1 + 1e-9, node
            assert x0 >= edge - 1e-9  # from left to right, without overlap
            assert x1 - x0 == pytest.approx(tokens / total)
            edge = x1


@pytest.mark.parametrize(("x", "node"), [(0.0, 1), (0.49, 1), (0.5, 2), (0.99, 2), (-0.1, None), (1.0, None)])
def test_what_is_under_the_pointer(call: Callable[..., Any], x: float, node: int | None) -> None:
    row = [{"item": {"node": 1}, "x0": 0, "x1": 0.5}, {"item": {"node": 2}, "x0": 0.5, "x1": 1}]
    found = call("icicle_layout.js", "hit", row, x)
    assert (found and found["item"]["node"]) == node


@pytest.mark.parametrize(("age", "least", "most"), [(0, 1, 1), (60, 0.85, 0.95), (3600, 0.3, 0.5), (10**6, 0, 0)])
def test_what_was_used_lately_is_warm(call: Callable[..., Any], age: float, least: float, most: float) -> None:
    assert least <= call("tree_model.js", "heat", NOW - age, NOW) <= most


def test_what_was_never_used_is_cold(call: Callable[..., Any]) -> None:
    assert call("tree_model.js", "heat", None, NOW) == 0


_ONLY = """async ([answer]) => {
  const { Tree } = await import("/radix_tier/dashboard/tree_model.js");
  const { nodeName } = await import("/radix_tier/dashboard/words.js");
  return answer.nodes.map((item) => [item.node, nodeName(new Tree(answer).get(item.node))]);
}"""


def test_a_node_that_leads_to_one_session_has_its_name(call: Any) -> None:
    """The server names the last node of a path only."""
    below = {"nodes": 1, "tokens": 16, "hbm": 0, "dram": 0, "nvme": 0}
    parents = {0: None, 1: 0, 2: 1, 3: 2, 4: 0, 5: 4, 6: 5, -1: 5}
    sessions = {3: "a", 2: "a", 4: "b", 6: "b"}
    nodes = [
        {"node": node, "parent": parent, "session": sessions.get(node), "merged": int(node < 0), "below": below}
        for node, parent in parents.items()
    ]
    names = dict(call.page.evaluate(_ONLY, [{"nodes": nodes, "root": None}]))
    # Two sessions meet in 0; what is merged below 5 may be of any.
    assert names == {0: "node 0", 1: "a", 2: "a", 3: "a", 4: "b", 5: "node 5", 6: "b", -1: "1 small node"}


def test_tiers_of_a_node_come_fastest_first(call: Callable[..., Any]) -> None:
    item = {"tokens": 100, "hbm": 0, "dram": 50, "nvme": 100, "lost": 0}
    assert call("tree_model.js", "places", item) == [{"tier": "dram", "share": 0.5}, {"tier": "nvme", "share": 1}]
    assert call("tree_model.js", "places", item | {"tokens": 0}) == []
