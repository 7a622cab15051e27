"""Pictures of the lab: what is on the axes, in the legend and on the lines; files; and no matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from radixtier.lab.plots import style
from radixtier.lab.setup import Setup
from radixtier.lab.sweep.grid import Cell, Outcome, Shape
from radixtier.lab.sweep.plan import Plan
from radixtier.lab.sweep.prices import Prices
from radixtier.lab.sweep.target import Target

pytest.importorskip("matplotlib")

from radixtier.lab.plots.front import front_figure
from radixtier.lab.plots.sweep import hit_ratios, ttfts, writes

BLOCK = 64 << 20
STACKS = {"hbm": 0.5, "tiers": 1.0, "ceiling": 1.2}
"""A hit ratio of each, against that of the tiers."""


def outcome(trace: str, sizes: Shape, eviction: str, hits: float, written: int | None = 10**12) -> Outcome:
    """Make an outcome; the more hits, the shorter the wait."""
    stacks = {
        name: {
            "hit_ratio": hits * share,
            "ttft_s": {p: n / (hits * share) for n, p in enumerate(("p50", "p95", "p99"), 1)},
        }
        for name, share in STACKS.items()
    }
    report: dict[str, Any] = {
        "hit_ratio": {"total": hits},
        "stacks": stacks,
        "block_bytes": BLOCK,
        "bytes_written_per_day": written,
    }
    setup = Setup(*sizes, eviction=eviction, kv_bytes_per_token=128 << 10)
    return Outcome(Cell(trace, setup), report)


SCALES = [(1000 * n, 2000 * n, 8000 * n) for n in (1, 2, 4, 8)]
SWEEP = [
    outcome(trace, sizes, eviction, 0.1 + 0.1 * number + 0.02 * better, (number + 1) * 10**11)
    for trace in ("chats", "agents")
    for number, sizes in enumerate(SCALES)
    for better, eviction in enumerate(("lru", "auto"))
]


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def ticks_of(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def test_hit_ratio_against_capacity() -> None:
    figure = hit_ratios(SWEEP)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["chats", "agents"]
    assert legend_of(figure) == ["lru", "auto", "ceiling", "HBM alone"]
    assert panels[0].get_xlabel() == "capacity of all tiers, TiB"
    assert panels[0].get_ylabel() == "hit ratio, share of all blocks"
    assert panels[0].get_xscale() == "log"
    assert ticks_of(panels[0].xaxis) == ["0.671", "1.34", "2.69", "5.37"]
    (top,) = panels[0].child_axes
    assert top.get_xlabel() == "million tokens"
    assert ticks_of(top.xaxis) == ["5.63", "11.3", "22.5", "45.1"]
    lru = next(line for line in panels[0].get_lines() if line.get_label() == "lru")
    assert lru.get_ydata() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_hit_ratio_against_bytes_written() -> None:
    figure = writes(SWEEP)
    assert figure.axes[0].get_xlabel() == "written to NVMe, GiB per day"
    assert legend_of(figure) == ["lru", "auto"]
    assert "filled marker is the largest" in figure.legends[0].get_title().get_text()


def test_waits_against_capacity() -> None:
    figure = ttfts(SWEEP)
    assert [axes.get_title() for axes in figure.axes] == [
        f"{trace}, {p}" for trace in ("chats", "agents") for p in ("p50", "p95", "p99")
    ]
    assert legend_of(figure) == ["lru", "auto", "ceiling", "HBM alone"]
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["time to first token, s"] * 2
    assert figure.axes[1].get_yscale() == "log"
    lru = next(line for line in figure.axes[1].get_lines() if line.get_label() == "lru")
    assert lru.get_ydata() == pytest.approx([2 / hits for hits in (0.1, 0.2, 0.3, 0.4)])


def test_waits_that_grow_for_ever_are_left_out() -> None:
    cells = [outcome("t", sizes, "lru", 0.1 + 0.1 * number) for number, sizes in enumerate(SCALES)]
    for number, each in enumerate(cells):
        (each.report or {})["stacks"]["hbm"]["utilisation"] = 1.5
        (each.report or {})["stacks"]["tiers"]["utilisation"] = 1.2 - 0.1 * number
    figure = ttfts(cells)
    assert legend_of(figure) == ["lru", "ceiling"]
    assert "cannot keep up" in figure.legends[0].get_title().get_text()
    lru = next(line for line in figure.axes[0].get_lines() if line.get_label() == "lru")
    assert list(lru.get_ydata()) == pytest.approx([1 / 0.4])
    for each in cells:
        for stack in (each.report or {})["stacks"].values():
            stack["utilisation"] = 1.0
    assert [text.get_text() for text in ttfts(cells).axes[0].texts] == ["cannot keep up\nat any of these sizes"]
    assert legend_of(hit_ratios(cells)) == ["lru", "ceiling", "HBM alone"]


def test_of_sizes_that_are_no_chain_the_best_are_joined() -> None:
    shapes = [(1, 0, 0), (1, 10, 0), (1, 0, 10), (1, 10, 10)]
    figure = hit_ratios(
        outcome("t", sizes, "lru", hits) for sizes, hits in zip(shapes, (0.1, 0.3, 0.2, 0.4), strict=True)
    )
    joined, points = (line for line in figure.axes[0].get_lines() if line.get_label() == "lru")
    assert list(joined.get_ydata()) == [0.1, 0.3, 0.4]
    assert (list(points.get_ydata()), points.get_linestyle()) == ([0.2], "None")


def test_a_sweep_without_a_ceiling_and_without_writes() -> None:
    bare = outcome("t", (1, 1, 0), "lru", 0.3, written=None)
    del (bare.report or {})["stacks"]["ceiling"]
    failed = Outcome(Cell("t", Setup(2)), error="broken")
    assert legend_of(hit_ratios([bare, failed])) == ["lru", "HBM alone"]
    assert len(writes([bare, failed]).axes) == 1
    with pytest.raises(ValueError, match="no cell"):
        ttfts([failed])


def test_every_series_can_be_told_in_grey() -> None:
    assert len({(each.marker, each.line) for each in style.STYLES}) == len(style.STYLES) >= 8


def test_the_front_of_a_plan() -> None:
    found = [outcome("t", (1, dram, 1), "lru", 0.1 + dram / 100) for dram in (1, 10, 20, 40)]
    plan = Plan(Target(0.25), Prices(), found=found, alone=outcome("t", (1, 0, 0), "lru", 0.05), answer=found[2])
    plan.most = found[-1]
    figure = front_figure(plan, "EUR")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "cost, EUR"
    assert axes.get_ylabel() == "hit ratio, share of all blocks"
    assert legend_of(figure) == [
        "replayed",
        "better than all that is cheaper",
        "target: hit ratio of 0.250 or more",
        "HBM alone",
        "ceiling, largest sizes",
        "cheapest: 10.8",
    ]
    plan.target = Target(5.0, "p95")
    assert front_figure(plan, "EUR").axes[0].get_ylabel() == "time to first token, p95, s"


def test_files_of_both_kinds_and_the_same_ones_again(tmp_path: Path) -> None:
    files = style.save(hit_ratios(SWEEP), tmp_path / "hits", ["png", "svg"])
    assert [file.name for file in files] == ["hits.png", "hits.svg"]
    first = [file.read_bytes() for file in files]
    assert first[0].startswith(b"\x89PNG") and b"<svg" in first[1] and b"million tokens" in first[1]
    style.save(hit_ratios(SWEEP), tmp_path / "hits", ["png", "svg"])
    assert [file.read_bytes() for file in files] == first


@pytest.mark.parametrize(
    ("values", "named", "ticks"),
    [
        ([1, 2, 4], True, [1, 2, 4]),
        ([1.0, 1.1], True, [1.0, 1.05, 1.1, 1.15]),
        ([3, 30], False, [5, 10, 20]),
        ([0, 1, 1000], False, [1, 3, 10, 30, 100, 300, 1000]),
        ([1e-3, 1e9], False, [10.0**power for power in range(-3, 10, 2)]),
        ([], False, []),
    ],
)
def test_ticks(values: list[float], named: bool, ticks: list[float]) -> None:
    assert style.ticks(values, named=named) == pytest.approx(ticks)


def test_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert style.formats("png,svg") == ["png", "svg"]
    assert style.formats("none") == []
    with pytest.raises(style.NoPictures, match="--format gif: no format 'gif'"):
        style.formats("gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(style.NoPictures, match=r"pip install 'radixtier\[lab\]'"):
        style.formats("png")
    assert style.formats("none") == []
