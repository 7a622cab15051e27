"""The doctor's part of the acceptance: this machine, every directory, and the room on its drives.

Owns the translation of findings into checks: a problem fails, a warning is told and passes. Invariant: as the doctor's,
nothing that belongs to a store is changed, and what is written for a test is removed. Main thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from radixtier.gate.acceptance_subject import Part, Subject
from radixtier.gate.result import Check, Verdict
from radixtier.store.header import HeaderError, read_header
from radixtier.store.paths import find_stores
from radixtier.tools.drive import check_drive, check_rooms
from radixtier.tools.findings import Finding, summary
from radixtier.tools.host import check_host
from radixtier.tools.listing import figures
from radixtier.tools.offline import opened


def doctor(subject: Subject) -> Part:
    """Run every check of ``radixtier doctor``, with the size that the store has."""
    findings = {"this machine": check_host()}
    checks = [judged("doctor, this machine", findings["this machine"])]
    if not subject.directories:
        reason = "no directory of the store is known here: name it with --directory"
        return Part([*checks, Check("doctor, directories", Verdict.SKIPPED, reason)], _told(findings))
    for directory in subject.directories:
        name = f"doctor, {directory}"
        if why := unreachable(subject, directory):
            checks.append(Check(name, Verdict.SKIPPED, why))
            continue
        findings[str(directory)] = check_drive(directory.absolute()).findings
        checks.append(judged(name, findings[str(directory)]))
    if subject.local:
        findings["room"] = list(check_rooms(subject.local, needed(subject)))
        checks.append(judged("doctor, room", findings["room"]))
    return Part(checks, _told(findings))


def judged(name: str, findings: Sequence[Finding]) -> Check:
    """Make one check of a block of findings."""
    problems = [finding for finding in findings if finding.level == "problem"]
    warnings = [finding for finding in findings if finding.level == "warning"]
    told = "; ".join(f"{finding.topic}: {finding.found}" for finding in problems or warnings)
    reason = summary(findings) + (f": {told}" if told else "")
    fix = "; ".join(finding.fix for finding in problems if finding.fix)
    return Check(name, Verdict.FAIL if problems else Verdict.PASS, reason, fix)


def unreachable(subject: Subject, directory: Path) -> str:
    """Say why a running server's directory cannot be looked at from here; "" if it can.

    What the gate has started itself is for the doctor to judge.
    """
    if not subject.attached:
        return ""
    if not directory.exists():
        return "it is not on this machine: run the gate where the server runs"
    if (owner := directory.stat().st_uid) != os.geteuid():
        return f"it belongs to user {owner}: run the gate as the server's user"
    return ""


def needed(subject: Subject) -> int | None:
    """Return the most bytes that the stores of the running server may take in all its directories."""
    if told := (subject.state.get("store") or {}).get("bytes_cap"):
        return int(told) * subject.stores
    there = [path for path in subject.local if find_stores(path)]
    if not there:
        return None
    with opened(there) as drives:
        caps = [found["cap"] for found in map(figures, drives) if found["server"] and "cap" in found]
    return sum(caps) or None


def readable(subject: Subject) -> Iterator[Path]:
    """Yield the directories whose stores can be read from here."""
    for path in subject.local:
        if unreachable(subject, path):
            continue
        for files in find_stores(path):
            try:
                read_header(files.slab)
            except PermissionError:
                break
            except (OSError, HeaderError):
                pass
        else:
            yield path


def _told(findings: dict[str, list[Finding]]) -> dict[str, list[dict[str, str]]]:
    return {"findings": [{"where": where, **found._asdict()} for where, some in findings.items() for found in some]}
