"""The tables of figures below each gate's checks.

Owns which figures are shown, and in which columns. Invariant: figures that are missing, or have another shape than is
expected, leave a gap and never break a page. Pure, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from radixtier.gate.html_parts import Html, cell, table
from radixtier.gate.progress import clock
from radixtier.gate.report_text import items, mapping, middle, number
from radixtier.units import format_bytes

Figures = Mapping[str, Any]

MOST_VALUES = 8
"""Of a list, that a cell has."""

_AGAIN, _COLD = "computed\u00a0again", "from\u00a0NVMe"
_SOURCES = {"recompute_s": "computed again", "hbm_s": "HBM", "dram_s": "DRAM", "nvme_s": "NVMe"}


def tables(key: str, figures: Figures) -> list[Html]:
    """Return the tables of one gate, each with a title; none where there is nothing to show."""
    parts = _PARTS.get(key, ())
    made = [(title, make(figures)) for title, make in parts]
    return [Html(f"<h3>{escape(title)}</h3>{body}") for title, body in made if body]


def seconds(value: object) -> str:
    """Write seconds for a table."""
    found = number(value)
    return "" if found is None else f"{found:.3f} s" if found < 10 else f"{found:.1f} s"


def ratio(value: object) -> str:
    """Write a ratio with its interval."""
    estimate = middle(value)
    if estimate is None:
        return ""
    if isinstance(value, Sequence) and len(value) == 3 and all(number(each) is not None for each in value):
        return f"{estimate:.3g} ({value[1]:.3g} to {value[2]:.3g})"
    return f"{estimate:.3g}"


def _ordered(levels: object) -> Iterable[tuple[str, Figures]]:
    there = mapping(levels)
    return ((level, mapping(there[level])) for level in sorted(there, key=lambda text: (len(text), text)))


# ---- G1 ----------------------------------------------------------------------------------------------------------


def _findings(figures: Figures) -> Html:
    found = items(figures.get("findings"))
    blocks = []
    for where in dict.fromkeys(str(each.get("where")) for each in found):
        some = [each for each in found if str(each.get("where")) == where]
        rows = [[each.get("level"), each.get("topic"), Html(cell(each.get("found")) + _hint(each))] for each in some]
        blocks.append(_folded(where, table(["level", "topic", "found"], rows)))
    return Html("".join(blocks))


def _hint(finding: Figures) -> str:
    return f'<span class="fix">{cell(finding["fix"])}</span>' if finding.get("fix") else ""


def _bandwidth(figures: Figures) -> Html:
    rows = [
        [directory, format_bytes(int(number(each.get("page_bytes")) or 0))]
        + [each.get(f"{side}_{kind}_gbps") for kind in ("read", "write") for side in ("raw", "store")]
        + [each.get("read_ratio"), each.get("write_ratio")]
        for directory, each in ((name, mapping(value)) for name, value in mapping(figures.get("bandwidth")).items())
    ]
    head = ["directory", "page", "raw read", "store read", "raw write", "store write", "read ratio", "write ratio"]
    return table(head, rows, right=range(1, 8))


def _subject(figures: Figures) -> Html:
    subject = mapping(figures.get("subject"))
    tiers = mapping(subject.get("tiers"))
    rows = [[name.upper().replace("NVME", "NVMe"), mapping(tier).get("capacity")] for name, tier in tiers.items()]
    return table(["tier", "tokens"], rows, right=(1,))


# ---- G2 and G3 ---------------------------------------------------------------------------------------------------


def _line(figures: Figures) -> list[object]:
    ttft, itl = mapping(figures.get("ttft_s")), mapping(figures.get("itl_s"))
    times = [seconds(ttft.get(name)) for name in ("p50", "p95", "p99")] + [seconds(itl.get("p50"))]
    rates = [figures.get(name) for name in ("output_tokens_per_s", "prompt_tokens_per_s")]
    return [*times, *rates, figures.get("requests"), figures.get("failed")]


_HEAD = ["TTFT p50", "p95", "p99", "ITL p50", "output tokens/s", "prompt tokens/s", "requests", "failed"]


def _baseline(figures: Figures) -> Html:
    rows = [[level, *_line(each)] for level, each in _ordered(figures.get("levels"))]
    return table(["at a time", *_HEAD], rows, right=range(9))


def _recovery(figures: Figures) -> Html:
    rows = [
        [level, name, *_line(mapping(each.get(side)))]
        for level, each in _ordered(figures.get("levels"))
        for side, name in (("baseline", _AGAIN), ("cold", _COLD))
        if side in each
    ]
    return table(["at a time", "prompts", *_HEAD], rows, right=(0, *range(2, 10)))


def _ratios(figures: Figures) -> Html:
    rows = [
        [level, ratio(each.get("ttft_ratio")), ratio(each.get("throughput_ratio")), each.get("bounds") or ""]
        for level, each in _ordered(figures.get("levels"))
    ]
    head = ["at a time", "TTFT, NVMe / computed again", "throughput, NVMe / computed again", "in brackets"]
    return table(head, rows, right=range(4))


def _by_length(figures: Figures) -> Html:
    there = list(_ordered(figures.get("by_length")))
    names = [name for name in _SOURCES if any(name in each for _, each in there)]
    rows = [[length, *(seconds(each.get(name)) for name in names), ratio(each.get("ratio"))] for length, each in there]
    return table(["tokens", *(_SOURCES[name] for name in names), "NVMe / computed"], rows, right=range(len(names) + 2))


def _plain(key: str, value: object) -> str:
    """Write a plain value or a ratio; "" for what needs more than a cell."""
    if key.endswith("_s") and not key.endswith("_per_s") and number(value) is not None:
        return seconds(value)
    if isinstance(value, (list, tuple)):
        return ratio(value) if key.endswith("ratio") else ", ".join(_plain(key, each) for each in value[:MOST_VALUES])
    return "" if isinstance(value, Mapping) else cell(value)


def _simple(name: str) -> Callable[[Figures], Html]:
    """Return what shows the plain values of one group of figures."""

    def make(figures: Figures) -> Html:
        values = {key: _plain(key, value) for key, value in mapping(figures.get(name)).items()}
        return table(["", ""], [[key.replace("_", " "), text] for key, text in values.items() if text], right=(1,))

    return make


# ---- G4 ----------------------------------------------------------------------------------------------------------


def _soak(figures: Figures) -> Html:
    length = number(figures.get("seconds"))
    rows = [["length", clock(length)]] if length is not None else []
    rows += [[key, cell(figures[key])] for key in ("turns", "right", "wrong", "failed", "cut") if key in figures]
    return table(["", ""], rows, right=(1,))


def _recovered(event: Figures) -> str:
    return seconds(event.get("recovered_s")) or ("never" if "recovered_s" in event and not event.get("skipped") else "")


def _drift(figures: Figures) -> Html:
    there = [(source, value) for source, value in mapping(figures.get("drift")).items() if isinstance(value, list)]
    return table(
        ["source", "last / first", "of", "and"], [[source, *value[:3]] for source, value in there], right=(1, 2, 3)
    )


def _events(figures: Figures) -> Html:
    rows = [
        [
            clock(number(each.get("at_s")) or 0.0),
            each.get("what"),
            _recovered(each),
            each.get("trouble") or each.get("skipped") or "",
        ]
        for each in items(figures.get("events"))
    ]
    return table(["at", "what", "recovered after", ""], rows, right=(0, 2))


def _first_last(figures: Figures) -> Html:
    samples = items(figures.get("samples"))
    if not samples:
        return Html("")
    rows = []
    for key, name, form in _WATCHED:
        if values := [value for sample in samples if (value := number(sample.get(key))) is not None]:
            rows.append([name, *(form(value) for value in (values[0], max(values), values[-1]))])
    return table(["", "first", "largest", "last"], rows, right=range(1, 4))


def _bytes(value: float) -> str:
    return format_bytes(int(value))


def _count(value: float) -> str:
    return f"{value:g}"


_WATCHED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("rss_bytes", "resident memory", _bytes),
    ("descriptors", "descriptors", _count),
    ("threads", "threads", _count),
    ("store_bytes", "store", _bytes),
    ("ttft_p50_s", "TTFT p50", seconds),
)


def _folded(title: str, body: Html) -> Html:
    return Html(f"<details open><summary>{escape(title)}</summary>{body}</details>")


_PARTS: dict[str, Sequence[tuple[str, Callable[[Figures], Html]]]] = {
    "G1": (
        ("Capacity", _subject),
        ("Bandwidth, GB/s", _bandwidth),
        ("What the doctor found", _findings),
    ),
    "G2": (("By concurrency", _baseline),),
    "G3": (
        ("Ratios", _ratios),
        ("By concurrency", _recovery),
        ("By length of the prefix, one request at a time", _by_length),
        ("After a restart", _simple("restart")),
        ("Load without reuse", _simple("no_reuse")),
        ("Answers", _simple("answers")),
    ),
    "G4": (
        ("The soak", _soak),
        ("Faults and recoveries", _events),
        ("What was watched", _first_last),
        ("Drift of the first token: median of the last third over that of the first", _drift),
    ),
}
