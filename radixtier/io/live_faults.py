"""Faults of a running server: what ``RADIXTIER_FAULTS`` asks for, on every engine of the process.

For tests and acceptance runs only: no flag leads here, and a server that has it says so at its start. Owns the grammar,
the engines that are to misbehave, and a thread that looks at the file form. Invariant: a text that is not understood
changes nothing; at the start it is an error. Any thread.

The grammar: ``NAME=AMOUNT``, separated by commas; an empty text is a drive that behaves.

==========  ===============================================================================
``slow``    times as long as it takes, 1 or more: reads and writes share what is left of the bandwidth
``error``   share of the calls that fail with EIO, 0 to 1: reads, writes and syncs
``flip``    share of the transfers that change one bit, 0 to 1: reads and writes
==========  ===============================================================================

Each may end with ``_read``, ``_write`` or (not ``flip``) ``_sync`` for that operation alone. ``@FILE`` takes the text
from a file, and again :data:`CHECK_S` after it changed; replace it by a rename, so that nobody reads half of it.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from radixtier.io.engine import Engine
from radixtier.io.faults import FaultEngine, Lane, Op

logger = logging.getLogger(__name__)

VARIABLE = "RADIXTIER_FAULTS"

CHECK_S = 0.2
"""Pause between two looks at the file."""

_OPS: dict[str, tuple[Op, ...]] = {
    "error": ("read", "write", "sync"),
    "flip": ("read", "write"),
    "slow": ("read", "write"),
}
_ALONE: dict[str, tuple[Op, ...]] = _OPS | {"slow": ("read", "write", "sync")}


class Wanted(NamedTuple):
    """One item of the text."""

    kind: str
    ops: tuple[Op, ...]
    amount: float


def parse_faults(text: str) -> list[Wanted]:
    """Parse a text without ``@``; the order of the result is that in which faults are tried.

    Raises
    ------
    ValueError
        Names the item and says what is wrong with it.
    """
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    wanted = [_parse(item) for item in items]
    seen: set[tuple[str, Op]] = set()
    for each, item in zip(wanted, items, strict=True):
        for op in each.ops:
            if (each.kind, op) in seen:
                raise ValueError(f"{item!r} is the second {each.kind} for {op}s")
            seen.add((each.kind, op))
    # What is slow decides what becomes of a call, so it comes last.
    return sorted(wanted, key=lambda each: each.kind == "slow")


def _parse(item: str) -> Wanted:
    name, equals, number = item.partition("=")
    kind, _, op = name.strip().partition("_")
    if not equals or kind not in _OPS:
        raise ValueError(f"{item!r} is no fault: write one of {', '.join(_OPS)}, then =AMOUNT")
    ops = _OPS[kind] if "_" not in name else tuple(each for each in _ALONE[kind] if each == op)
    if not ops:
        raise ValueError(f"{item!r}: {kind} knows {', '.join(f'{kind}_{each}' for each in _ALONE[kind])}")
    try:
        amount = float(number)
    except ValueError:
        raise ValueError(f"{item!r}: {number.strip()!r} is no number") from None
    if kind == "slow" and not 1 <= amount < math.inf:
        raise ValueError(f"{item!r}: write how many times as long it takes, 1 or more")
    if kind != "slow" and not 0 <= amount <= 1:
        raise ValueError(f"{item!r}: write a share of the calls, 0 to 1")
    return Wanted(kind, ops, amount)


def apply_faults(engine: FaultEngine, wanted: list[Wanted]) -> None:
    """Let an engine misbehave in these ways, and in no others."""
    engine.clear()
    lane = Lane()
    for kind, ops, amount in wanted:
        for op in ops:
            if kind == "slow":
                engine.slow(op, amount, lane)
            elif kind == "error":
                engine.error(op, errno.EIO, chance=amount)
            else:
                engine.flip(op, chance=amount)


class LiveFaults:
    """Keeps engines as faulty as a text, or a file with one, says.

    Parameters
    ----------
    source
        A text, or ``@FILE``.

    Raises
    ------
    ValueError
        It is not understood, or the file cannot be read.
    """

    def __init__(self, source: str) -> None:
        self._file = Path(source[1:]) if source.startswith("@") else None
        self._lock = threading.Lock()
        self._engines: weakref.WeakSet[FaultEngine] = weakref.WeakSet()
        self._stop = threading.Event()
        self._complaint = ""
        self._text = source if self._file is None else self._read(self._file)
        try:
            self._wanted = parse_faults(self._text)
        except ValueError as error:
            raise ValueError(f"{VARIABLE}={source}: {error}") from None

    def wrap(self, engine: Engine) -> FaultEngine:
        """Put faults in front of an engine that is not open yet."""
        faulty = FaultEngine(engine)
        with self._lock:
            apply_faults(faulty, self._wanted)
            self._engines.add(faulty)
        return faulty

    def look(self) -> bool:
        """Read the file again; whether it asked for something else. Never raises."""
        if self._file is None:
            return False
        try:
            text = self._read(self._file)
            if text == self._text:
                return False
            self._text = text
            wanted = parse_faults(text)
        except ValueError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.warning("radixtier: %s=@%s changes nothing: %s", VARIABLE, self._file, error)
            return False
        self._complaint = ""
        with self._lock:
            self._wanted = wanted
            for engine in self._engines:
                apply_faults(engine, wanted)
        logger.warning("radixtier: %s: transfers now have the faults %r", VARIABLE, text)
        return True

    def watch(self) -> None:
        """Look at the file every :data:`CHECK_S`, in a thread of its own; nothing to do for a text."""
        if self._file is not None:
            threading.Thread(target=self._watch, name="radixtier-faults", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(CHECK_S):
            self.look()

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{VARIABLE}=@{file}: cannot be read ({error})") from None


def with_faults(make: Callable[[Path], Engine], env: Mapping[str, str]) -> Callable[[Path], Engine]:
    """Return ``make``, or what makes its engines faulty where the environment asks for that.

    Raises
    ------
    ValueError
        The variable is not understood.
    """
    source = env.get(VARIABLE, "").strip()
    if not source:
        return make
    faults = LiveFaults(source)
    logger.warning("radixtier: %s=%s: transfers to and from NVMe FAIL ON PURPOSE; unset it to serve", VARIABLE, source)
    faults.watch()
    return lambda directory: faults.wrap(make(directory))
