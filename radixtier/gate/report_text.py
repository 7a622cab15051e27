"""The report of a run as a few lines: the headline, a row per gate, and why.

Owns the wording of the headline, which the page has too. Invariant: says only what is in ``report.json``; what was not
measured is not mentioned. Pure, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from radixtier.gate.progress import Progress, clock
from radixtier.gate.report import TITLES
from radixtier.gate.result import NOT_CHECKED

TONES = {"pass": "good", "fail": "bad", "skipped": "warn"}
MOST_PASSED = 3
"""Reasons that are told of a gate that passed."""
MOST_NUMBER = 1e300


class Headline(NamedTuple):
    """One figure for a reader in a hurry."""

    figure: str
    text: str


def headlines(report: Mapping[str, Any]) -> list[Headline]:
    """Return the two or three figures that matter."""
    recovery, soak = figures_of(report, "G3"), figures_of(report, "G4")
    levels = [level for level in mapping(recovery.get("levels")).values() if isinstance(level, Mapping)]
    found: list[Headline] = []
    ttft = [1 / value for level in levels if (value := middle(level.get("ttft_ratio")))]
    if ttft:
        found.append(Headline(f"{_span(ttft)}x", "earlier to the first token on cold recovery than computed again"))
    throughput = [value for level in levels if (value := middle(level.get("throughput_ratio")))]
    if throughput:
        found.append(Headline(f"{_span(throughput)}x", "throughput on cold recovery"))
    answers = mapping(recovery.get("answers"))
    if compared := answers.get("compared"):
        equal = answers.get("equal", 0)
        figure = "identical" if equal == compared else f"{equal} of {compared}"
        found.append(Headline(figure, "answers, tier against recomputation"))
    if (seconds := number(soak.get("seconds"))) and soak.get("wrong") is not None:
        wrong = soak["wrong"]
        figure = clock(seconds)
        found.append(Headline(figure, "without a wrong answer" if not wrong else f"with {wrong} wrong answers"))
    return found


def lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a report, each with its tone."""
    verdict, reasons, gates = report["verdict"], report["reasons"], report["gates"]
    width = max(map(len, TITLES.values()))
    yield "", ""
    for key, title in TITLES.items():
        took = clock(gates[key]["seconds"]) if key in gates else ""
        yield f"{key}  {title:<{width}}  {verdict[key]:<7}  {took}".rstrip(), TONES[verdict[key]]
        for reason in brief(reasons[key], verdict[key]):
            yield f"    {reason}", ""
        for fix in dict.fromkeys(_fixes(gates.get(key, {}))):
            yield f"    -> {fix}", ""
    yield "", ""
    if found := headlines(report):
        yield "; ".join(f"{each.figure} {each.text}" for each in found), ""
    yield f"overall: {overall(report)}", TONES[verdict["overall"]]


def brief(reasons: Sequence[str], verdict: str) -> list[str]:
    """Return the reasons of a gate; where it passed, a few of them and all that was not checked."""
    if verdict != "pass":
        return list(reasons)
    skipped = [reason for reason in reasons if reason.startswith(NOT_CHECKED)]
    passed = [reason for reason in reasons if reason not in skipped]
    more = [f"and {len(passed) - MOST_PASSED} more checks passed"] if len(passed) > MOST_PASSED else []
    return [*passed[:MOST_PASSED], *more, *skipped]


def overall(report: Mapping[str, Any]) -> str:
    """Return the overall verdict in words."""
    word = str(report["verdict"]["overall"])
    reasons = report["reasons"].get("overall") or []
    if report["complete"]:
        return f"{word}: {reasons[0]}" if word == "skipped" and reasons else word
    note = str(report.get("note") or "the run has not ended")
    return f"{word} (incomplete: {note})"


def show(report: Mapping[str, Any], say: Progress) -> None:
    """Print a report."""
    for text, tone in lines(report):
        say.line(text, tone)


def figures_of(report: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the figures of a gate; empty where it has none."""
    return mapping(mapping(mapping(report.get("gates")).get(key)).get("figures"))


def mapping(value: object) -> Mapping[str, Any]:
    """Return a value that is a mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; none where the value is no list."""
    return [mapping(each) for each in value] if isinstance(value, (list, tuple)) else []


def number(value: object) -> float | None:
    """Return a value that is a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < MOST_NUMBER else None


def middle(ratio: object) -> float | None:
    """Return the estimate of ``[value, low, high]``, or a number as it is."""
    return number(ratio[0]) if isinstance(ratio, Sequence) and not isinstance(ratio, str) and ratio else number(ratio)


def _span(values: Sequence[float]) -> str:
    low, high = _short(min(values)), _short(max(values))
    return low if low == high else f"{low} to {high}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _fixes(gate: Mapping[str, Any]) -> Iterator[str]:
    return (check["fix"] for check in gate.get("checks") or () if check["verdict"] == "fail" and check["fix"])
