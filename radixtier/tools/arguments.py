"""Kinds of command-line arguments that several tools take. Pure; any thread."""

from __future__ import annotations

import argparse

from radixtier.units import BadValue, Unit, parse_size


def nbytes(text: str) -> int:
    """Parse a size in bytes, more than 0; for ``type=`` of an argument."""
    try:
        size = parse_size(text)
    except BadValue as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size.unit is not Unit.BYTES or not size.amount:
        raise argparse.ArgumentTypeError(f"{text}: give bytes, such as 64GiB or 256KiB")
    return size.amount
