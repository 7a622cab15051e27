"""Reads files of JSON lines, compressed with gzip or not, and says of each line that cannot be used why.

Owns what is common to all formats: decoding, JSON without its extensions, numbers within bounds, the one line of text
that names a fault, and the count of lines that were left out. A line is read when it is asked for; one line at a
time is in memory. One thread.
"""

from __future__ import annotations

import gzip
import json
import math
import reprlib
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

T = TypeVar("T")

LONGEST = 64 << 20
"""Bytes of a line; what is longer is no trace."""

MOST_TOKENS = (1 << 31) - 1
"""Tokens of a prompt or an answer."""

MOST_BLOCKS = 1 << 24
"""Blocks of a prompt: a context of 8 G tokens in blocks of 512."""

_GZIP = b"\x1f\x8b"


class BadTrace(ValueError):
    """A line that cannot be replayed; the text names file, line and reason."""

    def __init__(self, file: Path, line: int, why: str) -> None:
        super().__init__(f"{file}:{line}: {why}")


class Unusable(ValueError):
    """Why a line cannot be used; who reads the file adds its place."""


class Lines:
    """The lines of a file that are not blank, as the values that JSON says they are.

    Parameters
    ----------
    file
        Text in UTF-8, or the same compressed with gzip, whatever its name.
    skip_bad
        Count lines that cannot be used and go on, instead of raising on the first. A damaged archive ends there.
    """

    def __init__(self, file: Path, skip_bad: bool = False) -> None:
        self.file = file
        self.skip_bad = skip_bad
        self.skipped = 0
        """Lines left out so far."""
        self.first_bad: str | None = None
        """Where and why the first of them was."""

    def understood(self, understand: Callable[[Any], T]) -> Generator[T, None, None]:
        """Yield what ``understand`` makes of each line; it raises :class:`Unusable` where it cannot.

        Raises
        ------
        BadTrace
            On the first line that cannot be used, unless they are skipped; when there is no usable one at all.
        OSError
            When the file cannot be opened or read.
        """
        number = good = bad = 0
        for number, raw in _numbered(self.file):
            try:
                value = understand(_parsed(raw, number))
            except Unusable as why:
                error = BadTrace(self.file, number, str(why))
                if not self.skip_bad:
                    raise error from None
                bad += 1
                self.skipped += 1
                self.first_bad = self.first_bad or str(error)
            else:
                good += 1
                yield value
        if not good:
            raise BadTrace(self.file, 1, f"none of {bad} lines can be used" if bad else "the trace is empty")


def shown(value: object) -> str:
    """Write a value for an error message, cut to a length that fits a line."""
    return _SHORT.repr(value)


def whole(value: object, name: str, most: int = MOST_TOKENS, least: int = 0) -> int:
    """Check that a value is a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise Unusable(f"{name} {shown(value)} is no whole number from {least} to {most}")
    return value


def seconds(value: object, name: str) -> float:
    """Check that a value is a number that can be a time: finite, 0 at least."""
    if type(value) is not int and type(value) is not float:
        raise Unusable(f"{name} {shown(value)} is no number")
    if not 0 <= value < 1e18:
        raise Unusable(f"{name} {shown(value)} is no time from 0 on")
    return float(value)


def known(line: dict[str, Any], fields: tuple[str, ...]) -> None:
    """Check that an object has no other fields than these."""
    for name in line:
        if name not in fields:
            raise Unusable(f"unknown field {shown(name)}: a line has {', '.join(fields)}")


def _numbered(file: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not blank, with their numbers from 1; None where the file cannot be read on."""
    number = 0
    with file.open("rb") as plain:
        packed = plain.peek(2)[:2] == _GZIP
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if packed else plain
        try:
            while line := stream.readline(LONGEST):
                number += 1
                yield from [] if line.isspace() else [(number, line)]
                while len(line) == LONGEST and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            yield number + 1, None


def _parsed(raw: bytes | None, number: int) -> Any:
    if raw is None:
        raise Unusable("the archive is damaged or cut off here")
    if len(raw) == LONGEST and not raw.endswith(b"\n"):
        raise Unusable(f"longer than {LONGEST >> 20} MiB")
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise Unusable("not text in UTF-8") from None
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, Unusable):
            raise
        cut = "" if raw.endswith(b"\n") else "; the file ends in the middle of it, and --skip-bad leaves it out"
        raise Unusable(f"not a line of JSON{cut}") from None


def _refuse(name: str) -> Any:
    raise Unusable(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Unusable(f"{shown(text)} is too large a number")
    return number


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 40
