"""``radixtier bench io``: how much of a drive's bandwidth the store reaches, with all that it does on the way.

Owns the plan, the rounds and the report. Invariant: raw limit, store and a file per page are measured in turns, in one
run on one file system, and only ratios within a round are compared, so that a drive that gets slower or a busy machine
hits all sides alike. Main thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radixtier.io.frames import FrameBuffer
from radixtier.io.posix import try_direct
from radixtier.machine import Machine, free_disk_bytes
from radixtier.store.slab import StoreError
from radixtier.store.store import IO_BYTES, THREADS
from radixtier.tools import rawio
from radixtier.tools.arguments import nbytes
from radixtier.tools.page_files import PageFiles
from radixtier.tools.scratch import scratch
from radixtier.tools.store_side import StoreSide
from radixtier.units import BadValue, format_bytes

DEFAULT_SIZE = 2 << 30
DEFAULT_PAGE = 256 << 10
PAGES = (64 << 10, DEFAULT_PAGE, 736 << 10, 2 << 20, 4 << 20)
"""Bytes: from a small model in fp8 with 16 tokens a page to a large one with 64; 736 KiB are 16 tokens of SmolLM2."""

ROUNDS = 4
FRAMES_BYTES = 512 << 20
"""The most DRAM that pages are written from and read into."""

FILES_BYTES, FILES = 512 << 20, 4096
"""The most that is kept as a file per page: enough to tell its rate."""

SHARE = 4
"""Of the free space this part, at most, is the size: store and page files lie there at the same time, others do too."""

NOISY = 0.15
"""Spread of a ratio over rounds from which the machine counts as noisy."""

EXPLANATION = """\
Measures, in turns on one file system, in GB/s (10**9 bytes per second):

  raw    the limit: transfers of the store's own size, depth and mode on its own file, by a loop, or by fio if that
         is installed and faster
  store  pages to and from the store as a server moves them: checksums, journal and all; a write counts when its
         pages would survive a restart
  files  a file per page through the page cache by one thread, as SGLang's file backend keeps them; writes are
         flushed at the end, reads find the cache cold

