"""Kinds of arguments that several commands take. Pure; any thread."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def port(text: str) -> int:
    """Parse a TCP port; for ``type=`` of an argument."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text}: give a TCP port, from 1 to 65535")
    return int(text)


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return what parses seconds from ``least`` to ``most``; for ``type=`` of an argument."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{text}: give seconds from {least:g} to {most:g}")
        return found

    return parse
