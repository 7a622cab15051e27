"""Reads session traces: JSON lines ``[session, t_s, input, output, think_s, shared_prefix_blocks, total_blocks]``.

A line shares its first ``shared_prefix_blocks`` blocks of 64 tokens with the line of the same session before it; what
follows is new, also where an earlier branch had blocks in the same place. Times are seconds from the start of the
session; a line that is earlier than the one above it (agents of one session, one after the other in the file) follows
at once. ``think_s`` may be null.

How sessions overlap is not in the file. The law here is the one behind the published figures for this format: starts
are spread evenly at random over :data:`SPREAD_S` (seeded, in the order of the file), and lines later than
:data:`LONGEST_S` after the start are left out. Nodes are the longest stretches that no line of the trace cuts, so
that a tier can treat one as a whole and the result is what single blocks would give. Reads the whole file first, into
arrays: about 50 bytes a line, 110 while they are sorted.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.lab.traces.lines import MOST_BLOCKS, Lines, Unusable, seconds, shown, whole
from radixtier.lab.traces.trace import ROOT, Nodes, Request

SPREAD_S = 86_400.0
LONGEST_S = 43_200.0
FIELDS = 7


class _Line(NamedTuple):
    session: int | str
    time: float
    input: int
    output: int
    think_s: float
    """NaN where the file has null."""
    shared: int
    total: int


class _Last(NamedTuple):
    """Of a session: its number, blocks of its last line, and time and blocks of the last one that is not left out."""

    number: int
    total: int
    kept_time: float
    kept_total: int


class SessionTrace(Lines):
    """A session trace; see the module, and :class:`Lines` for ``file`` and ``skip_bad``.

    Parameters
    ----------
    spread_s, longest_s
        See the module; seconds.
    seed
        Of the starts.
    """

    block_tokens = 64

    def __init__(
        self,
        file: Path,
        skip_bad: bool = False,
        *,
        spread_s: float = SPREAD_S,
        longest_s: float = LONGEST_S,
        seed: int = 0,
    ) -> None:
        super().__init__(file, skip_bad)
        self.nodes = Nodes()
        self._spread_s = spread_s
        self._longest_s = longest_s
        self._seed = seed
        self._last: dict[int | str, _Last] = {}

    def requests(self) -> Iterator[Request]:
        """Read the requests of all sessions, in the order of time."""
        table = _Table()
        for line in self.understood(self._line):
            if line is not None:
                table.add(line)
        starts = random.Random(self._seed)
        return table.requests(self.nodes, [starts.uniform(0.0, self._spread_s) for _ in range(table.sessions)])

    def _line(self, row: Any) -> _Line | None:
        """Check a line; None if it is left out."""
        if not isinstance(row, list) or len(row) != FIELDS:
            raise Unusable(f"not a list of {FIELDS} fields")
        session, time, _, _, think, _, total = row
        if type(session) is not int and type(session) is not str:
            raise Unusable(f"session {shown(session)} is neither number nor text")
        whole(total, "total_blocks", MOST_BLOCKS, 1)
        line = _Line(
            session,
            seconds(time, "t_s"),
            whole(row[2], "input"),
            whole(row[3], "output"),
            float("nan") if think is None else seconds(think, "think_s"),
            whole(row[5], "shared_prefix_blocks", total),
            total,
        )
        last = self._last.get(session, _Last(len(self._last), 0, 0.0, 0))
        if line.shared > last.total:
            raise Unusable(f"shares {line.shared} blocks with a line that has {last.total}")
        if line.time > self._longest_s:
            self._last[session] = last._replace(total=total)
            return None
        # What a line shares with one that is left out, it shares with the last that is in.
        now, shared = max(line.time, last.kept_time), min(line.shared, last.kept_total)
        self._last[session] = _Last(last.number, total, now, total)
        return line._replace(session=last.number, time=now, shared=shared)


class _Table:
    """The lines of all sessions, a column each."""

    def __init__(self) -> None:
        self.sessions = 0
        self._session, self._time = array("i"), array("d")
        self._input, self._output, self._think = array("i"), array("i"), array("d")
        self._shared, self._total = array("i"), array("i")

    def add(self, line: _Line) -> None:
        number = int(line.session)
        self.sessions = max(self.sessions, number + 1)
        self._session.append(number)
        self._time.append(line.time)
        self._input.append(line.input)
        self._output.append(line.output)
        self._think.append(line.think_s)
        self._shared.append(line.shared)
        self._total.append(line.total)

    def requests(self, nodes: Nodes, starts: Sequence[float]) -> Iterator[Request]:
        """Yield the lines as requests; a session gets its nodes when its first line comes."""
        sessions = np.frombuffer(self._session, np.int32)
        times = np.asarray(starts)[sessions] + np.frombuffer(self._time)
        # Both sorts are stable: lines of one session at one time stay as they are in the file.
        of_session = np.argsort(sessions, kind="stable")
        begins = np.searchsorted(sessions, np.arange(len(starts) + 1), sorter=of_session)
        paths: dict[int, _Paths] = {}
        for row in np.lexsort((sessions, times)).tolist():
            session = self._session[row]
            if session not in paths:
                mine = of_session[begins[session] : begins[session + 1]]
                paths[session] = _Paths(nodes, self._column(self._shared, mine), self._column(self._total, mine))
            path = paths[session].next()
            if path.last:
                del paths[session]
            think = self._think[row]
            yield Request(
                float(times[row]),
                session,
                path.nodes,
                self._input[row],
                self._output[row],
                None if think != think else think,
            )

    def _column(self, column: array[int], rows: npt.NDArray[np.intp]) -> list[int]:
        found: list[int] = np.frombuffer(column, np.int32)[rows].tolist()
        return found


class _Path(NamedTuple):
    nodes: list[int]
    last: bool
    """No line of the session follows."""


class _Paths:
    """Gives one session its nodes, line by line: what is shared stays, what is new is cut where later lines cut it."""

    def __init__(self, nodes: Nodes, shared: Sequence[int], total: Sequence[int]) -> None:
        self._nodes = nodes
        self._shared = shared
        self._cuts = _cuts(shared, total)
        self._at = 0
        self._path: list[int] = []
        self._ends: list[int] = []

    def next(self) -> _Path:
        keep = bisect_right(self._ends, self._shared[self._at])
        del self._path[keep:], self._ends[keep:]
        for lo, hi in pairwise(self._cuts[self._at]):
            self._path.append(self._nodes.add(self._path[-1] if self._path else ROOT, hi - lo))
            self._ends.append(hi)
        self._at += 1
        return _Path(self._path.copy(), self._at == len(self._shared))


def _cuts(shared: Sequence[int], total: Sequence[int]) -> list[list[int]]:
    """For the new blocks of each line: the places where they begin, are cut by later lines, and end."""
    cuts: list[set[int]] = []
    stack: list[int] = []
    """Lines that the present path has blocks of."""
    for number, (begin, end) in enumerate(zip(shared, total, strict=True)):
        while stack and shared[stack[-1]] >= begin:
            stack.pop()
        if stack and begin < total[stack[-1]]:
            cuts[stack[-1]].add(begin)
        stack.append(number)
        cuts.append({begin, end})
    return [sorted(each) for each in cuts]