ratio is the median over rounds of store / raw; in a round each has a turn and another in the opposite order. A round
that is not counted comes first and fills every file.
Scratch files go to a new directory under --path, at most twice --size, and are removed at the end.
"""

KINDS: tuple[rawio.Kind, rawio.Kind] = ("write", "read")

Say = Callable[[str], None]


@dataclass(frozen=True)
class PageRow:
    """Figures for one page size: medians over rounds, GB/s."""

    page_bytes: int
    transfer_bytes: int
    raw_read_gbps: float
    raw_write_gbps: float
    store_read_gbps: float
    store_write_gbps: float
    read_ratio: float
    write_ratio: float
    file_per_page_read_gbps: float
    file_per_page_write_gbps: float
    spread: float
    """Of the ratios over rounds: largest less smallest, over the median; the larger of read and write."""


@dataclass(frozen=True)
class Plan:
    """What to measure, and where."""

    directory: Path
    size: int
    pages: Sequence[int] = PAGES
    rounds: int = ROUNDS
    """Even, so that raw limit and store come first equally often."""
    frames_bytes: int = FRAMES_BYTES


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON; 1 if it could not be measured."""
    options = parser().parse_args(argv)
    try:
        plan = make_plan(options.path, options.size, options.page, options.rounds)
        report = measure(plan, lambda line: print(line, file=sys.stderr, flush=True))
        print(render(report))
        if options.json:
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        print("radixtier bench io: interrupted; scratch files are removed", file=sys.stderr)
        return 130
    except (OSError, StoreError, BadValue) as error:
        print(f"radixtier bench io: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier bench io", description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--path", type=Path, required=True, metavar="DIR", help="an existing directory on the drive")
    made.add_argument("--size", type=nbytes, metavar="SIZE", help="bytes per side (default: 2GiB, 1/4 of the free)")
    made.add_argument("--page", type=nbytes, nargs="+", default=PAGES, metavar="SIZE", help="page sizes to measure")
    made.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds that count (default: {ROUNDS})")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return made


def make_plan(directory: Path, size: int | None, pages: Sequence[int], rounds: int) -> Plan:
    """Hold what was asked for against the free space and the free RAM.

    Raises
    ------
    OSError
        When the directory does not exist.
    BadValue
        When the size does not fit, or holds no more than a few pages.
    """
    free = free_disk_bytes(str(directory))
    most = free // SHARE
    if size is None:
        size = min(DEFAULT_SIZE, most)
    if size > most:
        raise BadValue(
            f"--size {format_bytes(size)} is more than 1/{SHARE} of the {format_bytes(free)} free in {directory}",
            f"Give at most {format_bytes(most)}, or a directory on another drive",
        )
    if rounds < 1:
        raise BadValue("--rounds must be at least 1", "Leave it out")
    if size < 2 * max(*pages, IO_BYTES):
        raise BadValue(
            f"--size {format_bytes(size)} is less than two pages or transfers",
            f"Give at least {format_bytes(2 * max(*pages, IO_BYTES))}",
        )
    # The raw loop needs twice what is under way; beyond that there is no need to take more than a part of the RAM.
    least = 2 * THREADS * max(*pages, IO_BYTES)
    return Plan(directory, size, pages, rounds, max(least, min(FRAMES_BYTES, Machine.probe().ram_bytes // 4)))


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """Run a plan.

    Returns
    -------
    dict
        ``pages``: a :class:`PageRow` per page size; the figures of the default page size, or of the first, once more
        at the top; ``depth``, ``engine``, ``raw`` (``loop``, and fio's version if it took part), ``direct``, ``size``,
        ``rounds``, ``noisy``.

    Raises
    ------
    OSError, StoreError
        When the drive fails, or the store cannot be opened there.
    """
    memory = rawio.random_memory(plan.frames_bytes)
    raw = rawio.find_raw(memory)
    with scratch(plan.directory) as directory:
        rows = []
        for page_bytes in plan.pages:
            with ExitStack() as stack:
                sides = Sides(directory, memory, page_bytes, plan.size, raw, stack)
                rows.append(_measure(sides, plan.rounds, say))
                engine, direct = sides.store.engine, sides.plan.direct
    [chosen] = [row for row in rows if row.page_bytes == DEFAULT_PAGE][:1] or rows[:1]
    return {
        **asdict(chosen),
        "pages": [asdict(row) for row in rows],
        "depth": THREADS,
        "engine": engine,
        "raw": raw.name,
        "direct": direct,
        "size": plan.size,
        "rounds": plan.rounds,
        "noisy": any(row.spread > NOISY for row in rows),
    }


class Sides:
    """The three sides for one page size; their files are removed when ``stack`` unwinds.

    Raw transfers use the slab itself: on many drives speed depends on the place. What they overwrite there is stored
    anew before it is read.
    """

    def __init__(
        self, directory: Path, memory: memoryview, page_bytes: int, size: int, raw: rawio.Raw, stack: ExitStack
    ) -> None:
        n_frames, n_pages = min(len(memory), size) // page_bytes, size // page_bytes
        frames = FrameBuffer(memory, n_frames, [(0, page_bytes, page_bytes)])
        self.page_bytes = page_bytes
        self.store = stack.enter_context(closing(StoreSide(stack.enter_context(scratch(directory)), frames, n_pages)))
        direct = try_direct(directory) is None
        self.plan = self.store.raw_plan(direct)
        self._raw = raw
        pages = [frames.views(i)[0] for i in range(n_frames)]
        kept = min(n_pages, FILES, max(1, FILES_BYTES // page_bytes))
        self._files = PageFiles(stack.enter_context(scratch(directory)) / "pages", pages, kept)

    def round(self, kind: rawio.Kind, number: int) -> dict[str, float]:
        """Measure each side once more; bytes per second.

        Raw limit and store have two turns each, there and back, so that what changes steadily hits both alike. Which
        of them comes first alternates: a drive that is throttled favours what follows the page files, the slowest.
        """
        files = self._files.read() if kind == "read" else self._files.write()
        sides: list[tuple[str, Callable[[], float]]] = [
            ("raw", lambda: self._raw.rate(kind, self.store.slab, self.plan)),
            ("store", self.store.read if kind == "read" else self.store.write),
        ]
        first, second = sides if number % 2 else sides[::-1]
        turns = [(name, rate()) for name, rate in (first, second, second, first)]
        found = {name: statistics.harmonic_mean([rate for who, rate in turns if who == name]) for name, _ in sides}
        return {f"{name}_{kind}_gbps": rate / 1e9 for name, rate in {**found, "file_per_page": files}.items()}


def _measure(sides: Sides, rounds: int, say: Say) -> PageRow:
    found: list[dict[str, float]] = [{} for _ in range(rounds + 1)]
    # First all that writes, then all that reads: a drive that still digests writes would slow whatever reads first.
    for kind in KINDS:
        sides.store.write()
        for number, figures in enumerate(found):
            latest = sides.round(kind, number)
            figures.update(latest)
            line = ", ".join(f"{name.removesuffix(f'_{kind}_gbps')} {rate:.2f}" for name, rate in latest.items())
            say(f"page {format_bytes(sides.page_bytes)}, {kind}, {f'round {number}' if number else 'warm-up'}: {line}")
    return _summarise(sides, found[1:])


def _summarise(sides: Sides, found: Sequence[dict[str, float]]) -> PageRow:
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    spread = 0.0
    for kind in KINDS:
        ratios = [one[f"store_{kind}_gbps"] / one[f"raw_{kind}_gbps"] for one in found]
        medians[f"{kind}_ratio"] = statistics.median(ratios)
        spread = max(spread, (max(ratios) - min(ratios)) / statistics.median(ratios))
    return PageRow(sides.page_bytes, sides.plan.block, spread=spread, **medians)


def render(report: dict[str, Any]) -> str:
    """Return the table and what to know about it."""
    lines = [
        f"{'GB/s':>10}  {'read':^34}  {'write':^34}",
        f"{'page':>10}" + 2 * f"  {'raw':>7} {'store':>7} {'ratio':>7} {'files':>7}  ",
    ]
    for page in report["pages"]:
        cells = [
            f"  {page[f'raw_{kind}_gbps']:7.2f} {page[f'store_{kind}_gbps']:7.2f} {page[f'{kind}_ratio']:7.2f}"
            f" {page[f'file_per_page_{kind}_gbps']:7.2f}  "
            for kind in ("read", "write")
        ]
        lines.append((f"{format_bytes(page['page_bytes']):>10}" + "".join(cells)).rstrip())
    mode = "O_DIRECT" if report["direct"] else "through the page cache: the file system refuses O_DIRECT"
    lines += [
        "",
        f"raw by {report['raw']}, {mode}; store by {report['engine']}; {report['depth']} transfers at a time;"
        f" {format_bytes(report['size'])} per side, {report['rounds']} rounds",
    ]
    if report["noisy"]:
        widest = max(page["spread"] for page in report["pages"])
        lines.append(f"noisy: a ratio spread by {widest:.0%} over the rounds; run it again on a quiet machine")
    return "\n".join(lines)
