"""How ``radixtier top`` writes numbers, times, bars and names.

Owns the forms. Invariants: a figure that is missing or of another type is written as a dash and never raises; text of
others comes out without a character that a terminal would obey. Pure; any thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from radixtier.monitor.reading import number, part
from radixtier.units import format_bytes

NOTHING = "-"

TIERS = ("hbm", "dram", "nvme")
SOURCES = (*TIERS, "computed")
"""Where prompt tokens come from."""

LABELS = {"hbm": "HBM", "dram": "DRAM", "nvme": "NVMe", "computed": "computed"}
STYLES = {"hbm": "bright_blue", "dram": "bright_cyan", "nvme": "magenta", "computed": "yellow", "lost": "red"}


@dataclass(frozen=True)
class Glyphs:
    """The characters that pictures are made of; each source has its own, so that no colour is needed."""

    eighths: str
    fill: str
    rest: str
    sources: Mapping[str, str]
    levels: str
    rule: str
    ok: str
    bad: str
    fix: str
    more: str


UNICODE = Glyphs(
    " ▏▎▍▌▋▊▉", "█", "·", dict(zip((*SOURCES, "lost"), "█▓▒░-", strict=True)), "▁▂▃▄▅▆▇█", "─", "●", "▲", "→", "…"
)
ASCII = Glyphs(" ", "#", ".", dict(zip((*SOURCES, "lost"), "#=+-x", strict=True)), "_.-=#", "-", "*", "!", "->", "~")


def rows(data: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the objects of the list at a path of keys in a JSON object."""
    found = part(data, name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def count(value: Any, unit: str = "") -> str:
    """Write an amount with at most four digits: 831, 12.3k, 4.56M."""
    found = number(value)
    if found is None:
        return NOTHING
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(found) >= power:
            scaled = found / (1e3 if letter == "k" else power)
            return f"{scaled:.{0 if scaled >= 100 else 1}f}{letter}{unit}"
    return f"{found:,.0f}{unit}" if found >= 100 or found == int(found) else f"{found:.1f}{unit}"


def nbytes(value: Any) -> str:
    """Write bytes in binary units."""
    found = number(value)
    return NOTHING if found is None else format_bytes(int(found))


def speed(value: Any) -> str:
    """Write bytes per second in decimal units, as drives are sold."""
    found = number(value)
    if found is None:
        return NOTHING
    for power, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if found >= power:
            return f"{found / power:.2f} {unit}"
    return f"{found / 1e3:.0f} kB/s" if found >= 1 else "0 B/s"


def milliseconds(value: Any) -> str:
    """Write a time that was told in ms."""
    found = number(value)
    if found is None:
        return NOTHING
    return f"{found / 1e3:.1f} s" if found >= 1e3 else f"{found:.{0 if found >= 100 else 1 if found >= 10 else 2}f} ms"


def share(part: float | None, whole: float | None) -> str:
    """Write a part in percent."""
    return NOTHING if part is None or not whole else f"{100 * part / whole:.0f} %"


def small_percent(part: float) -> str:
    """Write a part of 1 that is small for a long time."""
    percent = 100 * part
    return f"{percent:.{0 if percent >= 10 else 1 if percent >= 1 else 2}f} %" if percent >= 0.01 else "<0.01 %"


def span(seconds: Any) -> str:
    """Write a duration in one unit or two: 12 s, 5 min, 2 h 13 min, 3 d 4 h."""
    found = number(seconds)
    if found is None:
        return NOTHING
    whole = max(0, int(found))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def age(seconds: Any) -> str:
    """Write how long ago something was, in one unit."""
    found = number(seconds)
    if found is None:
        return NOTHING
    for factor, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if found >= factor:
            return f"{int(found / factor)} {unit} ago"
    return f"{max(0, int(found))} s ago"


def clock(seconds: Any) -> str:
    """Write a Unix time as a local time of day."""
    found = number(seconds)
    try:
        return NOTHING if found is None else time.strftime("%H:%M:%S", time.localtime(found))
    except (OverflowError, ValueError, OSError):
        return NOTHING


def words(value: Any, width: int, glyphs: Glyphs) -> str:
    """Write text of others, in so many cells: cut where it is longer, padded where it is shorter."""
    text = plain(value)
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - cell_len(glyphs.more))) + glyphs.more
    return set_cell_size(text, width)


def plain(value: Any) -> str:
    """Return a text without control characters; those of others never reach the terminal."""
    if value is None:
        return NOTHING
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def bar(part: float | None, whole: float | None, width: int, style: str, glyphs: Glyphs) -> Text:
    """Draw how full something is."""
    filled = min(1.0, max(0.0, part / whole)) * width if part is not None and whole else 0.0
    full = int(filled)
    rest = glyphs.eighths[int((filled - full) * len(glyphs.eighths))] if full < width else ""
    drawn = glyphs.fill * full + rest.strip()
    return Text.assemble((drawn, style), (glyphs.rest * (width - len(drawn)), "bright_black"))


def stacked(amounts: Mapping[str, float], width: int, glyphs: Glyphs) -> Text:
    """Draw parts of a whole, each of them there with a cell at least, one after the other."""
    there = {name: amount for name, amount in amounts.items() if amount > 0}
    whole = sum(there.values())
    drawn = Text()
    if not whole or width < len(there):
        return drawn.append(glyphs.rest * width, "bright_black")
    cells = {name: max(1, int(amount / whole * width)) for name, amount in there.items()}
    while sum(cells.values()) > width:
        cells[max(cells, key=cells.__getitem__)] -= 1
    left = {name: there[name] / whole * width - cells[name] for name in there}
    for name in sorted(left, key=left.__getitem__, reverse=True)[: width - sum(cells.values())]:
        cells[name] += 1
    for name in there:
        drawn.append(glyphs.sources[name] * cells[name], STYLES[name])
    return drawn


def sparkline(values: Sequence[Any], width: int, style: str, glyphs: Glyphs, top: float | None = None) -> Text:
    """Draw the last ``width`` values, the newest at the right, against the highest of them or ``top``."""
    shown = [number(value) for value in values[-width:]] if width > 0 else []
    high = top or max([value for value in shown if value is not None], default=0.0)
    last = len(glyphs.levels) - 1
    drawn = "".join(
        " " if value is None else glyphs.levels[min(last, int(max(0.0, value) / high * last + 0.5) if high else 0)]
        for value in shown
    )
    return Text(drawn.rjust(width), style)


def thinned(values: Sequence[Any], most: int) -> list[float | None]:
    """Return at most ``most`` values, each the mean of as many neighbours; the newest group is whole."""
    if most <= 0:
        return []
    size = max(1, -(-len(values) // most))
    groups = [values[max(0, end - size) : end] for end in range(len(values), 0, -size)]
    return [_mean(group) for group in reversed(groups)]


def _mean(values: Sequence[Any]) -> float | None:
    found = [value for value in map(number, values) if value is not None]
    return sum(found) / len(found) if found else None
