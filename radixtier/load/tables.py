"""Writes figures for readers.

Owns the tables of ``radixtier bench serve``; times in seconds. Pure functions, any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from radixtier.load.compare import METRICS
from radixtier.load.figures import ENOUGH
from radixtier.load.play import Played

SOURCES = {
    "hbm": "HBM",
    "dram": "DRAM",
    "nvme": "NVMe",
    "mixed": "mixed",
    "cached": "cached (tier not told)",
    "recompute": "recompute",
    "unknown": "not told",
    "recomputed": "recomputed",
}
SHARES = ("mean", "p50", "p95", "p99")
TIMES = {"ttft_s": "time to first token, s", "itl_s": "between tokens, s", "total_s": "end to end, s"}

MOST_ERRORS = 3
LONGEST_ERROR = 160


def load_lines(found: Mapping[str, Any], concurrency: int) -> list[str]:
    """Write the figures of one load."""
    tokens = found["tokens"]
    cut = f", {found['cut']:,} cut off" if found["cut"] else ""
    lines = [
        f"concurrency {concurrency}: {found['requests']:,} requests answered, {found['failed']:,} failed{cut}, "
        f"{found['seconds']:.1f} s"
    ]
    if not found["requests"]:
        return lines
    lines.append(f"  {'':26}" + "".join(f"{share:>10}" for share in SHARES))
    for key, name in TIMES.items():
        lines.append(f"  {name:26}" + "".join(f"{time(found[key][share]):>10}" for share in SHARES))
    lines.append(
        f"  {found['requests_per_s']:.2f} requests/s, {found['prompt_tokens_per_s']:,.0f} prompt tokens/s, "
        f"{found['output_tokens_per_s']:,.1f} output tokens/s"
    )
    if found["prefixes"]:
        heads = ("requests", "tokens", "computed", "TTFT mean", "p50", "p95")
        lines.append(f"  {'prefix from':26}" + "".join(f"{head:>10}" for head in heads))
        for prefix, part in found["prefixes"].items():
            counts = "".join(f"{part[key]:>10,.0f}" for key in ("requests", "prompt_tokens", "computed_tokens"))
            times = "".join(f"{time(part['ttft_s'][share]):>10}" for share in ("mean", "p50", "p95"))
            lines.append(f"  {SOURCES[prefix]:26}{counts}{times}")
    if tokens["prompt"]:
        names = ("hbm", "dram", "nvme", "cached", "recomputed", "unknown")
        parts = [f"{tokens[name] / tokens['prompt']:.1%} {SOURCES[name]}" for name in names if tokens[name]]
        lines.append(f"  {tokens['prompt']:,} prompt tokens: {', '.join(parts)}")
    return lines


def level_table(levels: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Write one line per concurrency."""
    head = ("TTFT p50", "p95", "ITL p50", "p95", "requests/s", "output tok/s")
    lines = ["concurrency" + "".join(f"{name:>13}" for name in head)]
    for concurrency, found in levels.items():
        times = [time(found[key][share]) for key in ("ttft_s", "itl_s") for share in ("p50", "p95")]
        rates = [f"{found['requests_per_s']:.2f}", f"{found['output_tokens_per_s']:,.1f}"]
        lines.append(f"{concurrency:>11}" + "".join(f"{value:>13}" for value in (*times, *rates)))
    return lines


def error_lines(played: Sequence[Played]) -> list[str]:
    """Write why requests failed, the most frequent reasons first."""
    errors = Counter(answer.error for each in played for answer in each.answers if answer.error)
    lines = [f"  {count:,} failed: {shortened(error)}" for error, count in errors.most_common(MOST_ERRORS)]
    if len(errors) > MOST_ERRORS:
        lines.append(f"  and {len(errors) - MOST_ERRORS:,} other reasons")
    return lines


def ratio_lines(found: Mapping[str, Any], names: Sequence[str], concurrency: int, rounds: int) -> list[str]:
    """Write the comparison at one concurrency; ``names`` are those of A and B."""
    a, b = names
    outputs, failed = found["outputs"], found["failed"]
    lines = [
        f"concurrency {concurrency}, {rounds} {'round' if rounds == 1 else 'rounds'}: {b} / {a}",
        f"  {'':18}{a[:14]:>15}{b[:14]:>15}{'ratio':>9}   95 % interval",
    ]
    for name in METRICS:
        medians, ratio = found["medians"][name], found["ratios"][name]
        values = "".join(f"{time(medians[side]):>15}" for side in "AB")
        if ratio is None:
            lines.append(f"  {name:18}{values}{'':>9}   not measured{_lost(rounds, found['counted'][name])}")
            continue
        value, low, high = ratio
        counted = found["counted"][name]
        told = verdict(ratio) if counted >= ENOUGH else "too few rounds to tell"
        lines.append(f"  {name:18}{values}{value:>9.3f}   {low:.3f} to {high:.3f}, {told}{_lost(rounds, counted)}")
    lines.append(
        f"  outputs: {outputs['equal']:,} of {outputs['compared']:,} equal"
        + (f"; failed: {failed['A']:,} of {a}, {failed['B']:,} of {b}" if failed["A"] or failed["B"] else "")
    )
    if rounds < ENOUGH:
        lines.append(f"  an interval of 95 % needs {ENOUGH} rounds (--rounds {ENOUGH})")
    return lines


def _lost(rounds: int, counted: int) -> str:
    return "" if counted == rounds else f"; {rounds - counted} of {rounds} rounds left out: a side measured nothing"


def verdict(ratio: Sequence[float]) -> str:
    """Say what an interval means."""
    _, low, high = ratio
    return "not different" if low <= 1 <= high else "lower" if high < 1 else "higher"


def time(value: float | None) -> str:
    """Write seconds, or a rate, with three digits behind the point."""
    return "-" if value is None else f"{value:,.3f}"


def shortened(text: str) -> str:
    """Cut a text to one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 3]}..."
