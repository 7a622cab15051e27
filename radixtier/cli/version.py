"""``radixtier --version``: what is installed here, and whether it fits.

Owns the lines. Invariant: nothing is imported for it, so that it takes no time where torch would. Main thread.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from radixtier import SGLANG_VERSION, __version__

KVIKIO = ("kvikio-cu13", "kvikio-cu12", "kvikio")
"""Distributions of which one brings KvikIO."""


class ShowVersion(argparse.Action):
    """An option that prints the lines and ends with status 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and leave."""
        print("\n".join(lines()))
        parser.exit()


def lines() -> list[str]:
    """Return a line for radixtier and one for each thing that it works with."""
    kvikio = next(filter(None, map(_installed, KVIKIO)), None)
    parts = {
        "SGLang": _sglang(_installed("sglang")),
        "Python": platform.python_version(),
        "torch": _installed("torch") or "not installed",
        "KvikIO": kvikio or "not installed (optional, for GPUDirect Storage)",
    }
    return [f"radixtier {__version__} for SGLang {SGLANG_VERSION}", *(f"  {part:<7} {n}" for part, n in parts.items())]


def _sglang(found: str | None) -> str:
    if found is None:
        return "not installed: pip install 'radixtier[sglang]'"
    if found != SGLANG_VERSION:
        return f"{found}, not tested: radixtier doctor tells what moved; or pip install sglang=={SGLANG_VERSION}"
    return f"{found}, compatible"


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
