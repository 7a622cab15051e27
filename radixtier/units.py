"""Sizes as an operator writes them: bytes (``64GiB``, ``2TB``) or tokens (``1.5Mtok``).

Owns the grammar and the exact arithmetic: a size is parsed with rational numbers and rounded down once,
so ``0.1TiB`` means the same on every platform. Pure functions; any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

ACCEPTED_FORMS = "64GiB, 512MiB, 2TB, 1.5Mtok (tokens) or plain bytes"
"""What error messages offer, and what the documentation promises."""

_FACTORS = {
    "": 1,
    "b": 1,
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_TOKEN_FACTORS = {"tok": 1, **{prefix + "tok": 1000**power for power, prefix in enumerate("kmg", 1)}}
_PATTERN = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)

SMALLEST_PLAIN_BYTES = 4096
"""A plain number below one disk block is taken for a forgotten unit (``64`` meant as GiB), not for bytes."""


class Unit(Enum):
    """What a :class:`Size` counts."""

    BYTES = "bytes"
    TOKENS = "tokens"


class BadValue(ValueError):
    """A value that cannot be used.

    Attributes
    ----------
    why, fix : str
        What is wrong, and what to write instead; neither names a flag.
    """

    def __init__(self, why: str, fix: str = f"Write {ACCEPTED_FORMS}") -> None:
        super().__init__(f"{why}. {fix}.")
        self.why = why
        self.fix = fix


@dataclass(frozen=True)
class Size:
    """An amount of KV.

    Attributes
    ----------
    amount : int
        Whole bytes or whole tokens, never negative.
    unit : Unit
        What ``amount`` counts.
    """

    amount: int
    unit: Unit = Unit.BYTES

    def __str__(self) -> str:
        return format_bytes(self.amount) if self.unit is Unit.BYTES else f"{self.amount} tokens"


def parse_size(text: str | int) -> Size:
    """Parse a size.

    Parameters
    ----------
    text : str or int
        A number with an optional fraction and a unit: ``B``, ``KB`` ... ``TB`` (powers of 1000), ``KiB`` ...
        ``TiB`` (powers of 1024), or ``tok``, ``ktok``, ``Mtok``, ``Gtok``. Case and inner spaces do not
        matter. An ``int`` is plain bytes.

    Returns
    -------
    Size
        Rounded down to a whole byte or token.

    Raises
    ------
    BadValue
        If the text is not a size; the fix lists the accepted forms.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise BadValue("not a size")
    match = _PATTERN.fullmatch(str(text))
    if match is None:
        raise BadValue("not a size")
    number, unit = Fraction(match[1]), match[2].lower()
    if number < 0:
        raise BadValue("a size cannot be negative")
    if unit in _TOKEN_FACTORS:
        return Size(int(number * _TOKEN_FACTORS[unit]), Unit.TOKENS)
    if unit not in _FACTORS:
        raise BadValue(f"unknown unit {match[2]!r}")
    if not unit and 0 < number < SMALLEST_PLAIN_BYTES:
        raise BadValue(f"that is {number} bytes, less than any page", f"Add the unit, for example {match[1]}GiB")
    return Size(int(number * _FACTORS[unit]), Unit.BYTES)


def format_bytes(amount: int) -> str:
    """Write a number of bytes for a reader, in binary units with one digit (``1.5 GiB``)."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
