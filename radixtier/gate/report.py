"""The report of a run as data: ``report.json``.

Owns its schema and its version. Invariant: a file appears whole or not at all, and says itself whether the run came to
its end; the whole passes only if that run came to its end and every gate that was asked for passed. Any thread.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from radixtier import __version__
from radixtier.gate.result import Result, Verdict, together
from radixtier.tools.host import check_gpu

SCHEMA_VERSION = 1
JSON_NAME = "report.json"

TITLES = {"G1": "Acceptance", "G2": "Baseline", "G3": "Cold recovery", "G4": "Stability"}
"""Of the gates, in their order."""

NOT_ASKED = "not asked for"
NOT_REACHED = "not run: the run ended before"


_NAMES = r"(?:api[-_]?key|passw(?:or)?d|passphrase|secret|credential|(?<![a-z0-9])token(?![a-z0-9]))"
_SECRET = re.compile(rf"--[\w-]*{_NAMES}[\w-]*", re.IGNORECASE)
_VARIABLE = re.compile(
    r"\w*(?:token|_key|apikey|password|passwd|passphrase|secret|credential)s?(?:_[a-z]*)?", re.IGNORECASE
)
_MEMBER = re.compile(
    r"""(["'][^"']*(?:key|token|passw(?:or)?d|passphrase|secret|credential)["']\s*:\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,}\]"']+)""",
    re.IGNORECASE,
)
"""Of JSON: the name of something secret, and its value."""
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[^\s\"']+", re.IGNORECASE)
_USER = re.compile(r"(://)[^/\s@]+@")


class BadReport(ValueError):
    """A file that is no report; the message names it and says what is wrong."""


