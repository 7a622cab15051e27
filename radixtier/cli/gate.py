"""``radixtier gate``: does tiering pay on your server? Four gates, a verdict, a report.

Owns the arguments and the exit status: 0 when all gates that ran passed; 1 when one did not, or nobody answered; 2 for
bad input; 130 when interrupted. Invariant: what can be checked is checked before a server is started. Main thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from radixtier.cli.exits import FAILED, INTERRUPTED, OK, USAGE
from radixtier.cli.gate_options import command, device, limit_flags, parser, words
from radixtier.control.address import parse_address
from radixtier.control.arguments import ENVIRONMENT
from radixtier.control.client import ControlClient
from radixtier.gate import cpu_default, run
from radixtier.gate.acceptance_subject import command_line, server_info
from radixtier.gate.attached import AttachedStand
from radixtier.gate.html import HTML_NAME
from radixtier.gate.launched import LaunchedStand, check_flags, values_of
from radixtier.gate.profiles import CPU_SIZES, Plan, fit, plan
from radixtier.gate.progress import Progress
from radixtier.gate.report import JSON_NAME, BadReport, Report, read_json, redacted
from radixtier.gate.report_text import lines
from radixtier.gate.stand import Room, Stand
from radixtier.live.client import Client, Refused, RequestFailed
from radixtier.live.screen import Screen
from radixtier.machine import directory_fault
from radixtier.units import BadValue

__all__ = ["main", "parser"]

LOGS = "servers"
"""Directory for the logs of servers, beside the report."""


class NoAnswer(BadValue):
    """A server that does not answer: nothing is wrong with how it was named."""


def main(argv: Sequence[str]) -> int:
    """Run the gates, or show a report."""
    options = parser().parse_args(argv)
    try:
        return _show(options) if options.command == "show" else _run(options, argv)
    except BrokenPipeError:
        raise
    except (BadValue, BadReport, RequestFailed, OSError, RuntimeError) as error:
        print(f"radixtier gate {options.command}: {error}", file=sys.stderr)
        refused = isinstance(error, (BadValue, BadReport)) and not isinstance(error, NoAnswer)
        return USAGE if refused else FAILED


def _show(options: argparse.Namespace) -> int:
    _print(read_json(options.report), options.json)
    return OK


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2))
        return
    screen = Screen(sys.stdout)
    for text, tone in lines(report):
        screen.line(text, "" if tone == "warn" else tone)


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    _check_combination(options)
    if options.server is not None and options.control is None:
        options.control = os.environ.get(ENVIRONMENT)
    try:
        chosen = run.chosen(options.gates)
    except BadValue as error:
        raise BadValue(f"--gates {options.gates}: {error.why}", error.fix) from None
    with ExitStack() as stack:
        say = Progress(sys.stderr)
        stack.callback(say.close)
        ends = _Ends()
        stack.enter_context(ends)
        try:
            out, stand, made, server = _prepared(options, stack, say)
            ends.stand = stand
            report = Report(command("gate", argv), chosen, server, dataclasses.asdict(made))
            status = run.run(stand, made, report, out, say)
        except KeyboardInterrupt:
            print("radixtier gate run: interrupted before the first gate", file=sys.stderr)
            return INTERRUPTED
        finally:
            say.total(0)
    _print(report.to_json(), options.json)
    print(f"\n{out / HTML_NAME}\n{out / JSON_NAME}", file=sys.stderr if options.json else sys.stdout)
    return status


class _Ends:
    """Signals that end a run with a report and with servers stopped: Ctrl-C, a plain `kill`, and a terminal that goes.

    Requests under way are hung up on, so that nobody waits for their answers. Main thread.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.stand: Stand | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ends:
        for number in self.NUMBERS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # as under nohup
                self._before[number] = before
                signal.signal(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _end(self, *_: object) -> None:
        if self.stand is not None:
            # On another thread: this one may hold the lock that it takes.
            threading.Thread(target=run.hang_up, args=(self.stand,), daemon=True).start()
        raise KeyboardInterrupt


def _check_combination(options: argparse.Namespace) -> None:
    """Refuse flags that would have no effect."""
    if options.server is None:
        for flag in ("control", "key_file", "directory", "disturb"):
            if getattr(options, flag):
                name = f"--{flag.replace('_', '-')}"
                raise BadValue(f"{name} has no effect on a server that the gate starts", f"Leave out {name}")


def _prepared(options: argparse.Namespace, stack: ExitStack, say: Progress) -> tuple[Path, Stand, Plan, dict[str, Any]]:
    """Check everything, then make what is needed; nothing of it starts a server."""
    flags = [] if options.launch is None else launch_flags(options.launch)
    out = stack.enter_context(_out(options.out or _default_out()))
    if options.server is not None:
        stand = _attached(options)
        told = server_info(options.server)
        _announce(options, say)
        return out, stand, _plan(options, cpu=told.get("device") == "cpu"), _told(options.server, told, stand)
    made = _plan(options, cpu=options.cpu_demo or device(flags) == "cpu")
    if options.cpu_demo:
        _check_fit(made)
        flags = stack.enter_context(cpu_default.prepared(say.line, made.tier or CPU_SIZES))
    logs = out / LOGS
    logs.mkdir(exist_ok=True)
    launched = LaunchedStand(flags, made, logs, say)
    return out, launched, made, {"flags": shlex.join(redacted(flags)), "logs": str(logs)}


def _plan(options: argparse.Namespace, *, cpu: bool) -> Plan:
    limits = {name: getattr(options, name) for name in limit_flags()}
    levels = None if options.levels is None else tuple(options.levels)
    return plan(options.profile, options.quick, cpu=cpu, levels=levels, soak_s=options.soak, **limits)


def _check_fit(made: Plan) -> None:
    """Refuse levels for which the tiers of the demo are too small."""
    sizes = made.tier or CPU_SIZES
    try:
        fit(made, Room(None, sizes.hbm, sizes.dram, sizes.nvme, cpu_default.PAGE_SIZE))
    except BadValue as error:
        levels = " ".join(map(str, made.levels))
        raise BadValue(f"--levels {levels}: {error.why}", "Give lower ones, such as --levels 1 2 4") from None


def launch_flags(text: str) -> list[str]:
    """Read and check the arguments of ``--launch``.

    Raises
    ------
    BadValue
        They are not those of a server with the tier that the gate can start.
    """
    try:
        flags = words(text)
    except ValueError as error:
        raise BadValue(f"--launch {text}: {error}", "Close the quotes") from None
    for flag in flags:
        if flag.split("=")[0] in ("--host", "--port"):
            raise BadValue(f"--launch has {flag.split('=')[0]}: the gate chooses it", "Leave it out")
    try:
        check_flags(flags)
    except BadValue as error:
        raise BadValue(f"--launch: {error.why}", error.fix) from None
    for directory in values_of(flags, "--radix-tier-nvme-path"):
        if fault := directory_fault(directory):
            raise BadValue(f"--launch: --radix-tier-nvme-path {directory}: {fault[0]}", fault[1])
    [model, *_] = values_of(flags, "--model-path", "--model")
    if model.startswith(("/", "./", "../", "~")) and not Path(model).expanduser().is_dir():
        raise BadValue(f"--launch: --model-path {model}: no such directory", "Name the model's directory")
    if find_spec("sglang") is None:
        raise BadValue("--launch: SGLang is not installed in this environment", "Run this in the server's environment")
    return flags


def _attached(options: argparse.Namespace) -> AttachedStand:
    control = None
    if options.control:
        try:
            key = None if options.key_file is None else options.key_file.read_text(encoding="utf-8").strip()
            address = parse_address(options.control, key=key is not None)
        except OSError as error:
            raise BadValue(f"--key-file {options.key_file}: {error.strerror}", "Name the file with the key") from None
        except BadValue as error:
            raise BadValue(f"--control {options.control}: {error.why}", error.fix) from None
        control = None if address is None else ControlClient(address, key)
    _check_sglang(options.server)
    try:
        return AttachedStand(options.server, control, options.directory, disturb=options.disturb)
    except (RequestFailed, OSError) as error:
        raise NoAnswer(f"--server {options.server}: no answer ({error})", "Start it first, or use --launch") from None


def _check_sglang(url: str) -> None:
    """Refuse what is no SGLang server: other servers say nothing about their cache, and all would be skipped."""
    fix = "Name a running SGLang server, or use --launch"
    try:
        told = json.loads(Client(url, timeout_s=30.0).call("GET", "/server_info"))
    except Refused as error:
        if error.status in (401, 403):
            why = f"--server {url}: it wants an API key, and the gate has none"
            raise BadValue(why, "Let the gate ask a server without one") from None
        raise BadValue(f"--server {url}: no SGLang server answers there ({error})", fix) from None
    except (RequestFailed, OSError) as error:
        raise NoAnswer(f"--server {url}: no answer ({error})", "Start it first, or use --launch") from None
    except ValueError:
        told = None
    if not isinstance(told, dict) or "version" not in told:
        raise BadValue(f"--server {url}: no SGLang server answers there", fix)


def _announce(options: argparse.Namespace, say: Progress) -> None:
    if not options.control:
        say.line("no --control: what needs the control endpoint is skipped, cold recovery among it", "warn")
    if options.disturb:
        say.line(f"--disturb: {options.server} will be flushed, all that it has cached is lost", "warn")
    else:
        say.line("the server is asked prompts of the gate's own, and told to move these; it is not flushed", "dim")
    say.line("these prompts take room: prefixes of others may be evicted, and the drive is written", "dim")


def _told(url: str, told: dict[str, Any], stand: AttachedStand) -> dict[str, Any]:
    """Return what is told of an attached server: few fields, and its command line where it runs here."""
    names = ("version", "model_path", "device", "dtype", "tp_size", "page_size")
    pid = (stand.state() or {}).get("pid") if stand.directories else None
    flags = shlex.join(redacted(shlex.split(command_line(pid))))
    found = {"url": url, **{name: told[name] for name in names if name in told}}
    return found | ({"flags": flags} if flags else {})


def _default_out() -> Path:
    return cpu_default.root() / time.strftime("report-%Y%m%d-%H%M%S")


@contextmanager
def _out(directory: Path) -> Iterator[Path]:
    """Make the directory of the report, and make sure that it can be written; removed again if nothing came to it."""
    if (directory / JSON_NAME).exists():
        raise BadValue(f"--out {directory}: there is a report already", "Name another directory")
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise BadValue(f"--out {directory}: {error.strerror}", "Name a directory that can be written") from None
    try:
        yield directory.absolute()
    finally:
        if made and not (directory / JSON_NAME).exists():
            shutil.rmtree(directory, ignore_errors=True)
