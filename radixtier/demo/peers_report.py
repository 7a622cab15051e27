"""Shows what ``radixtier bench peers`` found, as tables in plain text.

Owns the layout. Pure functions but for the screen, main thread.
"""

from __future__ import annotations

from typing import Any

from radixtier.demo.peers_figures import SOURCES
from radixtier.live.screen import Screen


def report(result: dict[str, Any], screen: Screen) -> None:
    """Show the tables of a result, see :func:`radixtier.demo.bench_peers.summarise`."""
    screen.title("Milliseconds to the first token, medians (number of samples)")
    screen.line(f"{'prefix':>6} {'side':<13}" + "".join(f"{name:>14}" for name in (*SOURCES, "nvme - hbm")))
    for row in result["ttft"]:
        cells = [_cell(row[source], row[f"{source}_samples"]) for source in SOURCES]
        screen.line(f"{row['prefix']:>6} {row['side']:<13}" + "".join(cells) + _cell(row["nvme_cost"], None))
    if result["comparisons"]:
        screen.title("radixtier / peer, 95 % confidence")
    for row in result["comparisons"]:
        screen.line(comparison(row), {True: "good", False: "bad", None: ""}[row["met"]])
    screen.line()
    pays = result["pays_from"]
    pays = "at no length that was tried" if pays is None else f"from {pays} tokens on"
    screen.line(f"an NVMe hit is faster than computing {pays}")
    screen.line(f"answers unlike the first to the same prompt, by side: {result['other_answers']}")
    cached = sum(each["cached_bytes"] for each in result["cold"])
    screen.line(f"left in the page cache where it was to be cold: {cached} bytes")


def comparison(row: dict[str, Any]) -> str:
    """Return one comparison as a line."""
    verdict = {True: "met", False: "missed", None: ""}[row["met"]]
    numbers = f"{row['value']:>6.2f} ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['what']:<48} {row['peer']:<13} {numbers:<24} {row['target']:<14} {verdict}".rstrip()


def _cell(seconds: float | None, samples: int | None) -> str:
    if seconds is None:
        return f"{'-':>14}"
    count = "" if samples is None else f" ({samples})"
    return f"{f'{1000 * seconds:.0f}{count}':>14}"
