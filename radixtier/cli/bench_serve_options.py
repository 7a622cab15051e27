"""The command line of ``radixtier bench serve``.

Owns its grammar: what can be known to be wrong is refused here, with one line that names the flag, the value and the
fix, before anything is started. Main thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

from radixtier.cli.exits import with_statuses
from radixtier.cli.json_file import SCREEN, add_json
from radixtier.live.client import Client
from radixtier.live.output import unwritable
from radixtier.load.connect import APIS, Api
from radixtier.load.launch import Command, parse
from radixtier.load.play import Order
from radixtier.load.runs import Plan
from radixtier.load.workloads.catalogue import WORKLOADS
from radixtier.load.workloads.common import Source, Workload
from radixtier.load.workloads.trace import TraceReplay

PROG = "radixtier bench serve"

DEFAULT_LEVELS, QUICK_LEVELS = (8,), (2,)
DEFAULT_ROUNDS, QUICK_ROUNDS = 6, 3
MOST_AT_ONCE = 4096

EXPLANATION = """\
One of URL, --launch and --compare says whom to ask:

  radixtier bench serve http://127.0.0.1:30000 --workload long-document --concurrency 1 8
  radixtier bench serve --launch "--model-path DIR --enable-radix-tier ..."
  radixtier bench serve --compare "--model-path DIR" "--model-path DIR --enable-radix-tier ..." --name A=stock

