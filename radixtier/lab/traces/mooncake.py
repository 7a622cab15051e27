"""Reads Mooncake's traces: JSON lines with ``timestamp`` (ms) and ``hash_ids``, one id per block of 512 tokens.

Law: equal ids stand for equal prefixes, so an id whose parent changes is an error. ``input_length`` and
``output_length`` (tokens) may be left out; where a prompt's length is given it fills its blocks, the last one perhaps
in part. The format has no sessions: a request continues the one whose last block, or last but one (the last is often
partial and changes), is the deepest on its path. Streams: memory grows with distinct blocks only, about 160 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radixtier.lab.traces.lines import MOST_BLOCKS, Lines, Unusable, known, seconds, shown, whole
from radixtier.lab.traces.trace import ROOT, Nodes, Request

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


class MooncakeTrace(Lines):
    """A trace of Mooncake's; see the module, and :class:`Lines` for the parameters."""

    block_tokens = 512

    def __init__(self, file: Path, skip_bad: bool = False) -> None:
        super().__init__(file, skip_bad)
        self.nodes = Nodes()
        self._now = 0.0
        self._node_of: dict[int, int] = {}
        self._sessions = 0
        self._ends: dict[int, int] = {}
        """Node at the end of a request -> its session."""

    def requests(self) -> Iterator[Request]:
        """Read the requests in the order of the file."""
        return self.understood(self._request)

    def _request(self, line: Any) -> Request:
        if not isinstance(line, dict) or "timestamp" not in line or "hash_ids" not in line:
            raise Unusable("no object with timestamp and hash_ids")
        known(line, FIELDS)
        time = seconds(line["timestamp"], "timestamp") / 1000
        if time < self._now:
            raise Unusable(f"timestamp {line['timestamp']} is before the line above")
        ids = line["hash_ids"]
        if not isinstance(ids, list) or not 0 < len(ids) <= MOST_BLOCKS:
            raise Unusable("hash_ids is no list of ids, or empty")
        output = whole(line.get("output_length", 0), "output_length")
        length = whole(line.get("input_length", 0), "input_length")
        if "input_length" in line and -(-length // self.block_tokens) != len(ids):
            raise Unusable(f"input_length {length} does not fill {len(ids)} blocks of {self.block_tokens} tokens")
        path = self._path(ids)
        self._now = time
        return Request(time, self._session(path), path, length, output)

    def _path(self, ids: list[Any]) -> list[int]:
        """Find the ids in front that are known, then give nodes to the others: none of those may be known."""
        node_of, parents, parent, path = self._node_of, self.nodes.parent, ROOT, []
        if not set(map(type, ids)) <= {int} or not (min(ids) >= -(1 << 63) and max(ids) < 1 << 64):
            wrong = next(each for each in ids if type(each) is not int or not -(1 << 63) <= each < 1 << 64)
            raise Unusable(f"hash id {shown(wrong)} is no integer of 64 bits")
        for each in ids:
            node = node_of.get(each)
            if node is None or parents[node] != parent:
                break
            path.append(node)
            parent = node
        new = ids[len(path) :]
        for each in new:
            if each in node_of:
                raise Unusable(f"hash id {each} follows another block than before")
        if len(set(new)) < len(new):
            raise Unusable("hash_ids has an id twice")
        added = self.nodes.add_chain(parent, len(new))
        node_of.update(zip(new, added, strict=True))
        path += added
        return path

    def _session(self, path: list[int]) -> int:
        session = next((self._ends[node] for node in reversed(path) if node in self._ends), None)
        if session is None:
            session = self._sessions
            self._sessions += 1
        for node in path[-2:] if len(path) > 2 else path[-1:]:
            self._ends[node] = session
        return session
