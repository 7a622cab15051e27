"""``radixtier store``: looks into the store on NVMe, checks it, mends it, empties it.

Owns the subcommands, their text and their exit status: 0; 1 when something is bad or cannot be done; 2 for what is no
directory of a store; 130 when interrupted. Invariant: `ls`, `stat` and `verify` change nothing and may run beside a
server; the others hold the directories' locks. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from radixtier.cli.exits import FAILED, INTERRUPTED, OK, USAGE, with_statuses
from radixtier.cli.terminal import rewrites
from radixtier.store.journal import JournalError
from radixtier.store.slab import StoreError
from radixtier.tools import cleaning
from radixtier.tools.holders import alone, check_place
from radixtier.tools.listing import Listing, StoredPath, figures, list_paths
from radixtier.tools.offline import OfflineDrive, grouped, opened
from radixtier.tools.verification import Bad, verify
from radixtier.units import format_bytes

_COMMANDS = {
    "ls": "list the paths that a restart brings back, hottest first",
    "stat": "show identity, capacity, use and the server's last figures",
    "verify": "read every page and compare its checksum; 1 if one is bad",
    "scrub": "verify, and take what is bad off the record",
    "gc": "remove stores other than the one used last, and leftovers; shrink databases",
    "clear": "remove everything of ours",
}
MOST_BAD = 20
"""Lines about bad pages per directory."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand."""
    options = parser().parse_args(argv)
    options.directories = [path.absolute() for path in options.directories]
    status = USAGE
    try:
        for directory in options.directories:
            check_place(directory)
        status = FAILED
        return _RUN[options.command](options)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print("radixtier store: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (StoreError, JournalError, OSError) as error:
        print(f"radixtier store {options.command}: {error}", file=sys.stderr)
    return status


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier store", description="Look into a store on NVMe, check it, mend it or empty it."
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="a directory of the store")
        command.add_argument("--json", action="store_true", help="print JSON")
        if name in ("gc", "clear"):
            command.add_argument("--yes", action="store_true", help="do not ask")
    return with_statuses(made)


# Looking


def _ls(options: argparse.Namespace) -> int:
    with opened(options.directories) as drives:
        for drive in drives:
            _warn(drive)
        listings = {key: list_paths(group) for key, group in grouped(drives).items()}
    if options.json:
        found = [{"rank": rank, "store": store, **_listing(listings[rank, store])} for rank, store in listings]
        print(json.dumps(found, indent=2))
        return OK
    for (rank, store), listing in listings.items():
        print(f"store {store} (rank {rank})")
        print(f"{'pages':>8} {'tokens':>9} {'bytes':>10}  {'last use (UTC)':<19}  namespace")
        for path in listing.paths:
            size, used = format_bytes(path.nbytes), _time(path.used)
            print(f"{path.pages:>8} {path.tokens:>9} {size:>10}  {used:<19}  {_namespace(path)}")
        total = f"{len(listing.paths)} paths, {listing.pages} pages, {format_bytes(listing.nbytes)}"
        print(total + (f"; {listing.orphans} pages more that no path leads to" if listing.orphans else ""))
    return OK


def _listing(listing: Listing) -> dict[str, Any]:
    return {**listing._asdict(), "paths": [path._asdict() for path in listing.paths]}


def _namespace(path: StoredPath) -> str:
    parts = [f"extra key {path.extra_key}"] if path.extra_key is not None else []
    parts += [f"salt #{path.salt}"] if path.salt is not None else []
    return ", ".join(parts) or "default"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "unknown"


def _stat(options: argparse.Namespace) -> int:
    with opened(options.directories) as drives:
        found = [figures(drive) for drive in drives]
    if options.json:
        print(json.dumps(found, indent=2))
        return OK
    for each in found:
        print("\n".join(_stat_lines(each)), end="\n\n")
    return OK


def _stat_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['directory']}: store {found['store']} (rank {found['rank']})"]
    rows: list[tuple[str, object]] = [("in use by", f"process {found['server']}" if found["server"] else "nobody")]
    if found["trouble"]:
        rows.append(("trouble", f"{found['trouble']}: a server starts with an empty store"))
    rows += sorted(found["identity"].items())
    if "slots" in found:
        rows += [("capacity", f"{found['slots']} slots of {found['slot_bytes']} bytes")]
        rows += [("on disk", f"{format_bytes(found['bytes'])} of at most {format_bytes(found['cap'])}")]
    if "rows" in found:
        rows += [("on record", f"{found['pages']} pages in {found['rows']} rows")]
        rows += [("free", f"{found['free_extents']} extents, the largest of {found['largest_extent']} slots")]
        rows += [("quarantined", f"{found['quarantined']} slots")]
        rows += sorted(found["status"].items())
    return [*lines, *(f"  {name:<22} {value}" for name, value in rows)]


