"""Shows on a terminal which tier answered. Shared by the examples.

Owns colours and columns. Invariant: without a terminal, or with ``NO_COLOR``, plain text; nothing that a model says can
move the cursor. Any thread. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from statistics import median

from ask import Turn

_COLOURS = {"HBM": "30;42", "DRAM": "30;46", "NVMe": "30;45", "computed": "30;43"}


def coloured() -> bool:
    """Whether standard output shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def badge(turn: Turn) -> str:
    """Name where most of the prompt came from, eight characters wide on the screen and two more with colour."""
    parts = turn.parts
    name = max(parts, key=lambda each: parts[each])
    return f"\x1b[{_COLOURS[name]}m {name:8} \x1b[0m" if coloured() else f"{name:8}"


def split(turn: Turn) -> str:
    """Tell how many tokens of the prompt came from where."""
    return " | ".join(f"{name} {tokens:,}" for name, tokens in turn.parts.items())


def facts(turn: Turn) -> str:
    """Tell all about a turn in one line."""
    line = f"[{split(turn)} tokens; first token after {turn.ttft_s:.2f} s]"
    return f"{badge(turn)} {line}" if coloured() else line


def printable(text: str) -> str:
    """Return a text without the control characters that a terminal would obey."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t")


def table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(row))
        yield "  ".join((first, *others)).rstrip()


HEADER = ("turns", "HBM", "DRAM", "NVMe", "computed", "first token, median")


def summary(turns: Sequence[Turn]) -> list[str]:
    """Return the columns of :data:`HEADER` for some turns."""
    if not turns:
        return ["0", *("-" for _ in HEADER[1:])]
    sums = [sum(turn.parts[name] for turn in turns) for name in turns[0].parts]
    return [str(len(turns)), *(f"{tokens:,}" for tokens in sums), f"{median(turn.ttft_s for turn in turns):.2f} s"]
