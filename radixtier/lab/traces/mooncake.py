"""Reads Mooncake's traces: JSON lines with ``timestamp`` (ms) and ``hash_ids``, one id per block of 512 tokens.

Law: equal ids stand for equal prefixes, so an id whose parent changes is an error. The format has no sessions: a
request continues the one whose last block, or last but one (the last is often partial and changes), is the deepest on
its path. Streams: memory grows with distinct blocks only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radixtier.lab.traces.lines import numbered
from radixtier.lab.traces.trace import ROOT, BadTrace, Nodes, Request


class MooncakeTrace:
    """A trace of Mooncake's; see the module."""

    block_tokens = 512

    def __init__(self, file: Path) -> None:
        self.file = file
        self.nodes = Nodes()
        self._node_of: dict[int, int] = {}
        self._sessions = 0
        self._ends: dict[int, int] = {}
        """Node at the end of a request -> its session."""

    def requests(self) -> Iterator[Request]:
        """Read the requests in the order of the file."""
        now = 0.0
        for number, text in numbered(self.file):
            try:
                line: Any = json.loads(text)
            except ValueError:
                raise BadTrace(self.file, number, "not a line of JSON") from None
            if not isinstance(line, dict) or "timestamp" not in line or "hash_ids" not in line:
                raise BadTrace(self.file, number, "no object with timestamp and hash_ids")
            time, ids = line["timestamp"], line["hash_ids"]
            if type(time) not in (int, float) or not now <= time / 1000 < float("inf"):
                raise BadTrace(self.file, number, f"timestamp {time!r} is no number of ms, or before the line above")
            if not isinstance(ids, list) or not ids:
                raise BadTrace(self.file, number, "hash_ids is no list of ids, or empty")
            now = time / 1000
            path = self._path(ids, number)
            yield Request(now, self._session(path), path)

    def _path(self, ids: list[Any], number: int) -> list[int]:
        nodes, node_of, parent, path = self.nodes, self._node_of, ROOT, []
        for each in ids:
            if type(each) is not int:
                raise BadTrace(self.file, number, f"hash id {each!r} is no integer")
            node = node_of.get(each)
            if node is None:
                node = node_of[each] = nodes.add(parent, 1)
            elif nodes.parent[node] != parent:
                raise BadTrace(self.file, number, f"hash id {each} follows another block than before")
            path.append(node)
            parent = node
        return path

    def _session(self, path: list[int]) -> int:
        session = next((self._ends[node] for node in reversed(path) if node in self._ends), None)
        if session is None:
            session = self._sessions
            self._sessions += 1
        for node in path[-2:] if len(path) > 2 else path[-1:]:
            self._ends[node] = session
        return session
