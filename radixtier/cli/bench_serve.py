"""``radixtier bench serve``: how a server answers what its users ask.

Owns the run from the command line to the exit status: 0; 1 if a server answered nothing, or could not be started or
reached; 2 for a command line that cannot be run; 130 when interrupted, with the figures so far. Invariant: a server
started here is stopped here, and one that was running is left as it was. Main thread.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from radixtier import __version__
from radixtier.cli.bench_serve_options import PROG, Options, Refusal, parser, read
from radixtier.cli.exits import FAILED, INTERRUPTED, OK, USAGE
from radixtier.cli.json_file import SCREEN, write_json
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.screen import Screen
from radixtier.live.server import ServerFailed
from radixtier.load import tables
from radixtier.load.compare import Stage, compare, sides, summary
from radixtier.load.connect import Found, NoTarget, connect
from radixtier.load.figures import figures
from radixtier.load.launch import Launched
from radixtier.load.play import Played
from radixtier.load.progress import Progress
from radixtier.load.runs import known, load, until_interrupted, warm_up

__all__ = ["main", "parser"]


def main(argv: Sequence[str]) -> int:
    """Run the loads, print the tables, write the JSON."""
    try:
        options = read(argv)
    except Refusal as refusal:
        print(f"{PROG}: {refusal}", file=sys.stderr)
        return USAGE
    end_like_ctrl_c()
    screen = Screen(sys.stderr if options.json == SCREEN else sys.stdout)
    report = _head(options, argv)
    try:
        with _logs() as logs:
            run = _compare if options.compare else _measure
            return run(options, logs, screen, report)
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (NoTarget, ServerFailed, OSError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return FAILED


def _measure(options: Options, logs: Path, screen: Screen, report: dict[str, Any]) -> int:
    """Ask one server, at one concurrency after the other."""
    plan = options.plan
    progress = Progress(plan.workload.requests * len(options.levels))
    done: dict[int, Played] = {}
    with _server(options, logs, progress) as target, until_interrupted(target) as stop:
        report["target"] = _described(target)
        screen.line(f"{options.workload} on {target.url}, {report['target']['protocol']}, {target.model}", "title")
        if known(warm_up(target, plan, max(options.levels), stop=stop)):
            screen.line(f"the server has seen this load before: give it another with --seed {plan.seed + 1}", "bad")
        for level in options.levels:
            if stop.is_set():
                break
            progress.begin(f"concurrency {level}")
            done[level] = load(target, plan, level, str(level), on_exchange=progress, stop=stop)
            progress.clear()
            found = report["levels"][str(level)] = figures(done[level])
            for line in [*tables.load_lines(found, level), *tables.error_lines([done[level]])]:
                screen.line(line)
    if len(done) > 1:
        screen.line()
        for line in tables.level_table({level: report["levels"][str(level)] for level in done}):
            screen.line(line)
    report["complete"] = True
    answered = any(answer.ok for each in done.values() for answer in each.answers)
    return _end(options, screen, report, stop.is_set(), answered)


def _compare(options: Options, logs: Path, screen: Screen, report: dict[str, Any]) -> int:
    """Ask two servers in turns."""
    assert options.compare is not None
    plan = options.plan
    progress = Progress(plan.workload.requests * len(options.levels) * options.rounds * 2)
    pair = sides(options.names, options.compare, logs)
    for letter, name, command in zip("AB", options.names, options.commands, strict=True):
        report["sides"][letter] = {"name": name, "command": command}
        screen.line(f"{letter}, {name}: {command}", "dim")
    with Stage(pair, lambda url: _connect(options, url), options.apart, progress) as stage:
        found = compare(stage, plan, options.levels, options.rounds, progress)
        progress.clear()
    report["target"] = {side.name: _described(side.target) for side in pair if side.target is not None}
    answered = dict.fromkeys("AB", False)
    for level, rounds in found.rounds.items():
        report["levels"][str(level)] = {"rounds": rounds, **summary(rounds)}
        if rounds:
            for side in answered:
                answered[side] = answered[side] or any(each[side]["requests"] for each in rounds)
            for line in tables.ratio_lines(report["levels"][str(level)], options.names, level, len(rounds)):
                screen.line(line)
    report["complete"] = found.failure is None
    mute = [name for name, each in zip(options.names, answered.values(), strict=True) if not each]
    whom = [] if found.failure is not None else mute
    status = _end(options, screen, report, found.interrupted, not whom, ", ".join(whom))
    if found.failure is not None:
        raise found.failure
    return status


def _end(
    options: Options, screen: Screen, report: dict[str, Any], interrupted: bool, answered: bool, whom: str = ""
) -> int:
    """Write the JSON, and say how it ended; ``whom`` are those that answered nothing."""
    report["complete"] = report["complete"] and not interrupted
    write_json(options, report)
    if options.json not in (None, SCREEN):
        screen.line(f"all figures: {options.json}", "dim")
    if interrupted:
        print(f"{PROG}: interrupted; these are the figures so far", file=sys.stderr)
        return INTERRUPTED
    if not answered:
        print(f"{PROG}: no request was answered{f' by {whom}' if whom else ''}", file=sys.stderr)
        return FAILED
    return OK


@contextmanager
def _server(options: Options, logs: Path, progress: Progress) -> Iterator[Found]:
    """Reach the server that was named, or start one."""
    if options.launch is None:
        assert options.url is not None
        yield _connect(options, options.url)
        return
    with Launched("launched", options.launch, logs / "server.log") as server:
        progress.begin("starting the server")
        server.start(wait=progress.wait)
        progress.clear()
        yield _connect(options, server.url)


def _connect(options: Options, url: str) -> Found:
    return connect(url, api=options.api, model=options.model, api_key=options.api_key, timeout_s=options.timeout_s)


@contextmanager
def _logs() -> Iterator[Path]:
    """Yield a directory for logs of servers, which stays when one of them failed."""
    directory = Path(tempfile.mkdtemp(prefix="radixtier-bench-"))
    try:
        yield directory
    except ServerFailed:
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def _described(target: Found) -> dict[str, Any]:
    words = {"sglang": "SGLang's /generate", "openai": "/v1/completions", "chat": "/v1/chat/completions"}
    return {"url": target.url, "api": target.api, "protocol": words[target.api], "model": target.model}


def _head(options: Options, argv: Sequence[str]) -> dict[str, Any]:
    """Return what a report says of the run itself."""
    return {
        "command": shlex.join([*PROG.split(), *_without_key(argv)]),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "radixtier_version": __version__,
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
        "workload": {"name": options.workload, **_plain(options.plan.workload)},
        "order": options.plan.order,
        "rate": options.plan.rate,
        "warm_up": options.plan.warm_up,
        "seed": options.plan.seed,
        "sides": {},
        "levels": {},
        "complete": False,
    }


def _plain(workload: Any) -> dict[str, Any]:
    values = {each.name: getattr(workload, each.name) for each in dataclasses.fields(workload)}
    return {name: value if isinstance(value, (int, float)) else str(value) for name, value in values.items()}


def _without_key(argv: Sequence[str]) -> list[str]:
    """Leave the key of a server out of a report."""
    words = list(argv)
    for place, word in enumerate(argv):
        if word == "--api-key" and place + 1 < len(words):
            words[place + 1] = "KEY"
        elif word.startswith("--api-key="):
            words[place] = "--api-key=KEY"
    return words
