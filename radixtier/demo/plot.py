"""Draws the result of the demo as one PNG: every turn with and without the tier, the returns after the restart, and the
probes per tier.

Owns the looks. Invariant: draws only what is in the JSON result. Needs matplotlib, imported when called; no
display.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_COLOURS = {
    "recompute": "#b0b4ba",
    "hbm": "#2f6db5",
    "dram": "#3a9d6e",
    "nvme": "#e08a1e",
    "mixed": "#8a63b0",
}
_NAMES = {
    "recompute": "recomputed",
    "hbm": "from HBM",
    "dram": "from DRAM",
    "nvme": "from NVMe",
    "mixed": "from several tiers",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the plot of a result (see `radixtier.demo.report.build_result`) to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 5.6), width_ratios=(2.2, 1), layout="constrained")
    _draw_turns(left, result["turns"], result["after_restart"])
    _draw_probes(right, result["probes"])
    sizes = ", ".join(
        f"{tier.upper() if tier != 'nvme' else 'NVMe'} {tokens:,}" for tier, tokens in result["capacity_tokens"].items()
    )
    figure.suptitle(f"{result['model']} on SGLang {result['sglang_version']}; capacity in tokens: {sizes}")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_turns(axes: Any, turns: list[dict[str, Any]], returned: list[dict[str, Any]]) -> None:
    numbers = [turn["number"] for turn in turns]
    ours = [turn["ttft_s"] for turn in turns]
    theirs = [turn["without"]["ttft_s"] for turn in turns]
    axes.vlines(numbers, ours, theirs, color="#c9ccd1", linewidth=1.5, zorder=1)
    axes.plot(numbers, theirs, "x", color="#33373d", markersize=7, label="without the tier", zorder=3)
    for kind, colour in _COLOURS.items():
        chosen = [turn for turn in turns if turn["served_by"] == kind]
        if chosen:
            label = f"with the tier, {_NAMES[kind]}"
            at = [turn["number"] for turn in chosen]
            axes.plot(at, [turn["ttft_s"] for turn in chosen], "o", color=colour, markersize=8, label=label)
    after = [turn["ttft_s"] for turn in returned]
    restart = len(turns) + 0.75
    at = [len(turns) + 0.5 + number for number in range(1, len(returned) + 1)]
    axes.plot(at, after, "D", color=_COLOURS["nvme"], markersize=7, label="after the restart, from NVMe")
    axes.axvline(restart, color="#33373d", linestyle=":", linewidth=1.2)
    _log_axis(axes, min(ours + theirs + after), max(ours + theirs + after))
    axes.text(restart + 0.15, axes.get_ylim()[0] * 1.1, "the server starts again", rotation=90, va="bottom", fontsize=9)
    axes.set_xlim(0, len(turns) + len(returned) + 1.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("turn, in the order of play")
    axes.set_ylabel("time to first token, s (log scale)")
    axes.set_title("Chats in round-robin, the same requests on both servers")


def _draw_probes(axes: Any, probes: list[dict[str, Any]]) -> None:
    width = 0.2
    values = []
    for index, kind in enumerate(("recompute", "nvme", "dram", "hbm")):
        for group, probe in enumerate(probes):
            value = probe["ttft_p50_s"][kind]
            if value is None:
                continue
            at = group + (index - 1.5) * width
            label = _NAMES[kind] if group == 0 else None
            axes.bar(at, value, width=width * 0.92, color=_COLOURS[kind], label=label, zorder=2)
            axes.text(at, value * 1.06, f"{value:.2f}", ha="center", va="bottom", fontsize=9)
            values.append(value)
    if not values:
        return
    _log_axis(axes, min(values), max(values))
    axes.set_xticks(range(len(probes)), [f"{probe['prefix_tokens']:,}" for probe in probes])
    axes.set_xlabel("length of the prefix, tokens")
    axes.set_ylabel("median time to first token, s (log scale)")
    axes.set_title("The same prompt from each tier")


def _log_axis(axes: Any, low: float, high: float) -> None:
    """Use a logarithmic axis with plain numbers, and leave room above the data for the legend."""
    from matplotlib.ticker import FormatStrFormatter

    axes.set_yscale("log")
    axes.set_ylim(low / 1.6, high * (high / low) ** 0.3 * 1.5)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.grid(axis="y", which="major", alpha=0.35)
    axes.legend(loc="upper center", ncols=2, fontsize=9, framealpha=0.95)
