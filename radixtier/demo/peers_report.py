"""Shows what ``radixtier bench peers`` found, as tables in plain text.

Owns the layout. Pure functions but for the screen, main thread.
"""

from __future__ import annotations

from typing import Any

from radixtier.demo.peers_figures import SOURCES, load_name
from radixtier.demo.peers_ratio import ONE, RANGE
from radixtier.live.screen import Screen


def report(result: dict[str, Any], screen: Screen) -> None:
    """Show the tables of a result, see :func:`radixtier.demo.bench_peers.summarise`."""
    screen.title("Milliseconds to the first token, medians (number of samples)")
    screen.line(f"{'prefix':>6} {'side':<13}" + "".join(f"{name:>14}" for name in (*SOURCES, "nvme - hbm")))
    for row in result["ttft"]:
        cells = [_cell(row[source], row[f"{source}_samples"]) for source in SOURCES]
        screen.line(f"{row['prefix']:>6} {row['side']:<13}" + "".join(cells) + _cell(row["nvme_cost"], None))
    if any(row["rounds"] for row in result["loads"]):
        screen.title("Loads: tokens/s (rounds that count of all), and of prompts what came from the tier meant")
    for row in result["loads"]:
        if row["rounds"]:
            screen.line(load(row), "" if row["count"] == row["rounds"] else "bad")
    if any(row["value"] is not None for row in result["bounds"]):
        screen.title("Throughput from NVMe / from HBM, which is the most that tiering can reach")
    for row in result["bounds"]:
        if row["value"] is not None:
            name = load_name(row["kind"], row["prefix"])
            screen.line(f"{name:<48} {row['side']:<13} {numbers(row)}")
    if result["comparisons"]:
        screen.title("radixtier / peer, 95 % confidence, or the range where there are too few samples")
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
    verdict = "" if row["value"] is None else {True: "met", False: "missed", None: ""}[row["met"]]
    return f"{row['what']:<48} {row['peer']:<13} {numbers(row):<36} {row['target']:<14} {verdict}".rstrip()


def numbers(row: dict[str, Any]) -> str:
    """Return a ratio with what it tells."""
    if row["value"] is None:
        return f"not measured: {row['why']}"
    value = f"{row['value']:>6.2f}"
    if row["told"] == ONE:
        return f"{value} (one sample)"
    high = "any" if row["high"] is None else f"{row['high']:.2f}"
    few = f", range of {min(row['ours'], row['theirs'])}" if row["told"] == RANGE else ""
    return f"{value} ({row['low']:.2f} to {high}{few})"


def load(row: dict[str, Any]) -> str:
    """Return what one side did in a load as a line."""
    speed = "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
    shares = f"{min(row['shares']):.0%} to {max(row['shares']):.0%}"
    at_once = f"{row['at_once']} at once"
    counts = f"{speed} ({row['count']} of {row['rounds']})"
    return f"{load_name(row['kind'], row['prefix']):<48} {row['side']:<13} {at_once:<11} {counts:>18}  {shares}"


def _cell(seconds: float | None, samples: int | None) -> str:
    if seconds is None:
        return f"{'-':>14}"
    count = "" if samples is None else f" ({samples})"
    return f"{f'{1000 * seconds:.0f}{count}':>14}"
