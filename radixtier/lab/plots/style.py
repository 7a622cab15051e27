"""How pictures look: one style per series, axes with units, a legend outside of the data.

Owns the looks. A series differs from the others by colour, marker and line, so that it can be told in grey as well;
the colours are those of Okabe and Ito, for all kinds of colour vision. Figures are made without pyplot: no window, no
global state. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FORMATS = ("png", "svg")
DPI = 100
"""A picture of ten inches is 1,000 pixels wide."""

PANEL_INCHES = (3.5, 3.2)
"""Width and height of a panel where several stand side by side."""

ACROSS = 3
"""Panels side by side, at most."""

COLOURS = 128
"""Of a picture as PNG."""

MOST_TICKS = 8
"""Sizes that are named on an axis one by one."""

GREY = "#666666"


class NoPictures(ValueError):
    """Pictures cannot be drawn; the text says why and what to do."""


class Style(NamedTuple):
    """Of a series."""

    colour: str
    marker: str
    line: str


STYLES = tuple(
    Style(*each)
    for each in (
        ("#0072B2", "o", "-"),
        ("#D55E00", "s", "--"),
        ("#009E73", "^", "-."),
        ("#CC79A7", "D", ":"),
        ("#E69F00", "v", (0, (5, 1))),
        ("#56B4E9", "P", (0, (3, 1, 1, 1))),
        ("#000000", "X", (0, (1, 1))),
        ("#8A6D1B", "<", "-"),
    )
)
CEILING = Style("#000000", "*", "-")
ALONE = Style(GREY, "_", "--")


def formats(text: str) -> list[str]:
    """Read ``png``, ``svg``, ``png,svg`` or ``none``.

    Raises
    ------
    NoPictures
        For another word, or when matplotlib is not installed.
    """
    if text == "none":
        return []
    names = text.split(",")
    for name in names:
        if name not in FORMATS:
            raise NoPictures(f"--format {text}: no format {name!r}. Choose of {', '.join(FORMATS)}, or none.")
    if find_spec("matplotlib") is None:
        raise NoPictures("pictures need matplotlib: pip install 'radixtier[lab]', or go without by --format none")
    return names


def figure(panels: int, rows: int = 1) -> tuple[Any, list[list[Any]]]:
    """Make a figure.

    Parameters
    ----------
    panels
        Panels that belong together; they stand side by side, at most `ACROSS` of them.
    rows
        What each panel is repeated for; with more than one, panels go down and rows across.

    Returns
    -------
    figure
        Of matplotlib.
    axes
        By row and panel of the arguments.
    """
    from matplotlib.figure import Figure

    if rows > 1:
        down, across = panels, rows
    else:
        across = min(panels, ACROSS)
        down = -(-panels // across)
    wide, high = PANEL_INCHES
    width = max(7.0, wide * across) if across > 1 else 7.0
    made = Figure(figsize=(min(10.0, width), max(4.0, high * down + 0.8)), layout="constrained", dpi=DPI)
    grid = made.subplots(down, across, squeeze=False)
    if rows > 1:
        return made, [[grid[panel][row] for panel in range(panels)] for row in range(rows)]
    flat = [axes for line in grid for axes in line]
    for axes in flat[panels:]:
        axes.set_visible(False)
    return made, [flat[:panels]]


def plot(axes: Any, xs: Sequence[float], ys: Sequence[float], style: Style, label: str, **more: Any) -> None:
    """Draw one series."""
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.line, "markersize": 6, "linewidth": 1.5}
    axes.plot(xs, ys, **{**look, "markerfacecolor": "white", "markeredgewidth": 1.3, "label": label, **more})


def legend(made: Any, note: str | None = None) -> None:
    """Put one legend below all panels, each label once, in the order in which they were first drawn; perhaps a note."""
    found: dict[str, Any] = {}
    for axes in made.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    widest = max(map(len, found), default=0)
    columns = max(1, min(4, len(found), int(made.get_figwidth() / (0.7 + 0.08 * widest))))
    made.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=note,
        handlelength=3.5,
    )


def byte_unit(largest: float) -> tuple[float, str]:
    """Choose the unit in which an axis up to so many bytes has small numbers."""
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if largest >= 1 << power:
            return float(1 << power), name
    return 1.0, "bytes"


def number(value: float) -> str:
    """Write a number with three digits that count."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def log_axis(axis: Any, values: Iterable[float], *, named: bool = False) -> None:
    """Make an axis logarithmic; ``named`` puts ticks at the values themselves where they are few and far apart."""
    from matplotlib.ticker import NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    name_ticks(axis, ticks(values, named=named))
    axis.set_minor_locator(NullLocator())


def ticks(values: Iterable[float], *, named: bool = False) -> list[float]:
    """Choose ticks of a logarithmic axis, see `log_axis`.

    Else 1, 2 and 5 of each power of ten, or fewer; over less than a factor of four, round numbers evenly spaced.
    """
    distinct = sorted({value for value in values if value > 0})
    if not distinct:
        return []
    if named and len(distinct) <= MOST_TICKS and all(high / low > 1.3 for low, high in pairwise(distinct)):
        return distinct
    low, high = distinct[0] / 1.05, distinct[-1] * 1.05
    if high < 4 * low:
        return _even(low, high)
    found: list[float] = []
    for digits, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        powers = range(-9, 25, every)
        found = [step for power in powers for digit in digits if low <= (step := digit * 10.0**power) <= high]
        if len(found) <= MOST_TICKS:
            break
    return found


def _even(low: float, high: float) -> list[float]:
    """Return three or more multiples of 1, 2 or 5 times a power of ten."""
    steps = (digit * 10.0**power for power in range(24, -10, -1) for digit in (5, 2, 1))
    step = next(step for step in steps if high // step - low // step >= 3)
    return [step * (low // step + 1 + number) for number in range(int(high // step - low // step))]


def name_ticks(axis: Any, places: Sequence[float]) -> None:
    """Put ticks in these places, and write their numbers."""
    axis.set_ticks(places, [number(place) for place in places])


def top_axis(axes: Any, label: str, factor: float, values: Iterable[float], *, named: bool = False) -> None:
    """Name a logarithmic horizontal axis in a second unit as well: ``factor`` of it are one of the first."""
    from matplotlib.ticker import NullLocator

    functions: tuple[Callable[[Any], Any], Callable[[Any], Any]] = (lambda x: x * factor, lambda x: x / factor)
    second = axes.secondary_xaxis("top", functions=functions)
    second.set_xlabel(label)
    name_ticks(second.xaxis, ticks([value * factor for value in values], named=named))
    second.xaxis.set_minor_locator(NullLocator())


def save(made: Any, stem: Path, names: Iterable[str]) -> list[Path]:
    """Write a figure in some formats; returns the files. The same figure gives the same file."""
    from matplotlib import rc_context

    files = []
    for name in names:
        file = stem.with_name(f"{stem.name}.{name}")
        if name == "png":
            _save_png(made, file)
        else:
            with rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "none"}):
                made.savefig(file, format=name, metadata={"Date": None})
        files.append(file)
    return files


def _save_png(made: Any, file: Path) -> None:
    """Write with a palette, which takes a quarter of the bytes: few colours are in use."""
    image = import_module("PIL.Image")
    drawn = BytesIO()
    made.savefig(drawn, format="png")
    image.open(drawn).convert("RGB").quantize(COLOURS).save(file, format="png", optimize=True)
