"""Reads text files line by line, compressed or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from radixtier.lab.traces.trace import BadTrace


def numbered(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1.

    Raises
    ------
    BadTrace
        When there is none, or what is there is no text.
    OSError
        When the file cannot be opened.
    """
    number = found = 0
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    found += 1
                    yield number, line
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error):
        raise BadTrace(file, number + 1, "not text, or damaged") from None
    if not found:
        raise BadTrace(file, 1, "the trace is empty")
