"""Runs the gates in their order, and writes the report after each.

Owns what happens when a gate raises, when the server is gone, and when somebody presses Ctrl-C: there is always a
report, and it says so. Invariant: a stand is closed whatever happens, after the report was written. Main thread.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from radixtier.gate import html
from radixtier.gate.profiles import Plan
from radixtier.gate.progress import Progress
from radixtier.gate.report import JSON_NAME, TITLES, Report, redacted, write_json, write_text
from radixtier.gate.report_text import TONES
from radixtier.gate.result import Check, Result, Verdict
from radixtier.gate.stand import Stand, Unavailable
from radixtier.live.client import Client
from radixtier.units import BadValue

Gate = Callable[[Stand, Plan, Progress], Result]

INTERRUPTED = 130

_MODULES = ("acceptance", "baseline", "recovery", "soak")


def gate(key: str) -> Gate:
    """Return a gate by its key."""
    module = import_module(f"radixtier.gate.{dict(zip(TITLES, _MODULES, strict=True))[key]}")
    found: Gate = module.run
    return found


def run(
    stand: Stand,
    plan: Plan,
    report: Report,
    out: Path,
    say: Progress,
    find: Callable[[str], Gate] = gate,
) -> int:
    """Run the gates that the report names as chosen.

    Parameters
    ----------
    out
        An existing directory for the report.
    find
        Returns a gate by its key; for tests.

    Returns
    -------
    int
        Exit status: 0 when the verdict is a pass, 1 when it is not, :data:`INTERRUPTED`.

    Raises
    ------
    OSError
        The report could not be written.
    """
    with closed(stand):
        try:
            write(report, out)
            for number, key in enumerate(report.chosen, 1):
                say.line("")
                say.line(f"{key} {TITLES[key]} ({number} of {len(report.chosen)})", "title")
                report.note = f"ended during {key}"
                result = guarded(key, find, stand, plan, say)
                report.results.append(result)
                report.server = {**report.server, **commands(stand)}
                say.line(f"{key} {result.verdict.value}", TONES[result.verdict.value])
                report.note = "" if key == report.chosen[-1] else f"ended after {key}"
                if number < len(report.chosen):
                    write(report, out)
                    if not alive(stand):
                        report.note = f"the server was gone after {key}"
                        return finish(report, out)
            report.complete = True
            return finish(report, out)
        except KeyboardInterrupt:
            report.note = report.note.replace("ended", "interrupted") or "interrupted"
            say.line(f"interrupted: the server {'stays as it was' if stand.attached else 'is stopped'}", "warn")
            write(report, out)
            return INTERRUPTED
        finally:
            say.total(0)


def finish(report: Report, out: Path) -> int:
    """Write the report for the last time; return the exit status."""
    write(report, out)
    return int(report.to_json()["verdict"]["overall"] != Verdict.PASS.value)


@contextmanager
def closed(stand: Stand) -> Iterator[None]:
    """Close a stand at the end, all of it also when somebody loses patience meanwhile."""
    try:
        yield
    finally:
        try:
            stand.close()
        except KeyboardInterrupt:
            stand.close()
            raise


def commands(stand: Stand) -> Mapping[str, str]:
    """Return how the servers of a stand were started, as a shell would take it."""
    started: Mapping[str, Sequence[str]] = getattr(stand, "commands", {})
    return {f"{name} flags": shlex.join(redacted(words)) for name, words in started.items()}


def guarded(key: str, find: Callable[[str], Gate], stand: Stand, plan: Plan, say: Progress) -> Result:
    """Run a gate; what it raises is its verdict: skipped for what a stand cannot do, else failed."""
    began = time.monotonic()
    try:
        return find(key)(stand, plan, say)
    except Unavailable as error:
        check = Check("the gate could run", Verdict.SKIPPED, str(error))
    except BadValue as error:
        check = Check("the gate could run", Verdict.FAIL, error.why, error.fix)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        check = Check("the gate ran to its end", Verdict.FAIL, reason, "See the servers' logs")
    say.line(check.reason, TONES[check.verdict.value])
    return Result(key, TITLES[key], (check,), {}, time.monotonic() - began)


def alive(stand: Stand) -> bool:
    """Whether the next gate has a server: what the gate starts itself, it starts again."""
    return not stand.attached or Client(stand.tiered.target.url, timeout_s=30.0).healthy()


def write(report: Report, out: Path) -> None:
    """Write both files."""
    found = report.to_json()
    write_json(found, out / JSON_NAME)
    write_text(out / html.HTML_NAME, html.page(found))


def chosen(text: str) -> Sequence[str]:
    """Read ``G1,G3``; returns the gates in their order.

    Raises
    ------
    BadValue
        For another name, or none.
    """
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TITLES:
            raise BadValue(f"no gate {name!r}", f"Write some of {','.join(TITLES)}")
    if not names:
        raise BadValue("no gate is named", f"Write some of {','.join(TITLES)}")
    return [key for key in TITLES if key in names]