A command that begins with - is arguments of `radixtier serve`; anything else is a whole command line in which {port}
is replaced, or to which --host and --port are added. docs/bench_serve.md says what each figure means.
"""

_TEXT_AFTER = {"--launch": 1, "--compare": 2}


class Refusal(ValueError):
    """A command line that cannot be run; one line."""


@dataclass(frozen=True)
class Options:
    """What is to be done; exactly one of ``url``, ``launch`` and ``compare`` is there."""

    url: str | None
    launch: Command | None
    compare: tuple[Command, Command] | None
    commands: tuple[str, ...]
    names: tuple[str, str]
    api: Api
    model: str | None
    api_key: str
    timeout_s: float
    plan: Plan
    workload: str
    levels: tuple[int, ...]
    rounds: int
    apart: bool
    json: Path | None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(message)


def read(argv: Sequence[str]) -> Options:
    """Read a command line; `Refusal` says what is wrong with it."""
    options = parser().parse_args(_protected(argv))
    commands = [text.strip() for text in ([options.launch] if options.launch else options.compare or [])]
    if (options.url is not None) + (options.launch is not None) + (options.compare is not None) != 1:
        raise Refusal("whom to ask? Give exactly one of URL, --launch ARGS and --compare A B.")
    flag = "--launch" if options.launch is not None else "--compare"
    parsed = [_told(flag, parse, text) for text in commands]
    if options.url is not None:
        _told("URL", Client, options.url)
    for given, name in ((options.name, "--name"), (options.rounds, "--rounds"), (options.apart, "--apart")):
        if given and options.compare is None:
            raise Refusal(f"{name} goes with --compare A B. Leave it out.")
    chosen = options.workload or ("trace" if options.trace is not None else "multi-turn")
    plan = Plan(
        _workload(chosen, options),
        options.order,
        None if options.rate is None else _told("--rate", _rate, options.rate),
        _told("--warm-up", _whole(0, 1_000_000), options.warm_up),
        options.seed,
    )
    levels = options.concurrency or (QUICK_LEVELS if options.quick else DEFAULT_LEVELS)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else DEFAULT_ROUNDS)
    return Options(
        url=options.url,
        launch=parsed[0] if options.launch is not None else None,
        compare=(parsed[0], parsed[1]) if options.compare is not None else None,
        commands=tuple(commands),
        names=_names(options.name),
        api=options.api,
        model=options.model,
        api_key=options.api_key if options.api_key is not None else os.environ.get("OPENAI_API_KEY", ""),
        timeout_s=_told("--timeout", _rate, options.timeout),
        plan=plan,
        workload=chosen,
        levels=tuple(_told("--concurrency", _whole(1, MOST_AT_ONCE), level) for level in dict.fromkeys(levels)),
        rounds=_told("--rounds", _whole(1, 10_000), rounds),
        apart=options.apart,
        json=_writable(options.json),
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser; it raises `Refusal`."""
    made = _Parser(
        prog=PROG,
        description="Ask a server what its users would, and measure how it answers.",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("url", nargs="?", metavar="URL", help="a running server: SGLang, or anything that speaks OpenAI's protocol")
    add("--launch", metavar="ARGS", help="start a server for this, and stop it afterwards")
    add("--compare", nargs=2, metavar=("A", "B"), help="start two servers and ask them in turns")
    add("--name", action="append", metavar="A=NAME", help="call a side of --compare so; may be repeated for B")
    add("--rounds", metavar="N", help=f"rounds of --compare (default {DEFAULT_ROUNDS}, with --quick {QUICK_ROUNDS})")
    add("--apart", action="store_true", help="--compare never has both servers running: for a machine that holds one")
    add("--api", choices=APIS, default="auto", help="protocol (default auto: SGLang's own where there is one)")
    add("--model", metavar="NAME", help="model for OpenAI's protocols (default: the first that the server lists)")
    add("--api-key", metavar="KEY", help="key of the server (default: the variable OPENAI_API_KEY)")
    add("--timeout", default="600", metavar="SECONDS", help="longest silence of the server (default %(default)s)")
    add("--concurrency", nargs="+", metavar="N", help=f"requests at once, one load each (default {DEFAULT_LEVELS[0]})")
    add("--rate", metavar="R", help="most requests per second, at random times (default: no limit)")
    add("--warm-up", default="2", metavar="N", help="requests in front that count in no figure (default %(default)s)")
    add("--order", choices=get_args(Order), default="round-robin", help="who is next (default %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="another seed is another load (default %(default)s)")
    add("--quick", action="store_true", help="smaller loads, to see that everything works")
    add_json(made, "all figures")
    _add_workloads(made)
    return with_statuses(made)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--workload", choices=tuple(WORKLOADS), help="what is asked (default multi-turn)")
    meanings: dict[str, list[str]] = {}
    for name, kind in WORKLOADS.items():
        for each in dataclasses.fields(kind):
            default = "" if each.default is None else f" ({each.default})"
            meanings.setdefault(each.name, []).append(f"{name}: {each.metadata['meaning']}{default}")
    for field, lines in meanings.items():
        group.add_argument(_flag(field), metavar="X", help="; ".join(lines).replace("%", "%%"))


def _workload(name: str, options: argparse.Namespace) -> Workload:
    """Make the workload of its flags; those of other workloads are refused."""
    own = {each.name: each for each in dataclasses.fields(WORKLOADS[name])}
    for kind in WORKLOADS.values():
        for each in dataclasses.fields(kind):
            if each.name not in own and getattr(options, each.name) is not None:
                flags = ", ".join(map(_flag, own))
                raise Refusal(f"{_flag(each.name)} is no flag of the workload {name}, which has {flags}.")
    values: dict[str, Any] = {}
    for field, each in own.items():
        given = getattr(options, field)
        if given is not None:
            values[field] = _told(_flag(field), each.metadata["read"], given)
        elif options.quick and each.metadata["quick"] is not None:
            values[field] = each.metadata["quick"]
    made: Workload = WORKLOADS[name](**values)
    if isinstance(made, TraceReplay):
        _check_trace(made)
    return made


def _check_trace(workload: TraceReplay) -> None:
    try:
        workload.conversations(Source(_Nobody(), "check"), "round-robin")
    except OSError as error:
        raise Refusal(f"--trace {workload.trace}: {error.strerror or error}. Give a file that can be read.") from None
    except ValueError as error:
        raise Refusal(str(error) if workload.trace is None else f"--trace: {error}") from None


class _Nobody:
    """Stands for a server while a trace is checked: nobody is asked for a piece before the load is played."""

    url = ""

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        raise NotImplementedError

    def ask(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def _names(given: Sequence[str] | None) -> tuple[str, str]:
    names = {"A": "A", "B": "B"}
    for text in given or ():
        side, equals, name = text.partition("=")
        if side not in names or not equals or not name.strip():
            raise Refusal(f"--name {text}: write A=NAME or B=NAME.")
        names[side] = name.strip()
    if names["A"] == names["B"]:
        raise Refusal(f"--name: both sides are called {names['A']}. Give them two names.")
    return names["A"], names["B"]


def _writable(file: Path | None) -> Path | None:
    if file is None or file == SCREEN:
        return file
    if fault := unwritable(file):
        raise Refusal(f"--json {file}: {fault}")
    return file


def _told(flag: str, reader: Any, text: Any) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise Refusal(f"{flag} {text}: {error}" if str(text) not in str(error) else f"{flag}: {error}") from None


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise ValueError("write a number over 0")
    return value


def _whole(least: int, most: int) -> Any:
    def reader(text: Any) -> int:
        plain = str(text)
        if not (plain.isascii() and plain.isdigit() and least <= int(plain) <= most):
            raise ValueError(f"write a whole number from {least} to {most}")
        return int(plain)

    return reader


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _protected(argv: Sequence[str]) -> list[str]:
    """Put a space in front of commands: argparse would take one that begins with ``-`` for a flag."""
    words = list(argv)
    for place, word in enumerate(argv):
        for after in range(1, _TEXT_AFTER.get(word, 0) + 1):
            if place + after < len(words):
                words[place + after] = f" {words[place + after]}"
    return words
