"""The format of radixtier's own traces, and how a server writes one: an event log in JSON lines that holds no token.

Owns the form. The first line is the header; every other one is an event at ``t`` seconds since the recording began,
never less than that of the line above::

    {"radixtier_trace": 1, "page_tokens": 64, "page_bytes": 8388608, "hbm_pages": 100, "dram_pages": 400,
     "nvme_pages": 4000, "eviction": "lru", "admission": "auto", "write_budget": "none"}
    {"t": 0.5, "arrive": 7, "session": 3, "in": 200, "keys": ["00c5...", "17f3...", "ae01..."]}
    {"t": 0.6, "start": 7, "hit": [64, 64, 0]}
    {"t": 2.5, "end": 7, "out": 100, "after": "ae01...", "keys": ["5b2d..."]}
    {"t": 2.6, "abort": 8}

- The header's sizes and policies are those of the server; all but the first two may be absent. ``page_bytes`` is of
  all ranks together.
- The number behind the event's name tells the request: no two that are served at the same time have the same.
- A key, 16 hex digits, names a page **and everything in front of it**: equal keys are equal prefixes up to there.
  ``keys`` are, at the arrival, the whole pages of the ``in`` tokens of the prompt; at the end, the whole pages of
  prompt and answer but for the last token, which no step has put into the cache: ``(in + out - 1) // page_tokens``, or
  fewer where the server kept fewer. Pages at the front that the file has named already may be left out; ``after`` is
  the key of the last of them. So a turn costs only its new pages.
- ``hit`` tells the tokens found in HBM, in DRAM and on NVMe when the prefill could begin. Only the first ``start`` of a
  request counts: a server that takes one back and prefills it again may say so again.
- An abort ends a request with no more than that. One that had an answer already is better ended: then its pages count.

A recording that ends in the middle (the server was killed) is a trace up to there, but for a last line cut in two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

MARK = "radixtier_trace"
VERSION = 1

REMEMBERED = 200_000
"""Keys that a writer knows it has written; about 80 bytes each."""

_BUFFER = 64 << 10


@dataclass(frozen=True)
class Header:
    """First line of a recording: the page, and what the server was set up with (None: not told)."""

    page_tokens: int
    page_bytes: int | None = None
    """Of all ranks together."""
    hbm_pages: int | None = None
    dram_pages: int | None = None
    nvme_pages: int | None = None
    eviction: str | None = None
    admission: str | None = None
    write_budget: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what is told."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class TraceWriter:
    """Writes a recording, one whole line an event.

    Law: of a path only what follows the last page that is remembered as written is listed, so that an event costs time
    and bytes in proportion to its new pages, whatever the length of the prompt. Keys are remembered in two
    generations of half :data:`REMEMBERED` each: when the young one is full it becomes the old one, which is forgotten.
    What was forgotten is written again when it is used again, which readers take.

    Every method may raise `OSError` (the disk is full) and nothing else; the recording is of no use from there on but
    up to there, and the server should close it. Scheduler thread only.

    Parameters
    ----------
    file
        A new file is made at a path (`FileExistsError` if there is one); or a stream of text, which stays open.
    header
        Its first line.
    remembered
        See the law.
    """

    def __init__(self, file: TextIO | Path, header: Header, *, remembered: int = REMEMBERED) -> None:
        self._owned = isinstance(file, Path)
        self._out: TextIO = file.open("x", _BUFFER, "ascii") if isinstance(file, Path) else file
        self._half = max(1, remembered // 2)
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._now = 0.0
        self._out.write(json.dumps({MARK: VERSION, **header.as_dict()}) + "\n")

    def arrive(self, t: float, id: int, session: int, input_tokens: int, keys: npt.NDArray[np.uint64]) -> None:
        """A request arrived.

        Parameters
        ----------
        t
            Seconds since the recording began; a time before that of the last event is taken for that.
        id
            Of the request, 0 at least.
        session
            Who comes back.
        input_tokens
            Of the prompt.
        keys
            Of all whole pages of the prompt, shape ``(input_tokens // page_tokens,)``, root-side first.
        """
        self._event(t, "arrive", id, f', "session": {session}, "in": {input_tokens}{self._listed(keys)}')

    def start(self, t: float, id: int, hbm: int, dram: int, nvme: int) -> None:
        """Its prefill can begin; so many tokens of the prompt were found in each tier."""
        self._event(t, "start", id, f', "hit": [{hbm}, {dram}, {nvme}]')

    def end(self, t: float, id: int, output_tokens: int, keys: npt.NDArray[np.uint64]) -> None:
        """Its answer is complete; ``keys`` of all whole pages, ``(input + output tokens - 1) // page_tokens``."""
        self._event(t, "end", id, f', "out": {output_tokens}{self._listed(keys)}')

    def abort(self, t: float, id: int) -> None:
        """It was given up."""
        self._event(t, "abort", id, "")

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._out.flush()

    def close(self) -> None:
        """Flush, and close a file that was opened here, which happens even if flushing fails."""
        if self._owned:
            self._out.close()
        else:
            self._out.flush()

    def _event(self, t: float, name: str, id: int, rest: str) -> None:
        self._now = max(self._now, t)
        self._out.write(f'{{"t": {self._now:.6f}, "{name}": {id}{rest}}}\n')

    def _listed(self, keys: npt.NDArray[np.uint64]) -> str:
        """List what is not remembered, and what it follows."""
        new: list[int] = []
        after = ""
        for place in range(len(keys) - 1, -1, -1):
            key = int(keys[place])
            if key in self._young or key in self._old:
                after = f', "after": "{key:016x}"'
                self._remember(key)
                break
            new.append(key)
        new.reverse()
        for key in new:
            self._remember(key)
        return f'{after}, "keys": [{", ".join([f"{chr(34)}{key:016x}{chr(34)}" for key in new])}]'

    def _remember(self, key: int) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()
        self._young.add(key)
