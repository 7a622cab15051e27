"""Reads session traces: JSON lines ``[session, t_s, input, output, think_s, shared_prefix_blocks, total_blocks]``.

A line shares its first ``shared_prefix_blocks`` blocks of 64 tokens with the line of the same session before it; what
follows is new, also where an earlier branch had blocks in the same place. Times are seconds from the start of the
session; a line that is earlier than the one above it (agents of one session, one after the other in the file) follows
at once.

How sessions overlap is not in the file. The law here is the one behind the published figures for this format: starts
are spread evenly at random over :data:`SPREAD_S` (seeded, in the order of the file), and lines later than
:data:`LONGEST_S` after the start are left out. Nodes are the longest stretches that no line of the trace cuts, so
that a tier can treat one as a whole and the result is what single blocks would give. Reads the whole file first:
about 200 bytes a line.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.lab.traces.lines import numbered
from radixtier.lab.traces.trace import ROOT, BadTrace, Nodes, Request

SPREAD_S = 86_400.0
LONGEST_S = 43_200.0
FIELDS = 7


class _Line(NamedTuple):
    time: float
    shared: int
    total: int


class SessionTrace:
    """A session trace; see the module.

    Parameters
    ----------
    file
        JSON lines, or the same compressed with gzip.
    spread_s, longest_s
        See the module; seconds.
    seed
        Of the starts.
    """

    block_tokens = 64

    def __init__(self, file: Path, *, spread_s: float = SPREAD_S, longest_s: float = LONGEST_S, seed: int = 0) -> None:
        self.file = file
        self.nodes = Nodes()
        self._spread_s = spread_s
        self._longest_s = longest_s
        self._seed = seed

    def requests(self) -> Iterator[Request]:
        """Read the requests of all sessions, in the order of time."""
        starts = random.Random(self._seed)
        found: list[tuple[float, int, int, list[int]]] = []
        for session, lines in enumerate(self._sessions()):
            start = starts.uniform(0.0, self._spread_s)
            for number, (line, path) in enumerate(zip(lines, self._paths(lines), strict=True)):
                found.append((start + line.time, session, number, path))
        found.sort(key=lambda each: each[:3])
        for time, session, _, path in found:
            yield Request(time, session, path)

    def _sessions(self) -> list[list[_Line]]:
        sessions: dict[Any, list[_Line]] = {}
        last: dict[Any, _Line] = {}
        for number, text in numbered(self.file):
            session, line = self._line(number, text)
            before = last.get(session, _Line(0.0, 0, 0))
            if line.shared > before.total:
                raise BadTrace(self.file, number, f"shares {line.shared} blocks with a line that has {before.total}")
            lines = sessions.setdefault(session, [])
            if line.time <= self._longest_s:
                previous = lines[-1] if lines else _Line(0.0, 0, 0)
                # What a line shares with one that is left out, it shares with the last that is in.
                lines.append(_Line(max(line.time, previous.time), min(line.shared, previous.total), line.total))
            last[session] = line
        return [lines for lines in sessions.values() if lines]

    def _line(self, number: int, text: str) -> tuple[Any, _Line]:
        try:
            row: Any = json.loads(text)
        except ValueError:
            raise BadTrace(self.file, number, "not a line of JSON") from None
        if not isinstance(row, list) or len(row) != FIELDS:
            raise BadTrace(self.file, number, f"not a list of {FIELDS} fields")
        session, time, _, _, _, shared, total = row
        if isinstance(session, (list, dict)):
            raise BadTrace(self.file, number, "the session is neither number nor text")
        if type(time) not in (int, float) or not 0 <= time < float("inf"):
            raise BadTrace(self.file, number, f"{time!r} is no time in seconds")
        if type(shared) is not int or type(total) is not int or not 0 <= shared <= total or total == 0:
            raise BadTrace(self.file, number, f"{shared!r} shared of {total!r} blocks is not possible")
        return session, _Line(float(time), shared, total)

    def _paths(self, lines: list[_Line]) -> list[list[int]]:
        """Give a session its nodes: first where each stretch of new blocks is cut, then the paths."""
        cuts = _cuts(lines)
        paths: list[list[int]] = []
        path: list[int] = []
        ends: list[int] = []
        for line, cut in zip(lines, cuts, strict=True):
            keep = bisect_right(ends, line.shared)
            path, ends = path[:keep], ends[:keep]
            for lo, hi in pairwise(cut):
                path.append(self.nodes.add(path[-1] if path else ROOT, hi - lo))
                ends.append(hi)
            paths.append(path)
        return paths


def _cuts(lines: list[_Line]) -> list[list[int]]:
    """For the new blocks of each line: the places where they begin, are cut by later lines, and end."""
    cuts: list[set[int]] = []
    stack: list[int] = []
    """Lines that the present path has blocks of."""
    for number, line in enumerate(lines):
        while stack and lines[stack[-1]].shared >= line.shared:
            stack.pop()
        if stack and line.shared < lines[stack[-1]].total:
            cuts[stack[-1]].add(line.shared)
        stack.append(number)
        cuts.append({line.shared, line.total})
    return [sorted(each) for each in cuts]