@dataclass
class Report:
    """What is known of a run so far.

    Attributes
    ----------
    command
        The command line of the run.
    chosen
        The gates that were asked for.
    server
        How the server was started or reached: ``url`` or ``flags``, and what else there is to say.
    plan
        Profile, levels and limits.
    results
        Of the gates that have ended.
    complete
        Whether the run came to its end.
    note
        Why it did not.
    """

    command: str
    chosen: Sequence[str]
    server: Mapping[str, Any]
    plan: Mapping[str, Any]
    results: list[Result] = field(default_factory=list)
    complete: bool = False
    note: str = ""
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    _began: float = field(default_factory=time.monotonic)

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``report.json`` has it."""
        found = {result.key: result for result in self.results}
        verdicts = {key: found[key].verdict if key in found else Verdict.SKIPPED for key in TITLES}
        reasons = {key: found[key].reasons if key in found else [self._absent(key)] for key in TITLES}
        overall = together(verdicts.values())
        lacking = [key for key in TITLES if key in self.chosen and verdicts[key] is Verdict.SKIPPED]
        if overall is Verdict.PASS and (lacking or not self.complete):
            overall = Verdict.SKIPPED
        reasons["overall"] = [f"{key} did not run: {reasons[key][0]}" for key in lacking]
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": {**{key: verdict.value for key, verdict in verdicts.items()}, "overall": overall.value},
            "reasons": reasons,
            "complete": self.complete,
            "note": self.note,
            "gates": {key: gate_json(found[key]) for key in TITLES if key in found},
            "command": self.command,
            "server": dict(self.server),
            "plan": dict(self.plan),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._began, 1),
        }

    def _absent(self, key: str) -> str:
        if self.note.endswith(f"during {key}"):
            return self.note
        return NOT_REACHED if key in self.chosen else NOT_ASKED


def gate_json(result: Result) -> dict[str, Any]:
    """Return one gate as ``report.json`` has it."""
    return {
        "title": result.title,
        "verdict": result.verdict.value,
        "seconds": round(result.seconds, 1),
        "checks": [
            {"name": check.name, "verdict": check.verdict.value, "reason": check.reason, "fix": check.fix}
            for check in result.checks
        ],
        "figures": dict(result.figures),
    }


def machine() -> dict[str, Any]:
    """Return what the run's machine is: processor, cores that may be used, RAM, GPU, kernel."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpu": check_gpu().found,
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on, as far as it is installed here."""
    found = {"radixtier": __version__, "python": platform.python_version()}
    for name in ("sglang", "torch"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def redacted(flags: Sequence[str]) -> list[str]:
    """Return arguments with the values of keys, tokens and passwords left out: reports are handed around.

    Values of flags and of variables (``NAME_TOKEN=...``), members of JSON, bearer tokens, and users in URLs.
    """
    shown: list[str] = []
    hide = False
    for word in flags:
        shown.append("..." if hide and not word.startswith("--") else _redacted(word))
        hide = bool(_SECRET.fullmatch(word))
    return shown


def _redacted(word: str) -> str:
    name, equals, _ = word.partition("=")
    if equals and (_SECRET.fullmatch(name) or _VARIABLE.fullmatch(name)):
        return f"{name}=..."
    return _USER.sub(r"\1...@", _BEARER.sub(r"\1 ...", _MEMBER.sub(r'\1"..."', word)))


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step; raises `OSError`."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write a report; what JSON cannot say becomes text, what is no number null."""
    write_text(path, json.dumps(plain(report), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Return a value in what JSON has: tuples become lists, paths and the like text, NaN and infinity null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if value - value == 0 else None
    number = getattr(value, "item", None)
    return plain(number()) if callable(number) else str(value)


def read_json(path: Path) -> dict[str, Any]:
    """Read a report back.

    Raises
    ------
    BadReport
        The file cannot be read, or is no report of this schema.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise BadReport(f"{path}: {why}: name a {JSON_NAME} of radixtier gate run") from None
    if wrong := list(faults(report)):
        raise BadReport(f"{path}: {wrong[0]}: name a {JSON_NAME} of radixtier gate run")
    found: dict[str, Any] = report
    return found


def faults(report: Any) -> Iterable[str]:
    """Yield what keeps a value from being a report of this schema."""
    if not isinstance(report, dict) or "schema_version" not in report:
        yield "it is no report"
        return
    if report["schema_version"] != SCHEMA_VERSION:
        yield f"its schema is {report['schema_version']} instead of {SCHEMA_VERSION}"
        return
    words = {verdict.value for verdict in Verdict}
    verdict = report.get("verdict")
    if not isinstance(verdict, dict) or set(verdict) != {*TITLES, "overall"} or not _all_in(verdict.values(), words):
        yield f"its verdict has not one of {', '.join(sorted(words))} for each gate"
    reasons = report.get("reasons")
    if not isinstance(reasons, dict) or not all(_texts(reasons.get(key)) for key in TITLES):
        yield "it has no reasons"
    elif not _texts(reasons.get("overall", [])):
        yield "its reasons for the whole are no texts"
    gates = report.get("gates")
    if not isinstance(gates, dict) or not set(gates) <= set(TITLES):
        yield "it has no gates"
    else:
        for key, gate in gates.items():
            yield from (f"{key}: {wrong}" for wrong in _gate_faults(gate, words))
    for name, kind in (("complete", bool), ("command", str), ("started", str)):
        if not isinstance(report.get(name), kind):
            yield f"it has no {name}"
    if not _duration(report.get("seconds")):
        yield "it has no seconds"


def _gate_faults(gate: Any, words: set[str]) -> Iterable[str]:
    if not isinstance(gate, dict) or not _all_in([gate.get("verdict")], words):
        yield "it has no verdict"
        return
    if not isinstance(gate.get("figures"), dict):
        yield "it has no figures"
    if not _duration(gate.get("seconds")):
        yield "it has no seconds"
    checks = gate.get("checks")
    if not isinstance(checks, list):
        yield "it has no checks"
        return
    for check in checks:
        whole = isinstance(check, dict) and set(check) == {"name", "verdict", "reason", "fix"}
        if not whole or not _texts(list(check.values())) or check["verdict"] not in words:
            yield f"a check is not whole: {str(check)[:80]}"


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _all_in(values: Iterable[Any], words: set[str]) -> bool:
    return all(isinstance(value, str) and value in words for value in values)


def _duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
