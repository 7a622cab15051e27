"""Reads a patch that only inserts lines, and applies or takes back its hunks on the bytes of one file.

Owns the form: a unified diff whose lines are context or insertions. Law: ``take_back(apply(b)) == b`` for every ``b``
that it applies to; what does not fit raises `Misfit`, and nothing is guessed. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FILE = re.compile(rb"\+\+\+ b/sglang/(\S+)")
_HUNK = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Misfit(ValueError):
    """A hunk does not fit the text, or is none."""


class Hunk(NamedTuple):
    """Some lines, each with its end, of the text before and of the text after; 0 is the first line of a file."""

    before_at: int
    before: tuple[bytes, ...]
    after_at: int
    after: tuple[bytes, ...]


def read_diff(text: bytes) -> Mapping[str, Sequence[Hunk]]:
    """Return the hunks by file, relative to the package.

    Raises
    ------
    Misfit
        When a line is neither a header, nor context, nor an insertion.
    """
    files: dict[str, list[Hunk]] = {}
    hunks: list[Hunk] = []
    for line in text.splitlines(keepends=True):
        if line.startswith(b"--- "):
            continue
        if named := _FILE.match(line):
            hunks = files.setdefault(named[1].decode(), [])
        elif place := _HUNK.match(line):
            hunks.append(Hunk(int(place[1]) - 1, (), int(place[2]) - 1, ()))
        elif line[:1] in (b" ", b"+") and hunks:
            before_at, before, after_at, after = hunks[-1]
            kept = before if line[:1] == b"+" else (*before, line[1:])
            hunks[-1] = Hunk(before_at, kept, after_at, (*after, line[1:]))
        else:
            raise Misfit(f"neither context nor an insertion: {line!r}")
    return files


def apply(hunks: Sequence[Hunk], content: bytes) -> bytes:
    """Insert the lines of all hunks."""
    return _replace(content, [(hunk.before_at, hunk.before, hunk.after) for hunk in hunks])


def take_back(hunks: Sequence[Hunk], content: bytes) -> bytes:
    """Take the inserted lines of all hunks out again."""
    return _replace(content, [(hunk.after_at, hunk.after, hunk.before) for hunk in hunks])


def _replace(content: bytes, changes: Sequence[tuple[int, tuple[bytes, ...], tuple[bytes, ...]]]) -> bytes:
    lines = content.splitlines(keepends=True)
    for at, old, new in reversed(changes):
        if tuple(lines[at : at + len(old)]) != old:
            raise Misfit(f"line {at + 1} is another one")
        lines[at : at + len(old)] = new
    return b"".join(lines)
