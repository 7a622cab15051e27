"""What a gate found: checks with a verdict and a reason each, and the figures behind them.

Owns the law of verdicts: a gate fails if one of its checks fails, passes if one of those that it is for passed as well
(:data:`ESSENTIAL`), and is skipped otherwise. Immutable, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

NOT_CHECKED = "not checked: "
"""In front of the reasons of a gate that passed, for checks that were skipped."""

ESSENTIAL: Mapping[str, tuple[str, ...]] = {
    "G1": ("identity of the store", "integrity of the store", "health of the store"),
    "G2": ("baseline is recompute",),
    "G3": ("cold rounds", "answers from NVMe"),
    "G4": (
        "recovery: drive errors",
        "recovery: flipped bits",
        "recovery: slow drive",
        "recovery: kill -9",
        "memory growth",
    ),
}
"""By gate, how the names of the checks begin without which it has shown nothing: one of them has to pass."""


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
        found = together(check.verdict for check in self.checks)
        if found is Verdict.PASS and not any(check.verdict is Verdict.PASS for check in self._essential):
            return Verdict.SKIPPED
        return found

    @property
    def _essential(self) -> list[Check]:
        names = ESSENTIAL.get(self.key, ("",))
        return [check for check in self.checks if check.name.startswith(names)]

    @property
    def reasons(self) -> list[str]:
        """Why: the failures; or all that was skipped; or all that passed, and what could not be checked."""
        told = [f"{check.name}: {check.reason}" for check in self.checks if check.verdict is self.verdict]
        if self.verdict is Verdict.SKIPPED and not told:
            told = [f"none of what it is for was checked: {', '.join(ESSENTIAL[self.key])}"]
        if self.verdict is Verdict.PASS:
            skipped = [check for check in self.checks if check.verdict is Verdict.SKIPPED]
            told += [f"{NOT_CHECKED}{check.name}: {check.reason}" for check in skipped]
        return told


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several: fail before pass before skipped."""
    found = set(verdicts)
    return next((each for each in (Verdict.FAIL, Verdict.PASS) if each in found), Verdict.SKIPPED)


def limit(name: str, value: float | None, most: float, *, unit: str = "", fix: str = "", needed: bool = False) -> Check:
    """Check that a figure is at most ``most``; where it was not measured: failed if it is ``needed``, else skipped."""
    if value is None:
        return _not_measured(name, fix, needed)
    verdict = Verdict.PASS if value <= most else Verdict.FAIL
    return Check(name, verdict, f"{value:.3f}{unit}, at most {most:g}{unit}", fix if verdict is Verdict.FAIL else "")


def least(
    name: str, value: float | None, fewest: float, *, unit: str = "", fix: str = "", needed: bool = False
) -> Check:
    """Check that a figure is at least ``fewest``; where it was not measured: see :func:`limit`."""
    if value is None:
        return _not_measured(name, fix, needed)
    verdict = Verdict.PASS if value >= fewest else Verdict.FAIL
    return Check(name, verdict, f"{value:.3f}{unit}, at least {fewest:g}{unit}", fix if verdict is Verdict.FAIL else "")


def _not_measured(name: str, fix: str, needed: bool) -> Check:
    return Check(name, Verdict.FAIL, "not measured", fix) if needed else Check(name, Verdict.SKIPPED, "not measured")
