"""Choosing the engine for a directory.

Owns the law of choice. Invariant: a choice rests on a real write and read in the very directory, never on what
imports. Called once per directory at start, and by `radixtier doctor`; any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.io.engine import Engine
from radixtier.io.fallback import FallbackEngine
from radixtier.io.kvikio import KvikioEngine
from radixtier.io.posix import PosixEngine
from radixtier.io.trial import NOT_INSTALLED, Verdict, try_kvikio, try_posix
from radixtier.machine import block_alignment, file_system_type

logger = logging.getLogger(__name__)

FLAG = "--radix-tier-io-engine"
ENGINES = ("auto", "posix", "kvikio")

POSIX_ONLY = "posix, which is used there, does not read into GPU memory"

_WORKED = "a test write and read worked"


class Choice(NamedTuple):
    """An engine, not yet open, and one line that says why it was taken."""

    engine: Engine
    reason: str


class _Known(NamedTuple):
    make: Callable[[], Engine]
    reason: str
    no_device: str | None


class EngineFactory:
    """Makes the engines of a store: called with a directory, it returns one that is not open.

    The first call for a directory tries what works there and logs one line; it raises as :func:`choose_engine`
    does. Later calls, when a drive has come back, make the same kind again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[Path, _Known] = {}

    def _look(self, directory: Path) -> _Known:
        if directory not in self._known:
            self._known[directory] = _Known(*_choose(self._name, directory))
            logger.info("radixtier: %s", self._known[directory].reason)
        return self._known[directory]

    def __call__(self, directory: Path) -> Engine:
        return self._look(directory).make()

    def no_device(self, directory: Path) -> str | None:
        """Return why the engine of a directory does not read into GPU memory, None if it does; raises likewise."""
        return self._look(directory).no_device


def choose_engine(name: str, directory: Path) -> Choice:
    """Return the engine that ``--radix-tier-io-engine name`` means in ``directory``, which must exist.

    ``auto`` is KvikIO where it works and GPUDirect Storage is active, else posix; posix is direct where the file
    system allows it. Where a full disk allows no trial, posix is taken to be direct. Both fall back by themselves
    when a later transfer is refused.

    Raises
    ------
    ValueError
        For a name that is no engine, and for ``kvikio`` where it does not work.
    OSError
        When the directory is not there, cannot be written, or does not answer.
    """
    make, reason, _ = _choose(name, directory)
    return Choice(make(), reason)


def engine_factory(name: str) -> EngineFactory:
    """Return what makes the engines that ``--radix-tier-io-engine name`` means."""
    return EngineFactory(name)


def device_fault(name: str, directory: Path) -> str | None:
    """Say why what ``name`` means in a directory does not read into GPU memory; None if it does. Raises likewise."""
    return _choose(name, directory)[2]


def kvikio_fault(directory: Path) -> tuple[str, str] | None:
    """Say why ``--radix-tier-io-engine kvikio`` cannot be used in a directory, and the fix; None if it can.

    Raises
    ------
    OSError
        As :func:`choose_engine`.
    """
    return _fault(try_kvikio(directory), directory)


def probe_report(directory: Path) -> dict[str, Any]:
    """Return what works in a directory, for people to read; never raises.

    Returns
    -------
    dict
        ``directory``; ``error``, why nothing could be tried (None if it could); ``posix_direct`` with ``ok`` and
        ``why``; ``kvikio`` with ``importable``, ``works`` and ``why``; ``gds`` with ``ok`` and ``why``; ``auto``,
        what would be taken and why; ``file_system``, its type; ``block_alignment`` in bytes, of the device where
        the kernel tells, else of the file system; ``device``, whether KvikIO reads into GPU memory, with ``ok`` and
        ``why``. Each ``why`` is None where all is well. Texts, numbers and booleans only.
    """
    report: dict[str, Any] = {
        "directory": str(directory),
        "error": None,
        "file_system": "unknown",
        "block_alignment": None,
        "posix_direct": {"ok": False, "why": "not tested"},
        "kvikio": {"importable": False, "works": False, "why": "not tested"},
        "gds": {"ok": False, "why": "not tested"},
        "device": {"ok": False, "why": "not tested"},
        "auto": None,
    }
    try:
        posix, kvikio = try_posix(directory), try_kvikio(directory)
    except OSError as e:
        return report | {"error": e.strerror or str(e)}
    # Only now: these calls would hang where the trial did not come back.
    report |= {"file_system": file_system_type(str(directory)), "block_alignment": block_alignment(str(directory))}
    why = kvikio.why_not or kvikio.untested
    return report | {
        "posix_direct": {"ok": posix.works, "why": posix.why_not or posix.untested},
        "kvikio": {"importable": kvikio.imports, "works": kvikio.works, "why": why},
        "gds": {"ok": kvikio.works and kvikio.no_gds is None, "why": why or kvikio.no_gds},
        "device": {"ok": kvikio.works and kvikio.no_device is None, "why": why or kvikio.no_device},
        "auto": _law("auto", directory, posix, kvikio)[1],
    }


def _choose(name: str, directory: Path) -> tuple[Callable[[], Engine], str, str | None]:
    if name not in ENGINES:
        raise ValueError(f"{FLAG} {name} is not an engine: use auto, posix or kvikio")
    posix = try_posix(directory)
    return _law(name, directory, posix, Verdict() if name == "posix" else try_kvikio(directory))


def _law(name: str, directory: Path, posix: Verdict, kvikio: Verdict) -> tuple[Callable[[], Engine], str, str | None]:
    """Return what makes the engine that was chosen, why it was, and why it does not read into GPU memory."""

    def make_posix() -> Engine:
        return PosixEngine(direct=posix.why_not is None)

    def make_kvikio() -> Engine:
        return FallbackEngine(KvikioEngine(), make_posix())

    if name == "kvikio" and (fault := _fault(kvikio, directory)):
        raise ValueError(f"{FLAG} kvikio: {fault[0]}. {fault[1]}.")
    gds = "GPUDirect Storage is active" if kvikio.no_gds is None else f"no GPUDirect Storage: {kvikio.no_gds}"
    if name == "kvikio" or (name == "auto" and kvikio.works and kvikio.no_gds is None):
        how = f"untested: {kvikio.untested}" if kvikio.untested else f"{_WORKED}; {gds}"
        no_device = kvikio.untested or kvikio.no_device
        return make_kvikio, f"kvikio in {directory}, {how}", None if no_device is None else f"KvikIO: {no_device}"
    if posix.why_not:
        how = f"buffered: O_DIRECT {posix.why_not}"
    else:
        how = f"O_DIRECT untested: {posix.untested}" if posix.untested else f"O_DIRECT: {_WORKED}"
    reason = f"posix in {directory}, {how}"
    if name == "auto":
        reason += f"; not kvikio: {kvikio.why_not or kvikio.untested or gds}"
    return make_posix, reason, POSIX_ONLY if name == "posix" else f"{POSIX_ONLY}; KvikIO: {kvikio.why_not or gds}"


def _fault(kvikio: Verdict, directory: Path) -> tuple[str, str] | None:
    if kvikio.why_not is None:
        return None
    if kvikio.why_not == NOT_INSTALLED:
        return "KvikIO is not installed", "Install it (pip install kvikio-cu13), or use auto"
    return f"KvikIO does not work in {directory}: {kvikio.why_not}", "Use auto, which takes it where it works"
