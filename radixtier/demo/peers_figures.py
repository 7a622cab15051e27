"""What is made of the samples of ``radixtier bench peers``: medians, costs over an HBM hit, ratios to HiCache.

Owns the definitions. A sample counts for the tier that its prefix came from. The cost of a tier is the time to first
token from there minus that of the same prompt from HBM a moment later (the two questions of a visit). Pure functions,
any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from radixtier.demo.peers_load import Round
from radixtier.demo.peers_side import DRAM, FILE, OURS, STOCK
from radixtier.demo.peers_walk import Sample
from radixtier.load.figures import Ratio, median_ratio, ratio_of_medians

COST_LIMIT, TTFT_LIMIT, LOAD_LEAST, EVEN_LIMIT = 0.4, 0.65, 1.4, 1.05
"""Most that NVMe may cost over an HBM hit, and most TTFT at the longer target length, against HiCache's file backend;
least throughput; most TTFT of an HBM and of a DRAM hit."""

LOADS = {
    "load": "throughput, prefixes on NVMe",
    "short": "the same, answers of one token",
    "restart": "the same, after a restart",
    "dram": "throughput, prefixes in DRAM",
}

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


def comparisons(samples: Sequence[Sample], rounds: Sequence[Round], targets: Sequence[int]) -> list[dict[str, Any]]:
    """Return every ratio of ours to a peer, with its confidence interval and its target where there is one."""
    rows: list[dict[str, Any]] = []

    def add(what: str, peer: str, ratio: Ratio | None, limit: Callable[[float], bool] | None, target: str) -> None:
        if ratio is not None:
            met = None if limit is None else limit(ratio.value)
            rows.append({"what": what, "peer": peer, **ratio._asdict(), "target": target, "met": met})

    for phase, when in ((None, ""), ("restart", ", after a restart")):
        for prefix in targets:
            ours, theirs = (costs(samples, side, prefix, phase) for side in (OURS, FILE))
            add(
                f"NVMe hit over HBM hit, {prefix} tokens{when}", FILE, _ratio(ours, theirs),
                lambda value: value <= COST_LIMIT, f"at most {COST_LIMIT}",
            )  # fmt: skip
            ours, theirs = (times(samples, side, prefix, "nvme", phase) for side in (OURS, FILE))
            last = prefix == targets[-1]
            add(
                f"TTFT of an NVMe hit, {prefix} tokens{when}", FILE, _ratio(ours, theirs),
                (lambda value: value <= TTFT_LIMIT) if last else None, f"at most {TTFT_LIMIT}" if last else "",
            )  # fmt: skip
    for source in ("hbm", "dram"):
        for prefix in targets:
            for peer in (STOCK, DRAM, FILE):
                ours, theirs = (times(samples, side, prefix, source) for side in (OURS, peer))
                add(
                    f"TTFT of a hit in {source.upper()}, {prefix} tokens", peer, _ratio(ours, theirs),
                    lambda value: value <= EVEN_LIMIT, f"at most {EVEN_LIMIT}",
                )  # fmt: skip
    for kind, what in LOADS.items():
        least = LOAD_LEAST if kind in ("load", "restart") else None
        enough = None if least is None else (lambda value: value >= LOAD_LEAST)
        add(what, FILE, _rounds(rounds, kind, FILE), enough, "" if least is None else f"at least {least}")
    for peer in (STOCK, DRAM, FILE):
        add("throughput, no reuse", peer, _rounds(rounds, "fresh", peer), None, "")
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


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    return ratio_of_medians(ours, theirs) if ours and theirs else None


def _rounds(rounds: Sequence[Round], kind: str, peer: str) -> Ratio | None:
    speeds = {(r.side, r.number): r.tokens_per_s for r in rounds if r.kind == kind}
    numbers = sorted({number for _, number in speeds})
    both = [n for n in numbers if (OURS, n) in speeds and (peer, n) in speeds]
    return median_ratio([(speeds[OURS, n], speeds[peer, n]) for n in both]) if both else None
