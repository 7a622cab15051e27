"""Runs the gates in their order, and writes the report after each.

Owns what happens when a gate raises, when the server is gone, and when somebody presses Ctrl-C: there is always a
report, and it says so. Invariant: a stand is closed whatever happens, after the report was written. Main thread.
"""

from __future__ import annotations

import re
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
from radixtier.live.server import ServerFailed
from radixtier.units import BadValue

Gate = Callable[[Stand, Plan, Progress], Result]

INTERRUPTED = 130

NEVER_READY = re.compile(r"before it was ready|was not ready after")
"""In what `ServerFailed` says of a server that did not come up, other than of one that died."""

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
                try:
                    result = guarded(key, find, stand, plan, say)
                except NotStarted as error:
                    report.results.append(error.result)
                    report.note = f"no server started in {key}, the next gates would fail the same way"
                    if not report.results[:-1]:
                        return finish(report, out)
                    result = report.results.pop()
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
        except KeyboardInterrupt as interruption:
            report.note = report.note.replace("ended", "interrupted") or "interrupted"
            # A gate that can judge what it has so far leaves that here.
            if isinstance(partial := getattr(interruption, "result", None), Result):
                report.results.append(partial)
            write(report, out)  # before anything is said: the terminal may be gone
            say.line(f"interrupted: the server {'is left running' if stand.attached else 'is stopped'}", "warn")
            return INTERRUPTED
        finally:
            say.total(0)


class NotStarted(Exception):
    """A server did not start; has what the gate came to."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


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
    """Run a gate; what it raises is its verdict: skipped for what a stand cannot do, else failed.

    Raises
    ------
    NotStarted
        A server did not come up.
    """
    began = time.monotonic()
    started = True
    try:
        return find(key)(stand, plan, say)
    except Unavailable as error:
        check = Check("the gate could run", Verdict.SKIPPED, str(error))
    except BadValue as error:
        check = Check("the gate could run", Verdict.FAIL, error.why, error.fix)
    except Exception as error:
        # What follows the first line is the end of a log.
        first = next(iter(str(error).splitlines()), "").rstrip(":")
        reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
        check = Check("the gate ran to its end", Verdict.FAIL, reason, "See the servers' logs")
        started = not (isinstance(error, ServerFailed) and NEVER_READY.search(first))
        for line in str(error).splitlines()[1:]:
            say.line(line, "dim")
    say.line(check.reason, TONES[check.verdict.value])
    result = Result(key, TITLES[key], (check,), {}, time.monotonic() - began)
    if not started:
        raise NotStarted(result)
    return result


def hang_up(stand: Stand) -> None:
    """End every request that is under way, so that nobody has to wait for its answer; none can be sent afterwards."""
    for side in (stand.tiered, stand.stock):
        client = getattr(getattr(side, "target", None), "client", None)
        if isinstance(client, Client):
            client.hang_up()


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
