"""``radixtier bench restart``: how long a server with a full NVMe tier takes to serve again, and what the index costs.

Owns the synthetic stores. Invariant: each figure comes from a process of its own that opens the store as a server does;
memory is what the process has more than before it opened the store. Main thread; SGLang is loaded in the child that
measures with its tree.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from radixtier.footprint import BLOCK, database_bytes, footprint, log_bytes
from radixtier.identity import Space, StoreIdentity, Stretch, namespace_seed
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.posix import PosixEngine
from radixtier.mover import Mover
from radixtier.store.journal import Batch, Journal, Row
from radixtier.store.restorer import Restorer
from radixtier.store.store import PageStore
from radixtier.tree.residency import ResidencyTable
from radixtier.tree.tiertree import TierTree

PAGES = (10_000, 100_000, 1_000_000)
FRAMES = 64
ROW_PAGES = 8
"""Pages per row: a turn of a chat of 512 tokens at a page size of 64."""

TURNS = 10
"""Rows per chat, one behind the other."""

MOST_TOKENS = 512
"""Per page: a page of the rig has one block, and a token at least two floats."""

LONGEST_S = 900.0

EXPLANATION = f"""\
For each number of pages, makes a store whose journal names that many (chats of {TURNS} turns of {ROW_PAGES} pages; the
pages themselves are never read, so none are written), then opens it as a restarted server does, in a process of its
own:

  open        opening the store: lock, header, journal, which slots are taken
  serving     from the start of the cache to the first request: the store is open and the hottest paths are back
  back        how many pages are back by then
  all back    until every page is back in SGLang's tree, without requests in between
  index only  the same without SGLang's tree: reading, checking, linking, residency table, TierTree
  B/page      resident memory per page: of our own index; and of SGLang's tree, which grows with tokens

