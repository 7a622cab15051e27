"""What ``radixtier lab sweep`` and ``plan`` have in common: processes, and where what they find goes.

Owns their flags. Main thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixtier.cli.json_file import add_json
from radixtier.lab.plots.style import formats, save
from radixtier.lab.sweep.grid import Outcome
from radixtier.units import BadValue

MOST_JOBS = 1024


def add_jobs(parser: argparse.ArgumentParser, files: str) -> argparse._ArgumentGroup:
    """Add the flags, and return their group; ``files`` says what is written under ``--out``."""
    group = parser.add_argument_group("work and results")
    add = group.add_argument
    add("--jobs", type=int, default=cpus(), metavar="N", help="processes (default: one per CPU, here %(default)s)")
    add("--out", type=Path, metavar="DIR", help=f"write {files} there")
    add("--format", default="png", metavar="F", help="of the pictures: png, svg, png,svg or none (default %(default)s)")
    add_json(group, "everything")
    return group


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs(options: argparse.Namespace) -> int:
    """Return the number of processes."""
    if not 1 <= options.jobs <= MOST_JOBS:
        raise BadValue(f"--jobs {options.jobs}: no number of processes", f"Give 1 to {MOST_JOBS}")
    number: int = options.jobs
    return number


def picture_formats(options: argparse.Namespace) -> list[str]:
    """Return the formats of pictures, none without ``--out``; refuses early when they could not be drawn."""
    return formats(options.format) if options.out is not None else []


def save_picture(made: Any, options: argparse.Namespace, name: str, names: Sequence[str]) -> None:
    """Write a picture under ``--out``."""
    for file in save(made, options.out / name, names):
        tell(f"wrote {file}")


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome for JSON."""
    found = {**outcome.cell.as_dict(), "seconds_taken": round(outcome.seconds, 3), "distinct_blocks": outcome.distinct}
    return {**found, "error": outcome.error} if outcome.report is None else {**found, "report": outcome.report}


def tell(text: str) -> None:
    """Say something that is no result."""
    print(text, file=sys.stderr, flush=True)


def tell_failures(failed: Sequence[Outcome]) -> None:
    """Say what failed, each reason once."""
    reasons: dict[str, list[Outcome]] = {}
    for each in failed:
        reasons.setdefault(each.error or "", []).append(each)
    for reason, those in reasons.items():
        tell(f"radixtier lab: {len(those)} {'replays' if len(those) > 1 else 'replay'} failed: {reason}")
