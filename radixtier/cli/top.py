"""``radixtier top``: what a running server's tiers hold and do, as it happens.

Owns the loop and the exit status: 0 after q; 130 after Ctrl-C; 1 when ``--once`` gets no answer. Invariant: the
terminal is as it was when this ends. A server that stops answering is shown as silent and asked on. Main thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live

from radixtier.cli.control_errors import status_of
from radixtier.cli.exits import INTERRUPTED, OK, with_statuses
from radixtier.cli.kinds import seconds
from radixtier.cli.top_format import ASCII, UNICODE, Glyphs
from radixtier.cli.top_keys import Keys
from radixtier.cli.top_sections import Look
from radixtier.cli.top_source import Source, ask
from radixtier.cli.top_view import frame
from radixtier.control.arguments import add_server, client
from radixtier.control.client import ControlClient, ControlError
from radixtier.live.ending import end_like_ctrl_c
from radixtier.units import BadValue

PROG = "radixtier top"

DEFAULT_S = 2.0
SHORTEST_S, LONGEST_S = 0.2, 3600.0

LOOK_S = 0.1
"""Seconds between two looks at keys and at the window's size."""

PLAIN_WIDTH = 100
"""Columns of what is no terminal."""

LEAST_WIDTH = 40

EXPLANATION = """\
Keys: q quits, p pauses, s shows the coldest subtrees in the place of the hottest. Where standard output is no terminal,
or TERM=dumb, it is printed once, as plain text. NO_COLOR leaves out colours.
"""


def main(argv: Sequence[str]) -> int:
    """Watch, or print once."""
    options = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names of sessions may be in any script
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        server = client(options)
    except (BadValue, OSError) as error:
        return _failed(error)
    try:
        if options.once or options.json or not _interactive(console):
            return _once(server, options.json, console)
        end_like_ctrl_c()
        return _watch(server, options.interval, console)
    except ControlError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _failed(error: Exception) -> int:
    print(f"{PROG}: {error}", file=sys.stderr)
    return status_of(error)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog=PROG,
        description="Watch a running server: tiers, where answers come from, drives, sessions, health.",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    interval_help = f"time between two questions, from {SHORTEST_S:g} (default: {DEFAULT_S:g})"
    made.add_argument(
        "--interval", type=seconds(SHORTEST_S, LONGEST_S), default=DEFAULT_S, metavar="SECONDS", help=interval_help
    )
    made.add_argument("--once", action="store_true", help="print one picture as text, and end")
    add_server(made)
    return with_statuses(made)


def _once(server: ControlClient, as_json: bool, console: Console) -> int:
    picture = ask(server)
    if as_json:
        print(json.dumps(dataclasses.asdict(picture), indent=2))
        return OK
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    look = Look(max(LEAST_WIDTH, console.width) if known else PLAIN_WIDTH, _glyphs(console), time.time())
    for line in frame(picture, None, look):
        print(line.plain.rstrip())
    return OK


def _watch(server: ControlClient, interval_s: float, console: Console) -> int:
    source = Source(server, interval_s)
    window = _Window(source, console, interval_s)
    try:
        with Keys(sys.stdin.fileno()) as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while not window.leave:
                window.draw(live)
                for key in keys.pressed(LOOK_S).lower():
                    window.press(key)
    finally:
        source.close()
    return OK


class _Window:
    """What a terminal shows, drawn again only when it would look different."""

    def __init__(self, source: Source, console: Console, interval_s: float) -> None:
        self.leave = False
        self._source = source
        self._console = console
        self._interval_s = interval_s
        self._glyphs = _glyphs(console)
        self._which = "hottest"
        self._paused = False
        self._drawn: object = None

    def draw(self, live: Live) -> None:
        """Draw what the server said last."""
        count, picture, silence = self._source.latest()
        size, now = self._console.size, time.time()
        # A silent server is drawn every second, as its silence grows.
        wanted = (count, self._which, self._paused, size, int(now) if silence else 0)
        if wanted == self._drawn:
            return
        self._drawn = wanted
        lines = frame(
            picture,
            silence,
            Look(size.width, self._glyphs, now),
            height=size.height,
            which=self._which,
            paused=self._paused,
            interval_s=self._interval_s,
        )
        live.update(Group(*lines), refresh=True)

    def press(self, key: str) -> None:
        """Do what a key is for."""
        if key == "q":
            self.leave = True
        elif key == "p":
            self._paused = not self._paused
            self._source.pause(self._paused)
        elif key == "s":
            self._which = "coldest" if self._which == "hottest" else "hottest"


def _interactive(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty() and sys.stdout.isatty()


def _glyphs(console: Console) -> Glyphs:
    return UNICODE if "utf" in (console.encoding or "").lower() else ASCII
