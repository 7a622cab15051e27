"""Faults of the drive under a server that runs: the file that says them.

Owns how that file is replaced. Law: a server reads all of the old faults or all of the new ones, and sees the new ones
within :data:`SEEN_S`. The server was started with the variable `radixtier.io.live_faults.VARIABLE`. Any thread.
"""

from __future__ import annotations

from pathlib import Path

from radixtier.io.live_faults import CHECK_S

SEEN_S = 3 * CHECK_S
"""After which a server has seen new faults, seconds."""


def write_faults(file: Path, text: str) -> None:
    """Replace a faults file in one step; an empty text is a drive without faults."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.rename(file)
