"""What is made of the samples of ``radixtier bench peers``: medians, costs over an HBM hit, ratios to HiCache.

Owns the definitions. A sample counts for the tier that its prefix came from. The cost of a tier is the time to first
token from there minus that of the same prompt from HBM a moment later (the two questions of a visit). A round of a load
counts if its prefixes came from the tier it is about, on both sides of a ratio. Pure functions, any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from radixtier.demo.peers_load import BOUND, Round
from radixtier.demo.peers_plan import Plan
from radixtier.demo.peers_ratio import Estimate, of_rounds, of_samples
from radixtier.demo.peers_side import DRAM, FILE, OURS, STOCK, STORED
from radixtier.demo.peers_walk import Sample

COST_LIMIT, TTFT_LIMIT, LOAD_LEAST, EVEN_LIMIT = 0.4, 0.65, 1.4, 1.05
"""Most that NVMe may cost over an HBM hit, and most TTFT at the longer target length, against HiCache's file backend;
least throughput; most TTFT of an HBM and of a DRAM hit."""

LOADS = {
    "load": "throughput, prefixes on NVMe",
    "short": "throughput, NVMe, answers of 1",
    "hbm": "throughput, prefixes in HBM",
    "hbm-short": "throughput, HBM, answers of 1",
}
"""Loads of each target length; answers of one token have a name of their own."""

FIRST_LOADS = {"restart": "throughput, NVMe, after a restart", "dram": "throughput, prefixes in DRAM"}
"""Loads of the first target length only."""

SOURCES = ("recompute", "hbm", "dram", "nvme")


def times(samples: Iterable[Sample], side: str, prefix: int, source: str, phase: str | None = None) -> list[float]:
    """Return TTFT, seconds, of a tier."""
    return [
        s.ttft_s for s in samples if (s.side, s.prefix, s.source) == (side, prefix, source) and phase in (None, s.phase)
    ]


def costs(samples: Sequence[Sample], side: str, prefix: int, phase: str | None = None) -> list[float]:
    """Return what NVMe cost over an HBM hit, seconds, one for each visit that found its prefix there."""
    again = {(s.side, s.phase, s.visit): s for s in samples if s.question == "again" and s.source == "hbm"}
    found = []
    for s in samples:
        wanted = (s.side, s.prefix, s.source, s.question) == (side, prefix, "nvme", "first")
        hit = again.get((s.side, s.phase, s.visit))
        if wanted and hit is not None and phase in (None, s.phase):
            found.append(s.ttft_s - hit.ttft_s)
    return found


def table(samples: Sequence[Sample], sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return median TTFT, seconds, for each length of prefix, side and tier, with the number of samples."""
    rows = []
    for prefix in sorted({s.prefix for s in samples}):
        for side in sides:
            row: dict[str, Any] = {"prefix": prefix, "side": side}
            for source in SOURCES:
                found = times(samples, side, prefix, source)
                row[source] = statistics.median(found) if found else None
                row[f"{source}_samples"] = len(found)
            cost = costs(samples, side, prefix)
            row["nvme_cost"] = statistics.median(cost) if cost else None
            waits = [s.waited_s for s in samples if (s.side, s.prefix, s.source) == (side, prefix, "nvme")]
            known = [wait for wait in waits if wait is not None]
            row["nvme_waited"] = statistics.median(known) if known else None
            rows.append(row)
    return rows


def comparisons(
    samples: Sequence[Sample], rounds: Sequence[Round], plan: Plan, sides: Sequence[str]
) -> list[dict[str, Any]]:
    """Return every ratio of ours to a peer that ran, what it tells (see :class:`Estimate`), and its target.

    ``met`` is None where there is no target; a target that was not measured is not met.
    """
    rows: list[dict[str, Any]] = []

    def add(what: str, peer: str, found: Estimate, limit: Callable[[float], bool] | None, target: str) -> None:
        if OURS in sides and peer in sides:
            met = None if limit is None else found.value is not None and limit(found.value)
            rows.append({"what": what, "peer": peer, **found._asdict(), "target": target, "met": met})

    for phase, when in ((None, ""), ("restart", ", after a restart")):
        for prefix in plan.targets if phase is None or plan.restarts else ():
            ours, theirs = (costs(samples, side, prefix, phase) for side in (OURS, FILE))
            add(
                f"NVMe hit over HBM hit, {prefix} tokens{when}", FILE, of_samples(ours, theirs),
                lambda value: value <= COST_LIMIT, f"at most {COST_LIMIT}",
            )  # fmt: skip
            ours, theirs = (times(samples, side, prefix, "nvme", phase) for side in (OURS, FILE))
            last = prefix == plan.targets[-1]
            add(
                f"TTFT of an NVMe hit, {prefix} tokens{when}", FILE, of_samples(ours, theirs),
                (lambda value: value <= TTFT_LIMIT) if last else None, f"at most {TTFT_LIMIT}" if last else "",
            )  # fmt: skip
    for source, peers in (("hbm", (STOCK, DRAM, FILE)), ("dram", (DRAM, FILE))):
        for prefix in plan.targets:
            for peer in peers:
                ours, theirs = (times(samples, side, prefix, source) for side in (OURS, peer))
                add(
                    f"TTFT of a hit in {source.upper()}, {prefix} tokens", peer, of_samples(ours, theirs),
                    lambda value: value <= EVEN_LIMIT, f"at most {EVEN_LIMIT}",
                )  # fmt: skip
    for kind, prefix in _loads(plan):
        found = of_rounds(_both(rounds, kind, prefix, FILE))
        wanted = kind in ("load", "restart")
        add(
            load_name(kind, prefix), FILE, found,
            (lambda value: value >= LOAD_LEAST) if wanted else None, f"at least {LOAD_LEAST}" if wanted else "",
        )  # fmt: skip
    for peer in (STOCK, DRAM, FILE):
        add("throughput, no reuse", peer, of_rounds(_both(rounds, "fresh", 0, peer)), None, "")
    return rows