def _verify(options: argparse.Namespace) -> int:
    results = []
    with opened(options.directories) as drives:
        for drive in drives:
            _warn(drive)
            if drive.header is not None and drive.journal is not None:
                verdict = verify(drive.files.slab, drive.header, drive.journal, _progress(drive, options.json))
                results.append(_result(drive, verdict.pages, verdict.bad))
    lost = any(drive.trouble for drive in drives)
    return _report(results, options.json, "bad") or int(lost)


# Changing


def _scrub(options: argparse.Namespace) -> int:
    results = []
    with alone(options.directories), opened(options.directories) as drives:
        for drive in drives:
            if drive.journal is None:
                _warn(drive)
                continue
            done = cleaning.scrub(drive, _progress(drive, options.json))
            results.append(_result(drive, done.pages, done.bad, dropped=done.dropped, replaced=done.replaced))
            if done.replaced:
                print(f"{drive.directory}: the journal was made anew: {done.replaced}", file=sys.stderr)
    _report(results, options.json, "off the record")
    return int(any(drive.trouble for drive in drives))


def _gc(options: argparse.Namespace) -> int:
    with alone(options.directories):
        stores = [files for directory in options.directories for files in cleaning.unused(directory)]
        if stores and not options.yes and not _agreed([files.slab for files in stores], "stores"):
            return FAILED
        done = cleaning.gc(options.directories)
    if options.json:
        found = {"removed": [str(path) for path in done.removed], "bytes": done.nbytes}
        print(json.dumps(found, indent=2))
        return OK
    for path in done.removed:
        print(f"removed {path}")
    print(f"{len(done.removed)} files ({format_bytes(done.nbytes)} of stores)")
    return OK


def _clear(options: argparse.Namespace) -> int:
    with alone(options.directories):
        there = [path for directory in options.directories for path in cleaning.contents(directory)]
        if there and not options.yes and not _agreed(there, "files"):
            return FAILED
        removed = [path for directory in options.directories for path in cleaning.clear(directory)]
    if options.json:
        print(json.dumps({"removed": [str(path) for path in removed]}, indent=2))
    else:
        print(f"removed {len(removed)} files")
    return OK


def _agreed(there: Sequence[Path], what: str) -> bool:
    for path in there:
        print(path, file=sys.stderr)
    if not sys.stdin.isatty():
        print(f"radixtier store: nobody to ask: add --yes to remove these {what}", file=sys.stderr)
        return False
    print(f"Remove these {len(there)} {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "ls": _ls,
    "stat": _stat,
    "verify": _verify,
    "scrub": _scrub,
    "gc": _gc,
    "clear": _clear,
}


# Text


def _warn(drive: OfflineDrive) -> None:
    if drive.trouble:
        text = f"{drive.directory}: store {drive.files.id}: {drive.trouble}: a server starts with an empty store"
        print(text, file=sys.stderr)


def _progress(drive: OfflineDrive, quiet: bool) -> Callable[[int], None]:
    shown = rewrites(sys.stderr) and not quiet

    def progress(pages: int) -> None:
        if shown:
            print(f"\r{drive.directory}: {pages} pages", end="", file=sys.stderr, flush=True)

    return progress


def _result(drive: OfflineDrive, pages: int, bad: Sequence[Bad], **more: object) -> dict[str, Any]:
    rank, store = drive.key
    faults = [each._asdict() for each in bad]
    return {"directory": str(drive.directory), "rank": rank, "store": store, "pages": pages, "bad": faults, **more}


def _report(results: Sequence[dict[str, Any]], as_json: bool, word: str) -> int:
    """Print what was found, in the place of the progress; return 1 if anything is bad."""
    if rewrites(sys.stderr) and not as_json:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(results, indent=2))
    for result in [] if as_json else results:
        for bad in result["bad"][:MOST_BAD]:
            print(f"{result['directory']}: slot {bad['slot']}, {bad['pages']} pages: {bad['why']}")
        if len(result["bad"]) > MOST_BAD:
            print(f"{result['directory']}: and {len(result['bad']) - MOST_BAD} more; --json lists all")
        count = sum(bad["pages"] for bad in result["bad"])
        dropped = f", {result['dropped']} damaged rows dropped" if result.get("dropped") else ""
        print(f"{result['directory']}: store {result['store']}: {result['pages']} pages read, {count} {word}{dropped}")
    return int(any(result["bad"] for result in results))
