"""Tells which format a trace has."""

from __future__ import annotations

from pathlib import Path

from radixtier.lab.traces.lines import numbered
from radixtier.lab.traces.mooncake import MooncakeTrace
from radixtier.lab.traces.sessions import SessionTrace
from radixtier.lab.traces.trace import Trace


def open_trace(file: Path) -> Trace:
    """Open a trace; the first character tells objects (Mooncake) from lists (sessions).

    Raises
    ------
    BadTrace
        When the file is empty; other bad lines are found while reading.
    OSError
        When it cannot be opened.
    """
    _, line = next(numbered(file))
    return SessionTrace(file) if line.lstrip().startswith("[") else MooncakeTrace(file)
