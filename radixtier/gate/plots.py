"""The pictures of the report, as SVG that stands inside a page.

Owns their looks: colours of `radixtier.lab.plots.style`, no background, text and axes in the colour of the page, so
that one picture serves light, dark and paper. Invariant: draws only what is in ``report.json``; what it cannot draw is
left out. Needs matplotlib, imported when called. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from typing import Any, NamedTuple

from radixtier.gate.report_text import figures_of, items, mapping, number
from radixtier.lab.plots.style import STYLES

_INK, _FAINT = "#010203", "#040506"
"""Stand for the colours of the page: no picture has them otherwise."""

_SOURCES = ("recompute", "nvme", "dram", "hbm")
_NAMES = {"recompute": "computed again", "nvme": "from NVMe", "dram": "from DRAM", "hbm": "from HBM"}
MIB = 1 << 20


class Plot(NamedTuple):
    """A picture, and what it shows in words."""

    gate: str
    title: str
    svg: str


def plots(report: Mapping[str, Any]) -> list[Plot]:
    """Return the pictures of a report; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    makers: list[tuple[str, str, Callable[[Mapping[str, Any], Any], bool], tuple[float, float]]] = [
        ("G3", "Time to the first token, median, by concurrency", _ttft, (4.6, 3.2)),
        ("G3", "Throughput by concurrency", _throughput, (4.6, 3.2)),
        ("G3", "Time to the first token by length of the prefix, one request at a time", _by_length, (4.6, 3.2)),
        ("G4", "The soak over time", _soak, (9.4, 4.2)),
    ]
    found = []
    for index, (gate, title, draw, size) in enumerate(makers):
        if svg := _drawn(figures_of(report, gate), draw, size, f"p{index}"):
            found.append(Plot(gate, title, svg))
    return found


def _drawn(figures: Mapping[str, Any], draw: Callable[[Mapping[str, Any], Any], bool], size: Any, name: str) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    looks: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "grid.color": _FAINT,
        "grid.linewidth": 0.5,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    }
    with rc_context(looks):
        figure = Figure(figsize=size, layout="constrained")
        if not draw(figures, figure):
            return ""
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return inline(text.getvalue(), name)


def inline(svg: str, name: str) -> str:
    """Make an SVG file a part of a page: without prologue, in the page's colours, with names of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(_INK, "currentColor").replace(_FAINT, "var(--faint, #8884)")
    tag, end, rest = svg.partition(">")
    # The page gives the size.
    return re.sub(r' (?:width|height)="[^"]*"', "", tag) + end + rest


def _levels(figures: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return level, baseline and cold recovery, in the order of levels."""
    levels = mapping(figures.get("levels"))
    return [
        (level, mapping(mapping(levels[level]).get("baseline")), mapping(mapping(levels[level]).get("cold")))
        for level in sorted(levels, key=lambda text: (len(text), text))
    ]


def _pairs(axes: Any, rows: Sequence[tuple[str, float | None, float | None]], label: str, form: str, log: bool) -> bool:
    """Draw two bars per level."""
    values = [value for _, *two in rows for value in two if value]
    if not values:
        return False
    for side, name in enumerate(("computed again", "from NVMe")):
        there = [(at, row[1 + side]) for at, row in enumerate(rows) if row[1 + side]]
        bars = axes.bar(
            [at + (side - 0.5) * 0.38 for at, _ in there],
            [value for _, value in there],
            width=0.36,
            color=STYLES[1 - side].colour,
            label=name,
            zorder=2,
        )
        axes.bar_label(bars, labels=[format(value, form) for _, value in there], padding=2, fontsize=8)
    axes.set_xticks(range(len(rows)), [level for level, *_ in rows])
    axes.set_xlabel("requests at a time")
    axes.set_ylabel(label)
    if log:
        _log(axes, values)
    else:
        axes.set_ylim(0, 1.3 * max(values))
    axes.grid(axis="y", zorder=0)
    axes.legend(loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.14))
    return True


def _ttft(figures: Mapping[str, Any], figure: Any) -> bool:
    def p50(side: Mapping[str, Any]) -> float | None:
        return number(mapping(side.get("ttft_s")).get("p50"))

    rows = [(level, p50(baseline), p50(cold)) for level, baseline, cold in _levels(figures)]
    return _pairs(figure.subplots(), rows, "seconds (log scale)", ".2f", log=True)


def _throughput(figures: Mapping[str, Any], figure: Any) -> bool:
    rows = [
        (level, number(baseline.get("output_tokens_per_s")), number(cold.get("output_tokens_per_s")))
        for level, baseline, cold in _levels(figures)
    ]
    return _pairs(figure.subplots(), rows, "tokens of answers per second", ".3g", log=False)


def _by_length(figures: Mapping[str, Any], figure: Any) -> bool:
    lengths = {int(key): mapping(each) for key, each in mapping(figures.get("by_length")).items() if key.isdecimal()}
    axes, values = figure.subplots(), []
    for source, style in zip(_SOURCES, (STYLES[1], STYLES[0], STYLES[2], STYLES[3]), strict=True):
        points = [(at, value) for at in sorted(lengths) if (value := number(lengths[at].get(f"{source}_s")))]
        if points:
            values += [value for _, value in points]
            axes.plot(*zip(*points, strict=True), style.marker, color=style.colour, ls=style.line, label=_NAMES[source])
    if not values:
        return False
    _log(axes, values)
    axes.set_xticks(sorted(lengths), [f"{length:,}" for length in sorted(lengths)])
    axes.set_xlabel("tokens of prefix")
    axes.set_ylabel("seconds (log scale)")
    axes.grid(axis="y")
    axes.legend(loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.2))
    return True


def _soak(figures: Mapping[str, Any], figure: Any) -> bool:
    samples = items(figures.get("samples"))
    times = [number(sample.get("at_s")) or 0.0 for sample in samples]
    if len(times) < 2 or not any(
        number(sample.get(name)) for sample in samples for name in ("rss_bytes", "ttft_p50_s")
    ):
        return False
    unit, scale = ("h", 3600.0) if max(times) > 7200 else ("min", 60.0)
    panels = [("rss_bytes", "resident memory, MiB", 1 / MIB), ("ttft_p50_s", "first token, median, s", 1.0)]
    for axes, (name, label, factor), style in zip(figure.subplots(2, 1, sharex=True), panels, STYLES, strict=False):
        there = [(at / scale, value) for at, s in zip(times, samples, strict=True) if (value := number(s.get(name)))]
        axes.plot([at for at, _ in there], [value * factor for _, value in there], color=style.colour)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        for event in items(figures.get("events")):
            at = (number(event.get("at_s")) or 0.0) / scale
            axes.axvline(at, color=_INK, linewidth=0.8, linestyle=":")
            if name == "rss_bytes":
                what = str(event.get("what", ""))[:24]
                axes.annotate(what, (at, 1), xycoords=("data", "axes fraction"), rotation=30, fontsize=7)
    axes.set_xlabel(f"since the start of the soak, {unit}")
    return True


def _log(axes: Any, values: Sequence[float]) -> None:
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(min(values) / 2, max(values) * 2)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())
