"""Turns what was played into figures: the JSON result, the table per turn, the targets.

Owns the definitions of the figures. Invariant: nothing is left out because it looks bad; a target that was
missed is reported as missed. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from radixtier.demo.plan import PAGE_SIZE, Plan
from radixtier.demo.play import MAIN_SHARE, TIERS, ProbeResult, Turn, prefix_tokens, served_by

Result = dict[str, Any]

NVME_LIMIT = {2000: 1 / 10, 4000: 1 / 20}
"""Tokens of prefix -> the share of a recomputation that NVMe may take."""

DRAM_LIMIT = 1.10
"""How much longer than HBM DRAM may take."""

DEFINITIONS = {
    "prefix_tokens": "tokens that the chat had brought before this turn: the most that can be found again",
    "ttft_s": "seconds from sending the request to the first streamed token",
    "ttft_p50_s": "medians over turns; recompute: turns in which the server without the tier had no cached "
    f"token; a tier: turns in which it delivered at least {MAIN_SHARE:.0%} of the prompt",
    "after_restart": "the last request of every chat again, after the server with the tier "
    "was stopped and another one started on the same directory",
    "probes": "prompts of exactly prefix_tokens tokens, all on the server with the tier; recompute: sent for "
    "the first time; a hit leaves up to one page to compute. Requests that another tier served than expected "
    "are not in the medians",
}


def build_result(
    plan: Plan,
    without: Sequence[Turn],
    with_tier: Sequence[Turn],
    probes: Sequence[ProbeResult],
    returned: Sequence[Turn],
) -> Result:
    """Build the JSON result from both runs of the chats, the probes of the tiered server, and the returns to it."""
    turns = [
        _turn(number, *pair)
        for number, pair in enumerate(zip(without, with_tier, prefix_tokens(with_tier), strict=True), 1)
    ]
    samples: dict[str, list[float]] = {"recompute": [], "hbm": [], "dram": [], "nvme": []}
    for turn in turns:
        if turn["without"]["served_by"] == "recompute":
            samples["recompute"].append(turn["without"]["ttft_s"])
        if turn["served_by"] in TIERS:
            samples[turn["served_by"]].append(turn["ttft_s"])
    lengths = sorted({probe.prefix_tokens for probe in probes})
    probed = [_probe(length, [p for p in probes if p.prefix_tokens == length]) for length in lengths]
    return {
        "capacity_tokens": {"hbm": plan.hbm_tokens, "dram": plan.dram_tokens, "nvme": plan.nvme_tokens},
        "page_size": PAGE_SIZE,
        "chats": plan.chats,
        "hit_tokens": {tier: sum(turn[tier] for turn in turns) for tier in TIERS},
        "recomputed_tokens": sum(turn["recomputed"] for turn in turns),
        "without_tier": {
            "hit_tokens": {"hbm": sum(turn["without"]["hbm"] for turn in turns)},
            "recomputed_tokens": sum(turn["without"]["recomputed"] for turn in turns),
        },
        "outputs_identical": all(turn["identical"] for turn in turns),
        "ttft_p50_s": _medians(samples),
        "after_restart": [_returned(turn, with_tier) for turn in returned],
        "turns": turns,
        "probes": probed,
        "targets": [target for probe in probed for target in _targets(probe)],
        "definitions": DEFINITIONS,
    }


def passed(result: Result) -> bool:
    """Whether the demo shows what it must: hits on all three tiers and after the restart, the same outputs always."""
    returned = result["after_restart"]
    return (
        bool(result["outputs_identical"])
        and all(result["hit_tokens"][tier] > 0 for tier in TIERS)
        and all(turn["identical"] and turn["nvme"] > 0 for turn in returned)
    )


def table(turns: Iterable[Result]) -> list[str]:
    """Lay out one line per turn: tokens per tier, and the time to first token with and without."""
    lines = [
        "                    ----- with the tier: tokens -----  --- without ---  ------ TTFT in s -------",
        "  #  chat turn  prompt    HBM   DRAM   NVMe recomputed    HBM recomputed    with without  speed-up  same",
    ]
    for turn in turns:
        other = turn["without"]
        lines.append(
            f"{turn['number']:3}  {turn['chat']:4} {turn['turn']:4} {turn['prompt_tokens']:7,} "
            f"{turn['hbm']:6,} {turn['dram']:6,} {turn['nvme']:6,} {turn['recomputed']:10,} "
            f"{other['hbm']:6,} {other['recomputed']:10,} "
            f"{turn['ttft_s']:7.2f} {other['ttft_s']:7.2f} {turn['speedup']:7.1f}x  "
            f"{'yes' if turn['identical'] else 'NO'}"
        )
    return lines


def summary(result: Result) -> list[str]:
    """Say the result in a few lines."""
    hits, p50 = result["hit_tokens"], result["ttft_p50_s"]
    other = result["without_tier"]
    same = "identical on every turn" if result["outputs_identical"] else "DIFFERENT, see the table"
    lines = [
        f"tokens with the tier:     HBM {hits['hbm']:,}  DRAM {hits['dram']:,}  NVMe {hits['nvme']:,}  "
        f"recomputed {result['recomputed_tokens']:,}",
        f"tokens without the tier:  HBM {other['hit_tokens']['hbm']:,}  recomputed {other['recomputed_tokens']:,}",
        f"outputs:                  {same}",
        "TTFT of turns, median:    " + "  ".join(f"{name} {_seconds(p50[name])}" for name in p50),
    ]
    for turn in result["after_restart"]:
        lines.append(
            f"after the restart:        chat {turn['chat']}: NVMe {turn['nvme']:,} of {turn['prompt_tokens']:,} "
            f"tokens, TTFT {turn['ttft_s']:.2f} s, output {'identical' if turn['identical'] else 'DIFFERENT'}"
        )
    for probe in result["probes"]:
        p50, n = probe["ttft_p50_s"], probe["samples"]
        figures = "  ".join(f"{name} {_seconds(p50[name])} (n={n[name]})" for name in p50)
        lines.append(f"TTFT at {probe['prefix_tokens']:,} tokens:     {figures}")
    for target in result["targets"]:
        met = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        measured = "" if target["measured"] is None else f", measured {target['measured']:.3f}"
        lines.append(f"target: {target['what']} <= {target['limit']:.2f}{measured}: {met}")
    return lines


def _returned(turn: Turn, before: Sequence[Turn]) -> Result:
    reply = turn.reply
    old = next(other for other in before if (other.chat, other.turn) == (turn.chat, turn.turn))
    return {
        "chat": turn.chat,
        "turn": turn.turn + 1,
        "prompt_tokens": reply.prompt_tokens,
        "hbm": reply.hbm,
        "dram": reply.dram,
        "nvme": reply.nvme,
        "recomputed": reply.recomputed,
        "ttft_s": reply.ttft_s,
        "identical": reply.output_ids == old.reply.output_ids,
    }


def _turn(number: int, without: Turn, with_tier: Turn, prefix: int) -> Result:
    ours, theirs = with_tier.reply, without.reply
    return {
        "number": number,
        "chat": with_tier.chat,
        "turn": with_tier.turn + 1,
        "prompt_tokens": ours.prompt_tokens,
        "prefix_tokens": prefix,
        "hbm": ours.hbm,
        "dram": ours.dram,
        "nvme": ours.nvme,
        "recomputed": ours.recomputed,
        "served_by": served_by(ours),
        "ttft_s": ours.ttft_s,
        "without": {
            "hbm": theirs.cached,
            "recomputed": theirs.recomputed,
            "served_by": served_by(theirs),
            "ttft_s": theirs.ttft_s,
        },
        "speedup": theirs.ttft_s / ours.ttft_s,
        "output_tokens": len(ours.output_ids),
        "identical": (ours.prompt_ids, ours.output_ids) == (theirs.prompt_ids, theirs.output_ids),
        "answer": ours.text,
    }


def _probe(length: int, results: Sequence[ProbeResult]) -> Result:
    samples: dict[str, list[float]] = {"recompute": [], "hbm": [], "dram": [], "nvme": []}
    for result in results:
        if result.as_expected:
            samples[result.expected].append(result.reply.ttft_s)
    return {
        "prefix_tokens": length,
        "ttft_p50_s": _medians(samples),
        "samples": {name: len(values) for name, values in samples.items()},
        "requests": [
            {
                "expected": result.expected,
                "served_by": served_by(result.reply),
                "hbm": result.reply.hbm,
                "dram": result.reply.dram,
                "nvme": result.reply.nvme,
                "recomputed": result.reply.recomputed,
                "ttft_s": result.reply.ttft_s,
            }
            for result in results
        ],
    }


def _targets(probe: Result) -> list[Result]:
    length, p50 = probe["prefix_tokens"], probe["ttft_p50_s"]
    at = f"at {length:,} tokens of prefix"
    found = [_target(f"TTFT from DRAM / from HBM, {at}", DRAM_LIMIT, p50["dram"], p50["hbm"])]
    if length in NVME_LIMIT:
        what = f"TTFT from NVMe / recomputed, {at}"
        found.insert(0, _target(what, NVME_LIMIT[length], p50["nvme"], p50["recompute"]))
    return found


def _target(what: str, limit: float, value: float | None, reference: float | None) -> Result:
    measured = None if value is None or reference is None else value / reference
    return {
        "what": what,
        "limit": limit,
        "measured": measured,
        "met": None if measured is None else measured <= limit,
    }


def _medians(samples: dict[str, list[float]]) -> dict[str, float | None]:
    return {name: median(values) if values else None for name, values in samples.items()}


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
