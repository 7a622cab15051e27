"""What a gate found: checks with a verdict and a reason each, and the figures behind them.

Owns the law of verdicts: a gate fails if one of its checks fails, is skipped if all of them were, and passes otherwise;
so does the whole. Immutable, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

NOT_CHECKED = "not checked: "
"""In front of the reasons of a gate that passed, for checks that were skipped."""


class Verdict(str, Enum):
    """What became of a check, a gate or all gates."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name
        A few words, the same in every report: ``TTFT p50, concurrency 8``.
    verdict, reason
        What became of it, and why: a sentence with the figure and the limit.
    fix
        What to do about a failure; "" where nothing can be said.
    """

    name: str
    verdict: Verdict
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Result:
    """One gate.

    Attributes
    ----------
    key, title
        ``G1``, and what it is called.
    checks
        In the order of the report.
    figures
        What was measured, for the tables and plots of the report; JSON.
    seconds
        How long it took.
    """

    key: str
    title: str
    checks: tuple[Check, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Verdict of the gate."""
        return together(check.verdict for check in self.checks)

    @property
    def reasons(self) -> list[str]:
        """Why: the failures; or all that was skipped; or all that passed, and what could not be checked."""
        told = [f"{check.name}: {check.reason}" for check in self.checks if check.verdict is self.verdict]
        if self.verdict is Verdict.PASS:
            skipped = [check for check in self.checks if check.verdict is Verdict.SKIPPED]
            told += [f"{NOT_CHECKED}{check.name}: {check.reason}" for check in skipped]
        return told


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several: fail before pass before skipped."""
    found = set(verdicts)
    return next((each for each in (Verdict.FAIL, Verdict.PASS) if each in found), Verdict.SKIPPED)


def limit(name: str, value: float | None, most: float, *, unit: str = "", fix: str = "") -> Check:
    """Check that a figure is at most ``most``; skipped where it was not measured."""
    if value is None:
        return Check(name, Verdict.SKIPPED, "not measured")
    verdict = Verdict.PASS if value <= most else Verdict.FAIL
    return Check(name, verdict, f"{value:.3f}{unit}, at most {most:g}{unit}", fix if verdict is Verdict.FAIL else "")


def least(name: str, value: float | None, fewest: float, *, unit: str = "", fix: str = "") -> Check:
    """Check that a figure is at least ``fewest``; skipped where it was not measured."""
    if value is None:
        return Check(name, Verdict.SKIPPED, "not measured")
    verdict = Verdict.PASS if value >= fewest else Verdict.FAIL
    return Check(name, verdict, f"{value:.3f}{unit}, at least {fewest:g}{unit}", fix if verdict is Verdict.FAIL else "")
