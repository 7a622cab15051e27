"""The drive's part of the acceptance: which engine moves pages, and how much of the drive's bandwidth it reaches.

Owns the sizes of a short measurement. Invariant: its files lie in a new directory beside the store and are removed; the
store is not touched. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from radixtier.gate.acceptance_doctor import unreachable
from radixtier.gate.acceptance_subject import ENGINE_FLAG, Part, Subject
from radixtier.gate.result import Check, Verdict, least
from radixtier.io.probe import probe_report
from radixtier.machine import file_systems
from radixtier.store.slab import StoreError
from radixtier.tools import bench_io
from radixtier.units import BadValue, format_bytes

SIZE = 256 << 20
"""Bytes per side, unless that is fewer than :data:`PAGES` pages."""

PAGES = 16
ROUNDS, QUICK_ROUNDS = 4, 2
ENGINE, BANDWIDTH = "engine", "store / raw bandwidth"


def engine(subject: Subject) -> Part:
    """Compare the engine that runs with the one that works best here, or that the server's flags ask for; per drive."""
    local = [path for path in subject.local if not unreachable(subject, path)]
    if not local:
        return Part([Check(ENGINE, Verdict.SKIPPED, "no directory of the store is on this machine")], {})
    checks, told = [], {}
    for directory in local:
        name = ENGINE if len(local) == 1 else f"{ENGINE}, {directory}"
        report = told[str(directory)] = probe_report(directory)
        checks.append(replace(_engine(subject, directory, report), name=name))
    return Part(checks, {"engines": told})


def _engine(subject: Subject, directory: Path, report: dict[str, Any]) -> Check:
    if report["error"]:
        fix = "radixtier doctor on the directory says what is wrong"
        return Check(ENGINE, Verdict.FAIL, f"{directory}: {report['error']}", fix)
    best = str(report["auto"])
    if running := running_engine(subject, directory):
        return judged(running, best, subject.engine_asked, report["posix_direct"]["ok"])
    return Check(ENGINE, Verdict.SKIPPED, f"the server does not tell which one it uses; best here: {best}")


def running_engine(subject: Subject, directory: Path) -> str:
    """Return the engine that a server says it uses for a directory; "" where it does not say."""
    drives = (subject.state.get("store") or {}).get("drives") or []
    of_drive = [drive.get("engine") for drive in drives if drive.get("directory") == str(directory)]
    # Through the switch for faults it is the same engine.
    return str(next(iter(of_drive), subject.state.get("engine")) or "").removesuffix(" with faults")


def judged(running: str, best: str, asked: str, direct: bool) -> Check:
    """Hold the running engine against the expected one.

    Parameters
    ----------
    running
        As an engine names itself: ``posix O_DIRECT``, ``posix buffered``, ``kvikio``.
    best
        What the probe would take, and why; its first word is the engine.
    asked
        ``auto``, or what the flag says.
    direct
        Whether O_DIRECT works in the directory.
    """
    expected = best.split()[0] if asked == "auto" else asked
    if running.split()[0] != expected:
        fix = f"restart the server with {ENGINE_FLAG} auto; its log says why it chose another"
        return Check(ENGINE, Verdict.FAIL, f"{running} runs, {expected} was expected: {best}", fix)
    if running == "posix buffered" and direct:
        fix = "restart the server: O_DIRECT works now, and its log says why it did not"
        return Check(ENGINE, Verdict.FAIL, f"{running} runs, though O_DIRECT works here", fix)
    chosen = "the best one here" if asked == "auto" else f"as {ENGINE_FLAG} asks; auto would take: {best}"
    return Check(ENGINE, Verdict.PASS, f"{running}, {chosen}")


def bandwidth(subject: Subject, fewest: float, quick: bool, say: Callable[[str], None]) -> Part:
    """Measure raw limit and store on each drive with pages of the server's size.

    ``fewest`` is the least ratio of reads; that of writes is told.
    """
    local = [str(path) for path in subject.local if not unreachable(subject, path)]
    if not local:
        return Part([Check(BANDWIDTH, Verdict.SKIPPED, "no directory of the store is on this machine")], {})
    page = subject.page_bytes or bench_io.DEFAULT_PAGE
    checks, told = [], {}
    for drive in file_systems(local):
        directory = drive.directories[0]
        name = BANDWIDTH if len(local) == 1 else f"{BANDWIDTH}, {directory}"
        try:
            size = max(SIZE, PAGES * page)
            plan = bench_io.make_plan(Path(directory), size, [page], QUICK_ROUNDS if quick else ROUNDS)
            report = bench_io.measure(plan, say)
        except BadValue as error:
            checks.append(Check(name, Verdict.SKIPPED, error.why, error.fix))
        except (OSError, StoreError) as error:
            checks.append(Check(name, Verdict.FAIL, str(error), "radixtier doctor on the directory"))
        else:
            told[directory] = report
            checks.append(_ratio(name, report, fewest, subject.attached))
    return Part(checks, {"bandwidth": told})


def _ratio(name: str, report: dict[str, Any], fewest: float, busy: bool) -> Check:
    fix = "look for other load on this drive; radixtier bench io measures longer"
    found = least(name, report["read_ratio"], fewest, fix=fix)
    rates = f"reads {report['store_read_gbps']:.2f} of {report['raw_read_gbps']:.2f} GB/s"
    rates += f", writes {report['store_write_gbps']:.2f} of {report['raw_write_gbps']:.2f} GB/s"
    notes = [f"pages of {format_bytes(report['page_bytes'])}"]
    notes += [f"noisy: spread {report['spread']:.0%}"] if report["noisy"] else []
    notes += ["a running server uses the drive as well"] if busy else []
    return Check(name, found.verdict, f"{found.reason}; {rates}; {'; '.join(notes)}", found.fix)