Takes up to 5 GB in the directory for temporary files while it runs (set TMPDIR to move it), most of it not written.
"""


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON."""
    made = parser()
    arguments = made.parse_args(argv)
    if not 1 <= arguments.page_size <= MOST_TOKENS or min(arguments.pages) < 1:
        made.error(f"--pages takes numbers from 1, --page-size one from 1 to {MOST_TOKENS}")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        made.error(f"--json {arguments.json}: the directory does not exist")
    if arguments.child:
        measure_child = _index_child if arguments.child == "index" else _tree_child
        print(json.dumps(measure_child(arguments.directory, arguments.pages[0], arguments.page_size)))
        return 0
    rows = []
    for n_pages in arguments.pages:
        rows.append(measure(n_pages, arguments.page_size))
        print(_line(rows[-1]) if len(rows) > 1 else f"{_HEAD}\n{_line(rows[-1])}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"page_size": arguments.page_size, "rows": rows}, indent=2) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier bench restart", description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--pages", type=int, nargs="+", default=list(PAGES), metavar="N", help="pages in the index")
    made.add_argument("--page-size", type=int, default=64, metavar="TOKENS", help="tokens per page (default: 64)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    made.add_argument("--child", choices=("index", "tree"), help=argparse.SUPPRESS)
    made.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return made


def measure(n_pages: int, page_size: int) -> dict[str, Any]:
    """Make a store of ``n_pages`` pages of ``page_size`` tokens and restart on it; seconds and bytes."""
    n_pages = max(1, n_pages // (ROW_PAGES * TURNS)) * ROW_PAGES * TURNS
    with tempfile.TemporaryDirectory(prefix="radixtier-bench-") as name:
        directory = Path(name)
        fill(directory, n_pages, page_size)
        row = {"pages": n_pages, **_in_child("index", directory, n_pages, page_size)}
        if importlib.util.find_spec("sglang") is not None:
            row |= _in_child("tree", directory, n_pages, page_size)
    return row


def fill(directory: Path, n_pages: int, page_size: int) -> None:
    """Make the store: open it once, and enter rows for all its slots."""
    store, _ = _open(directory, n_pages, page_size)
    assert store.close(60.0)
    (path,) = directory.glob("*.db")
    known = Journal.open_readonly(path)
    store_id = known.store_id
    known.close()
    journal = Journal.open(
        path, store_id=store_id, n_slots=n_pages, page_tokens=page_size,
        max_bytes=database_bytes(n_pages, page_size), log_bytes=log_bytes(n_pages, page_size),
    )  # fmt: skip
    batch = Batch()
    for row in _rows(n_pages, page_size):
        batch.adds.append(row)
        if len(batch.adds) == 500:
            journal.apply(batch)
            batch = Batch()
    journal.apply(batch)
    journal.close()


def _rows(n_pages: int, page_size: int) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    space = Space()
    front = b""
    for number, slot in enumerate(range(0, n_pages, ROW_PAGES)):
        if number % TURNS == 0:
            front = namespace_seed(*space)
        stretch = Stretch.chained(space, front, rng.integers(0, 1 << 17, ROW_PAGES * page_size), page_size)
        front = stretch.keys[-1].tobytes()
        sums = rng.integers(0, 1 << 63, ROW_PAGES, dtype=np.uint64)
        yield Row(slot, stretch, sums, 1e9 + number // TURNS)


def _open(directory: Path, n_pages: int, page_size: int) -> tuple[PageStore, FrameBuffer]:
    """Open the store as a server does; a page has one block, since its bytes play no part."""
    frames = FrameBuffer(aligned_memory(FRAMES * BLOCK), FRAMES, [(0, BLOCK, BLOCK)])
    return _open_over(frames, directory, n_pages, page_size), frames


def _open_over(frames: FrameBuffer, directory: Path, n_pages: int, page_size: int) -> PageStore:
    identity = StoreIdentity("bench", "uint8", "page_first_direct", page_size, 1, 1, 1, 1)
    return PageStore(
        [directory], footprint(n_pages, frames.page_bytes, page_size), frames, page_tokens=page_size,
        identity=identity, engine=lambda _: PosixEngine(direct=True),
    )  # fmt: skip


def _in_child(what: str, directory: Path, n_pages: int, page_size: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "radixtier.cli", "bench", "restart", "--child", what]
    command += ["--directory", str(directory), "--pages", str(n_pages), "--page-size", str(page_size)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S, check=True)
    figures: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return figures


# ---- in the children ------------------------------------------------------------------------------------


def _index_child(directory: Path, n_pages: int, page_size: int) -> dict[str, Any]:
    """Restart without SGLang's tree."""
    _warm_up(page_size)
    before = _resident()
    begin = time.perf_counter()
    store, _ = _open(directory, n_pages, page_size)
    opened = time.perf_counter() - begin
    table = ResidencyTable(FRAMES + n_pages, FRAMES)
    mover = Mover(table, TierTree(table), store)
    restorer = store.restorer()
    assert restorer is not None
    _restore(mover, restorer)
    seconds = time.perf_counter() - begin
    assert mover.stats.restored == n_pages, (mover.stats.restored, n_pages)
    restorer.cancel()
    del restorer
    memory = _resident() - before
    store.close(60.0)
    return {"open_s": opened, "index_s": seconds, "index_bytes_per_page": memory / n_pages}


def _warm_up(page_size: int) -> None:
    """Restart on a tiny store: what every process has once is no cost of a page."""
    with tempfile.TemporaryDirectory(prefix="radixtier-bench-") as name:
        n_pages = ROW_PAGES * TURNS
        fill(Path(name), n_pages, page_size)
        store, _ = _open(Path(name), n_pages, page_size)
        restorer = store.restorer()
        assert restorer is not None
        _restore(Mover(table := ResidencyTable(FRAMES + n_pages, FRAMES), TierTree(table), store), restorer)
        restorer.cancel()
        store.close(60.0)


def _restore(mover: Mover, restorer: Restorer) -> None:
    ends: dict[bytes, int] = {}
    while not restorer.done:
        restorer.wait(1.0)
        for stored in restorer.take(64):
            parent = ends.pop(stored.stretch.front, None)
            pages = mover.restore(stored.stretch, stored.slots, stored.checksums, parent)
            assert pages is not None
            ends[stored.stretch.keys[-1].tobytes()] = int(pages[-1])


def _tree_child(directory: Path, n_pages: int, page_size: int) -> dict[str, Any]:
    """Restart a cache as a scheduler process does."""
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from radixtier.sglang import standalone
    from radixtier.sglang.stack import Tiers

    standalone.publish_arguments(page_size)
    # One block per page, whatever the page size.
    geometry = standalone.Geometry(page_size, page_size * FRAMES, 1, 1, BLOCK // page_size // 8)

    def open_store(frames: FrameBuffer, shape: Any, n_slots: int, wake: Any) -> PageStore:
        assert frames.page_bytes == BLOCK
        return _open_over(frames, directory, n_slots, page_size)

    standalone.build_tiered(geometry, Tiers(lambda _: FRAMES, 0, open_store))  # everything imported
    _warm_up(page_size)
    before = _resident()
    begin = time.perf_counter()
    cache = standalone.build_tiered(geometry, Tiers(lambda _: FRAMES, n_pages, open_store))
    serving = time.perf_counter() - begin
    back = cache.mover.stats.restored
    while cache._restoration is not None:
        cache.check_hicache_events()
    seconds = time.perf_counter() - begin
    assert cache.mover.stats.restored == n_pages, (cache.mover.stats.restored, n_pages)
    memory = _resident() - before
    cache.mover.close(60.0)
    return {
        "serving_s": serving,
        "back_at_serving": back,
        "all_back_s": seconds,
        "with_tree_bytes_per_page": memory / n_pages,
    }


def _resident() -> int:
    """Bytes of this process in memory, without garbage and without what the allocator keeps for later."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


_HEAD = "    pages   open s  serving s      back  all back s   index s  B/page  + tree"


def _line(row: dict[str, Any]) -> str:
    tree = row.get("with_tree_bytes_per_page", float("nan")) - row["index_bytes_per_page"]
    return (
        f"{row['pages']:>9} {row['open_s']:>8.2f} {row.get('serving_s', float('nan')):>10.2f} "
        f"{row.get('back_at_serving', 0):>9} {row.get('all_back_s', float('nan')):>11.2f} {row['index_s']:>9.2f} "
        f"{row['index_bytes_per_page']:>7.0f} {tree:>7.0f}"
    )
