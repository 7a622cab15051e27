"""Reads radixtier's own traces; :mod:`radixtier.lab.traces.recording` has the format.

Owns the way from events to requests, in the order of arrival: a request waits for its end, and for those before it.
One that never started (aborted, or the recording ends) is left out. One that is still served when :data:`HELD` others
have arrived since is given out as if the recording ended there. Memory: about 160 bytes per distinct page, 250 per
session, 400 per request that waits. One thread.

Law of the cache that was recorded: SGLang looks up all tokens of a prompt but the last, in whole pages. So of the
pages at arrival, ``(in - 1) // page_tokens`` are the path; the others, and those of the answer, are what the request
adds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from radixtier.lab.traces.lines import Lines, Unusable, known, seconds, shown, whole
from radixtier.lab.traces.recording import MARK, VERSION, Header
from radixtier.lab.traces.trace import ROOT, Nodes, Request, Served

HELD = 1 << 16
"""Requests that wait for the first of them to end."""

MOST_PAGE_TOKENS = 1 << 20

_HEADER = (MARK, *(field.name for field in fields(Header)))
_FIELDS = {
    "arrive": ("t", "arrive", "session", "in", "after", "keys"),
    "start": ("t", "start", "hit"),
    "end": ("t", "end", "out", "after", "keys"),
    "abort": ("t", "abort"),
}
_KEY = re.compile("[0-9a-fA-F]{16}")
_WORD = (1 << 63) - 1


@dataclass(slots=True)
class _Flight:
    """A request between its arrival and when it is given out."""

    session: int
    arrived: float
    tokens: int
    think_s: float | None
    path: int
    """Node that its path ends with, or ROOT."""
    last: int
    """Node that what it left behind ends with."""
    started: float | None = None
    hit: tuple[int, int, int] = (0, 0, 0)
    output: int = 0
    ended: float | None = None
    over: bool = False
    """Ended or aborted."""


class RecordedTrace(Lines):
    """A trace that a server recorded; see the module, and :class:`Lines` for the parameters.

    Raises
    ------
    BadTrace
        When there is no header.
    """

    def __init__(self, file: Path, skip_bad: bool = False) -> None:
        super().__init__(file, skip_bad)
        self.nodes = Nodes()
        self.header = self._find_header()
        self.block_tokens = self.header.page_tokens
        self._begun = False
        """The header was passed."""
        self._now = 0.0
        self._node_of: dict[int, int] = {}
        self._flights: dict[int, _Flight] = {}
        """By number, those that are not over."""
        self._waiting: deque[_Flight] = deque()
        """In order of arrival, those not given out."""
        self._turns: dict[int, tuple[_Flight | None, float]] = {}
        """Of each session its last turn while it is served, and when it ended afterwards."""

    @property
    def recorded(self) -> dict[str, Any]:
        """Sizes and policies of the server, as far as the header tells them."""
        return self.header.as_dict()

    def requests(self) -> Iterator[Request]:
        """Read the requests in the order of arrival, each when it has ended."""
        for _ in self.understood(self._event):
            waiting = self._waiting
            while waiting and (waiting[0].over or len(waiting) > HELD):
                yield from self._given(waiting.popleft())
        while self._waiting:
            yield from self._given(self._waiting.popleft())

    def _find_header(self) -> Header:
        with closing(Lines(self.file, self.skip_bad).understood(_header)) as headers:
            return next(headers)

    def _event(self, line: Any) -> None:
        if not self._begun:
            _header(line)
            self._begun = True
            return
        name = next((name for name in _FIELDS if name in line), None) if isinstance(line, dict) else None
        if name is None:
            raise Unusable(f"no object with one of {', '.join(_FIELDS)}")
        known(line, _FIELDS[name])
        for field in _FIELDS[name]:
            if field not in line and field != "after":
                raise Unusable(f"{name} without {field}")
        time = seconds(line["t"], "t")
        if time < self._now:
            raise Unusable(f"t {line['t']} is before the line above")
        number = whole(line[name], name, _WORD)
        if (flight := self._flights.get(number)) is None and name != "arrive":
            raise Unusable(f"{name} of request {number}, which has not arrived or is over")
        if flight is None:
            self._arrive(line, number, time)
        elif name == "arrive":
            raise Unusable(f"request {number} has arrived before and is not over")
        elif name == "start":
            _start(flight, line["hit"], time)
        else:
            if name == "end":
                self._end(flight, line, time)
            self._over(number, flight, time)
        self._now = time

    # ---- events -------------------------------------------------------------------------------------

    def _arrive(self, line: dict[str, Any], number: int, time: float) -> None:
        session, tokens = whole(line["session"], "session", _WORD, -_WORD), whole(line["in"], "in")
        stretch = self._stretch(line)
        whole_pages = tokens // self.block_tokens
        if stretch.pages != whole_pages:
            given = f"{tokens} tokens have {whole_pages} whole pages of {self.block_tokens}"
            raise Unusable(f"{given}, but keys and those in front of them are {stretch.pages}")
        last = self._grow(stretch)
        unmatched = whole_pages > 0 and tokens % self.block_tokens == 0
        path = self.nodes.parent[last] if unmatched else last
        before, ended = self._turns.get(session, (None, None))
        think = time - ended if before is None and ended is not None else None
        flight = _Flight(session, time, tokens, think, path, path)
        self._turns[session] = (flight, time)
        self._flights[number] = flight
        self._waiting.append(flight)

    def _end(self, flight: _Flight, line: dict[str, Any], time: float) -> None:
        if flight.started is None:
            raise Unusable(f"request {line['end']} ends, but did not start")
        output = whole(line["out"], "out")
        stretch = self._stretch(line)
        most = max(0, flight.tokens + output - 1) // self.block_tokens
        if stretch.pages > most:
            raise Unusable(f"{flight.tokens} + {output} tokens leave {most} pages, but these are {stretch.pages}")
        on_path = self._depth(flight.path)
        common = min(on_path, stretch.pages)
        if self._at(stretch, common) != self._ancestor(flight.path, common):
            raise Unusable("the pages at the end are not behind those of the prompt")
        last = self._grow(stretch)
        flight.last = last if stretch.pages > on_path else flight.path
        flight.output, flight.ended = output, time

    def _over(self, number: int, flight: _Flight, time: float) -> None:
        del self._flights[number]
        flight.over = True
        turn, _ = self._turns[flight.session]
        if turn is flight:
            self._turns[flight.session] = (None, time)

    def _given(self, flight: _Flight) -> Iterator[Request]:
        if flight.started is None:
            return
        pages = self.nodes.up(flight.last)
        on_path = self._depth(flight.path)
        yield Request(
            flight.arrived,
            flight.session,
            pages[:on_path],
            flight.tokens,
            flight.output,
            flight.think_s,
            pages[on_path:],
            Served(*flight.hit, flight.started, flight.ended),
        )

    # ---- pages --------------------------------------------------------------------------------------

    def _stretch(self, line: dict[str, Any]) -> _Stretch:
        """Find the node that the listed pages follow, and the nodes of those that are known."""
        front, keys = ROOT, line["keys"]
        if "after" in line:
            front = self._node_of.get(_key(line["after"]), ROOT)
            if front == ROOT:
                raise Unusable(f"after {line['after']}, which no line above has named")
        if not isinstance(keys, list):
            raise Unusable(f"keys {shown(keys)} is no list")
        numbers = [_key(key) for key in keys]
        found: list[int] = []
        for number in numbers:
            node = self._node_of.get(number)
            if node is None or self.nodes.parent[node] != (found[-1] if found else front):
                break
            found.append(node)
        new = numbers[len(found) :]
        for number in new:
            if number in self._node_of:
                raise Unusable(f"key {number:016x} follows another page than before")
        if len(set(new)) < len(new):
            raise Unusable("keys has a key twice")
        return _Stretch(front, self._depth(front), found, new)

    def _grow(self, stretch: _Stretch) -> int:
        """Give nodes to the pages that have none; returns the last node."""
        node = stretch.found[-1] if stretch.found else stretch.front
        added = self.nodes.add_chain(node, len(stretch.new))
        self._node_of.update(zip(stretch.new, added, strict=True))
        return added[-1] if added else node

    def _depth(self, node: int) -> int:
        """Return the pages of the path that ends in a node."""
        return 0 if node == ROOT else self.nodes.depth[node] + 1

    def _at(self, stretch: _Stretch, pages: int) -> int:
        """Return the node that the first ``pages`` pages end with, ROOT as well if it is not known."""
        behind = pages - stretch.in_front
        if behind <= 0:
            return self._ancestor(stretch.front, pages)
        return stretch.found[behind - 1] if behind <= len(stretch.found) else ROOT

    def _ancestor(self, node: int, pages: int) -> int:
        """Return the node at the end of the first ``pages`` pages of a path."""
        if pages == 0:
            return ROOT
        while self.nodes.depth[node] >= pages:
            node = self.nodes.parent[node]
        return node


@dataclass(slots=True)
class _Stretch:
    """Pages of one line: what they follow, how many pages that is, nodes of those known, keys of the others."""

    front: int
    in_front: int
    found: list[int]
    new: list[int]

    @property
    def pages(self) -> int:
        return self.in_front + len(self.found) + len(self.new)


def _start(flight: _Flight, hit: Any, time: float) -> None:
    if flight.started is not None:
        # Admitted again after a retraction: it finds what it has written of its answer, too.
        return
    if not isinstance(hit, list) or len(hit) != 3:
        raise Unusable(f"hit {shown(hit)} is no list of three")
    hbm, dram, nvme = (whole(tokens, "hit") for tokens in hit)
    if hbm + dram + nvme > flight.tokens:
        raise Unusable(f"hit {hit} is more than the {flight.tokens} tokens of the prompt")
    flight.started, flight.hit = time, (hbm, dram, nvme)


def _key(text: Any) -> int:
    if not isinstance(text, str) or not _KEY.fullmatch(text):
        raise Unusable(f"key {shown(text)} is not 16 hex digits")
    return int(text, 16)


def _header(line: Any) -> Header:
    if not isinstance(line, dict) or MARK not in line:
        raise Unusable(f"no header: the first line is an object with {MARK} and page_tokens")
    if line[MARK] != VERSION or type(line[MARK]) is not int:
        raise Unusable(f"{MARK} {shown(line[MARK])}: this release reads {VERSION}")
    known(line, _HEADER)
    values = {name: value for name, value in line.items() if name != MARK}
    for name, value in values.items():
        if name in ("eviction", "admission", "write_budget"):
            if not isinstance(value, str):
                raise Unusable(f"{name} {shown(value)} is no text")
        else:
            whole(value, name, MOST_PAGE_TOKENS if name == "page_tokens" else _WORD, int(name.startswith("page")))
    if "page_tokens" not in values:
        raise Unusable("the header has no page_tokens")
    return Header(**values)
