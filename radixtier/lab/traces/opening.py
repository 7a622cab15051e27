"""Tells which format a trace has, and opens it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from radixtier.lab.traces.lines import Lines, Unusable
from radixtier.lab.traces.mooncake import MooncakeTrace
from radixtier.lab.traces.recorded import RecordedTrace
from radixtier.lab.traces.recording import MARK
from radixtier.lab.traces.sessions import FIELDS, SPREAD_S, SessionTrace
from radixtier.lab.traces.trace import BadTrace, Trace

FORMATS = (
    "Mooncake's (objects with timestamp and hash_ids), of sessions"
    f" (lists of {FIELDS}) or recorded by a server (first line an object with {MARK})"
)


def open_trace(file: Path, *, skip_bad: bool = False, spread_s: float = SPREAD_S, seed: int = 0) -> Trace:
    """Open a trace; its first usable line tells the format.

    Parameters
    ----------
    file
        JSON lines, or the same compressed with gzip.
    skip_bad
        Count lines that cannot be used, and go on.
    spread_s, seed
        How sessions are laid over each other; see :mod:`radixtier.lab.traces.sessions`.

    Raises
    ------
    BadTrace
        When the format cannot be told; other bad lines are found while reading.
    OSError
        When it cannot be opened.
    """
    if file.exists() and not file.is_file() and not file.is_dir():
        raise BadTrace(file, 1, "a pipe or a device, but a trace is read from its start more than once: save it first")
    with closing(Lines(file, skip_bad).understood(_kind)) as kinds:
        kind = next(kinds)
    if kind is SessionTrace:
        return SessionTrace(file, skip_bad, spread_s=spread_s, seed=seed)
    return RecordedTrace(file, skip_bad) if kind is RecordedTrace else MooncakeTrace(file, skip_bad)


def _kind(line: Any) -> type[Trace]:
    if isinstance(line, list) and len(line) == FIELDS:
        return SessionTrace
    if isinstance(line, dict):
        if MARK in line:
            return RecordedTrace
        if "timestamp" in line and "hash_ids" in line:
            return MooncakeTrace
        if any(event in line for event in ("arrive", "start", "end", "abort")):
            raise Unusable(f"an event, but no header (an object with {MARK}) in front of it: the file lost its start")
    raise Unusable(f"no line of a trace. There are three formats: {FORMATS}")
