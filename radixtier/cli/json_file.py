"""``--json FILE`` of what measures: a report as JSON, in a file or on the screen in the place of the text.

Owns the flag. Main thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

SCREEN = Path("-")


class HasJson(Protocol):
    """Options with the flag."""

    @property
    def json(self) -> Path | None:
        """Where the report goes."""


def add_json(parser: argparse.ArgumentParser | argparse._ArgumentGroup, what: str = "the report") -> None:
    """Add the flag."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} here, or to - for the screen")


def check_json(options: argparse.Namespace) -> None:
    """Raise `OSError` where the file cannot be written: that is better known before the work than after."""
    if options.json not in (None, SCREEN):
        options.json.open("a").close()


def write_json(options: HasJson, value: Any) -> None:
    """Write what the flag asks for."""
    if options.json == SCREEN:
        print(json.dumps(value, indent=2))
    elif options.json is not None:
        options.json.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def show(options: HasJson, lines: Sequence[str]) -> None:
    """Print the text of a report, unless the screen has the JSON."""
    if options.json != SCREEN:
        print("\n".join(lines))