def unmeasured(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the comparisons that have a target and were not measured."""
    return [row for row in rows if row["target"] and row["value"] is None]


def load_name(kind: str, prefix: int) -> str:
    """Say what a load is."""
    return f"{(LOADS | FIRST_LOADS)[kind]}, {prefix} tokens"


def loads(rounds: Sequence[Round], plan: Plan, sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each load and side with storage, what its rounds were.

    Returns
    -------
    list of dict
        ``kind``, ``prefix``, ``side``; ``at_once``, requests; ``rounds``, and those that ``count``;
        ``tokens_per_s``, the median of these, or None; ``shares``: of each round, what came from the tier it is about.
    """
    rows = []
    for kind, prefix in _loads(plan):
        for side in (name for name in STORED if name in sides):
            mine = [r for r in rounds if (r.kind, r.prefix, r.side) == (kind, prefix, side)]
            speeds = [r.tokens_per_s for r in mine if r.counts]
            row = {"kind": kind, "prefix": prefix, "side": side, "at_once": plan.at_once(prefix)}
            row |= {"rounds": len(mine), "count": len(speeds), "shares": [r.share for r in mine]}
            rows.append({**row, "tokens_per_s": statistics.median(speeds) if speeds else None})
    return rows


def bounds(rounds: Sequence[Round], plan: Plan, sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return throughput from NVMe / throughput from HBM of each side: 1 is the most that tiering can reach."""
    rows = []
    for kind, bound in BOUND.items():
        for prefix in plan.targets:
            for side in (name for name in STORED if name in sides):
                below, above = (_speeds(rounds, each, prefix, side) for each in (kind, bound))
                found = of_rounds([(below[n], above[n]) for n in sorted(below.keys() & above.keys())])
                rows.append({"kind": kind, "prefix": prefix, "side": side, **found._asdict()})
    return rows


def others(samples: Sequence[Sample]) -> dict[str, int]:
    """Count answers that differ from the first answer to the same prompt, by side: greedy outputs should be equal."""
    first: dict[tuple[int, int], tuple[int, ...]] = {}
    different: dict[str, int] = {}
    for s in samples:
        same = first.setdefault((s.prefix, s.number), s.output) == s.output
        different[s.side] = different.get(s.side, 0) + (not same)
    return different


def pays_from(samples: Sequence[Sample]) -> int | None:
    """Return the shortest prefix from which on an NVMe hit of ours is faster than computing; None if none is."""
    answer = None
    for prefix in sorted({s.prefix for s in samples}, reverse=True):
        hit, computed = (times(samples, OURS, prefix, source) for source in ("nvme", "recompute"))
        if not hit or not computed or statistics.median(hit) >= statistics.median(computed):
            break
        answer = prefix
    return answer


def _loads(plan: Plan) -> list[tuple[str, int]]:
    """List the loads of a plan that sides with storage play: kind, and length of the prefixes."""
    found = [(kind, prefix) for kind in LOADS for prefix in plan.targets]
    found += [(kind, plan.targets[0]) for kind in FIRST_LOADS]
    return [(kind, prefix) for kind, prefix in found if plan.restarts or kind != "restart"]


def _both(rounds: Sequence[Round], kind: str, prefix: int, peer: str) -> list[tuple[float, float]]:
    """Return the speeds of both in the rounds that count for both."""
    ours, theirs = (_speeds(rounds, kind, prefix, side) for side in (OURS, peer))
    return [(ours[n], theirs[n]) for n in sorted(ours.keys() & theirs.keys())]


def _speeds(rounds: Sequence[Round], kind: str, prefix: int, side: str) -> dict[int, float]:
    mine = [r for r in rounds if (r.kind, r.prefix, r.side) == (kind, prefix, side)]
    return {r.number: r.tokens_per_s for r in mine if r.counts}
