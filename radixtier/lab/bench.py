"""``radixtier bench lab``: is a replay linear in the references, and does a large tree make them dearer?

Owns the two measurements. *Length*: a trace, then 4 and 16 of it one after the other, each copy with blocks of its
own. *Size*: a load that keeps three tiers full and turning over, with 10,000 and with 1,000,000 nodes on NVMe. Seconds
are those of the process, per block reference (per node on a path, where nodes have several blocks). Main thread.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

from radixtier.lab.setup import Setup, run
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.trace import ROOT, Nodes, Request
from radixtier.policy.eviction import NAMES

COPIES = (1, 4, 16)
RESIDENT = (10_000, 1_000_000)
DEPTH = 16
"""Nodes on a path of the generated loads."""

MEASURED = 50_000
"""References of the load that are measured, after the tiers are full."""


class Generated:
    """A trace that is made up while it is read."""

    block_tokens = 64
    skipped = 0
    first_bad = None

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.references = 0
        """Nodes on the paths so far."""

    def requests(self) -> Iterator[Request]:
        """Make the requests."""
        raise NotImplementedError

    def path(self, parent: int = ROOT) -> list[int]:
        """Add a path of new nodes below a node."""
        found = []
        for _ in range(DEPTH):
            parent = self.nodes.add(parent, 1)
            found.append(parent)
        return found


class Copies(Generated):
    """Requests, so many times one after the other."""

    def __init__(self, requests: Sequence[Request], parents: Sequence[int], pages: Sequence[int], copies: int) -> None:
        super().__init__()
        self._requests, self._parents, self._pages, self._copies = requests, parents, pages, copies

    def requests(self) -> Iterator[Request]:
        """Yield them; the blocks, sessions and times of each copy follow those of the one before."""
        seconds = self._requests[-1].time + 1.0
        for copy in range(self._copies):
            number: dict[int, int] = {ROOT: ROOT}
            for request in self._requests:
                for node in request.path:
                    if node not in number:
                        number[node] = self.nodes.add(number[self._parents[node]], self._pages[node])
                path = [number[node] for node in request.path]
                self.references += len(path)
                session = copy << 32 | request.session
                yield request._replace(time=copy * seconds + request.time, session=session, path=path)


class Turnover(Generated):
    """Sessions that come back at random, more than fit; the clock runs from when the tiers are full to the last."""

    def __init__(self, resident: int, measured: int = MEASURED) -> None:
        super().__init__()
        self._sessions = resident * 5 // 4 // DEPTH
        self._measured = measured
        self.began = self.ended = 0.0

    def requests(self) -> Iterator[Request]:
        """Every session once, then sessions at random."""
        paths = [self.path() for _ in range(self._sessions)]
        rng = random.Random(0)
        order = [*range(self._sessions), *(rng.randrange(self._sessions) for _ in range(self._measured // DEPTH))]
        for number, session in enumerate(order):
            if number == self._sessions:
                self.began, self.references = process_time(), 0
            self.references += DEPTH
            yield Request(float(number), session, paths[session])
        self.ended = process_time()


def small(requests: int = 1500) -> tuple[list[Request], Nodes]:
    """Make a load of conversations: each turn has the path of the one before and new blocks behind it."""
    trace, rng = Generated(), random.Random(0)
    found: list[Request] = []
    talks: list[list[int]] = []
    for number in range(requests):
        if not talks or rng.random() < 0.3:
            talks.append([])
        session = rng.randrange(max(0, len(talks) - 50), len(talks))
        talks[session] = talks[session] + trace.path(talks[session][-1] if talks[session] else ROOT)
        found.append(Request(float(number), session, talks[session]))
    return found, trace.nodes


def by_length(requests: Sequence[Request], nodes: Nodes, eviction: str, copies: int) -> float:
    """Return seconds per reference of so many copies over three tiers of a 50th, a 25th and a 6th of the blocks."""
    trace = Copies(requests, nodes.parent, nodes.pages, copies)
    blocks = nodes.n_pages
    setup = Setup(max(1, blocks // 50), blocks // 25, blocks // 6, eviction=eviction, admission="all")
    began = process_time()
    run(trace, setup)
    return (process_time() - began) / max(1, trace.references)


def by_size(eviction: str, resident: int) -> float:
    """Return seconds per reference with so many nodes on NVMe."""
    trace = Turnover(resident)
    run(trace, Setup(resident // 16, resident // 4, resident, eviction=eviction, admission="all"), ceiling=False)
    return (trace.ended - trace.began) / trace.references


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    made = parser()
    options = made.parse_args(argv)
    names = options.eviction.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        made.error(f"--eviction {unknown[0]}: choose of {', '.join(NAMES)}")
    try:
        if options.trace is None:
            requests, nodes = small()
        else:
            trace = open_trace(options.trace)
            requests, nodes = list(trace.requests()), trace.nodes
    except (ValueError, OSError) as error:
        print(f"radixtier bench lab: {error}", file=sys.stderr)
        return 2
    copies = COPIES[:2] if options.quick else COPIES
    sizes = (RESIDENT[0], RESIDENT[1] // 10) if options.quick else RESIDENT
    found: dict[str, dict[str, float]] = {}
    for name in names:
        found[name] = {f"{each}x": by_length(requests, nodes, name, each) for each in copies}
        found[name] |= {f"{each:,} nodes": by_size(name, each) for each in sizes}
        _tell(name, [f"{each}x" for each in copies], found[name])
        _tell(name, [f"{each:,} nodes" for each in sizes], found[name])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog="radixtier bench lab", description="Cost of a replay, per block reference.")
    trace_help = "of which copies are made (default: made up)"
    made.add_argument("trace", type=Path, nargs="?", metavar="TRACE", help=trace_help)
    made.add_argument("--eviction", default="lru,slru", metavar="A,B", help="policies (default %(default)s)")
    made.add_argument("--quick", action="store_true", help="4 copies and 100,000 nodes at most")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return made


def _tell(name: str, columns: Sequence[str], seconds: dict[str, float]) -> None:
    first = seconds[columns[0]]
    shown = (f"{column} {seconds[column] * 1e6:.1f} us ({seconds[column] / first:.2f})" for column in columns)
    print(f"{name:<9} per reference: {', '.join(shown)}", flush=True)
