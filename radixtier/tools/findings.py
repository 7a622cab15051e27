"""What a check found: good, worth knowing, or in the way; and what to do about it.

Owns the form of a finding and its text. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One finding; a warning or a problem comes with a fix."""

    level: Level
    topic: str
    found: str
    fix: str = ""


def render(title: str, findings: Sequence[Finding]) -> str:
    """Return one block of text: a title, then a line per finding, with the fix below it."""
    width = max((len(finding.topic) for finding in findings), default=0)
    lines = [title]
    for finding in findings:
        lines.append(f"  {finding.level:<7}  {finding.topic:<{width}}  {finding.found}")
        if finding.fix:
            lines.append(f"  {'':<7}  {'':<{width}}  -> {finding.fix}")
    return "\n".join(lines)


def summary(findings: Sequence[Finding]) -> str:
    """Return one line that counts problems and warnings."""
    counts = [sum(finding.level == level for finding in findings) for level in ("problem", "warning")]
    if not any(counts):
        return "nothing is in the way"
    words = (f"{n} {word}{'s' * (n != 1)}" for n, word in zip(counts, ("problem", "warning"), strict=True) if n)
    return " and ".join(words)
