"""The arguments of ``radixtier gate``, and how a command line is shown in a report.

Owns their names and forms. Invariant: a report shows no key or password of a command line. Pure, main thread.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from radixtier.cli.exits import with_statuses
from radixtier.control.address import ACCEPTED_FORMS
from radixtier.control.arguments import ENVIRONMENT
from radixtier.gate.launched import values_of
from radixtier.gate.profiles import PROFILES, Limits
from radixtier.gate.report import TITLES, redacted

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+", re.ASCII)

HIGHEST_RISE = 10.0
"""Of --throughput-rise: more than that was meant in percent."""

DESCRIPTION = """\
Proves on your own server that tiering pays, or that it does not:

  G1  acceptance     machine, drives, store and server are in order
  G2  baseline       what the load costs when every context is computed
  G3  cold recovery  what it costs when the KV is on NVMe alone; what the tier costs where it cannot help
  G4  stability      a soak with aborts, faults of the drive and a killed server

Writes report.html and report.json.

--server attaches to a running server. It is asked prompts of the gate's own and told to move these; nobody else's
requests are touched, but those prompts take room: prefixes of your users may be evicted, and the drive is written.
--launch starts servers with your arguments, without the tier and with it, and stops them. G4 empties their store and
kills the server with the tier while it is at work: name a directory of its own in --radix-tier-nvme-path.
--cpu-demo needs no GPU and no server: SmolLM2 in float32 on this machine's CPU, with and without the tier, and a store
below $RADIXTIER_CACHE that is removed afterwards. It takes the place of --launch.
"""


SOAK_HELP = "length of the soak: 72h, 30m, 90s (default: 72h; with --quick 300 s, on a CPU 120 s)"
LEVELS_HELP = "requests at a time (default: 8 16 32; with --quick 1 4 8; on a CPU always 1 2 4)"

SHARES = ("ttft_fall", "cold_share", "no_reuse", "store_ratio", "rss_growth", "wrong")
"""Limits from 0 to 1."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help lists all)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    top = _Parser(prog="radixtier gate", description="Does tiering pay on your server?")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run the gates and write the report",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _server(run)
    _run(run)
    limits = run.add_argument_group("limits")
    for each in fields(Limits):
        if "help" in each.metadata:
            flag, told = f"--{each.name.replace('_', '-')}", each.metadata["help"].replace("%", "%%")
            kind = _share if each.name in SHARES else _rise if each.name == "throughput_rise" else _number
            limits.add_argument(flag, type=kind, metavar="X", help=f"{told} (default: {each.default:g})")
    show = commands.add_parser("show", help="print a report again", description="Print a report again.")
    show.add_argument("report", type=Path, metavar="REPORT.JSON")
    for command in (run, show):
        command.add_argument("--json", action="store_true", help="print the report as JSON")
    return with_statuses(top)


def _server(run: argparse.ArgumentParser) -> None:
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--server", type=_url, metavar="URL", help="a running server, such as http://127.0.0.1:30000")
    which.add_argument("--launch", metavar="ARGS", help="start servers with these arguments of sglang serve, quoted")
    which.add_argument(
        "--cpu-demo",
        action="store_true",
        help="start servers with SmolLM2 on this machine's CPU, which is fetched if it is missing",
    )
    attached = run.add_argument_group("with --server")
    control_help = f"its control endpoint: {ACCEPTED_FORMS.removesuffix(' or off')} (default: ${ENVIRONMENT})"
    attached.add_argument("--control", metavar="ADDRESS", help=control_help)
    attached.add_argument("--key-file", type=Path, metavar="FILE", help="file with the key of the control endpoint")
    attached.add_argument(
        "--directory", type=Path, nargs="+", default=[], metavar="DIR", help="of its store, where it does not tell"
    )
    attached.add_argument("--disturb", action="store_true", help="allow to flush it: all that it has cached is lost")


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--profile", choices=PROFILES, default=PROFILES[0], help=f"the load (default: {PROFILES[0]})")
    run.add_argument("--quick", action="store_true", help="minutes instead of days: fewer requests, a short soak")
    run.add_argument("--out", type=Path, metavar="DIR", help="directory for the report")
    run.add_argument("--gates", default=",".join(TITLES), metavar="G1,G3", help="only these gates (default: all)")
    run.add_argument("--soak", type=duration, metavar="TIME", help=SOAK_HELP)
    run.add_argument("--levels", type=_level, nargs="+", metavar="N", help=LEVELS_HELP)


def limit_flags() -> list[str]:
    """Return the names of the limits that are flags."""
    return [each.name for each in fields(Limits) if "help" in each.metadata]


def duration(text: str) -> float:
    """Read a duration in seconds: ``72h``, ``1h30m``, ``90s``."""
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text}: no duration; write 72h, 30m or 90s")
    found = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: takes no time; write 72h, 30m or 90s")
    return found


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number of at least 0")
    return found


def _share(text: str) -> float:
    return _at_most(text, 1.0)


def _rise(text: str) -> float:
    return _at_most(text, HIGHEST_RISE)


def _at_most(text: str, most: float) -> float:
    found = _number(text)
    if found > most:
        hint = f"write {found / 100:g} for {found:g} %" if found <= 100 * most else "1 is 100 %"
        raise argparse.ArgumentTypeError(f"{text}: a share, from 0 to {most:g}; {hint}")
    return found


def _level(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text}: give whole numbers from 1 to 4096, such as 8 16 32")
    return int(text)


def _url(text: str) -> str:
    if "@" in text:
        why = "a user or password in the URL, which the gate does not send; give http://HOST:PORT"
        raise argparse.ArgumentTypeError(why)
    try:
        parts = urlsplit(text)
        bare = parts.path in ("", "/") and not parts.query and not parts.fragment
        good = bare and parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text}: give http://HOST:PORT, such as http://127.0.0.1:30000")
    return text.rstrip("/")


def words(text: str) -> list[str]:
    """Split the arguments of ``--launch`` as a shell does, without a leading command; raises `ValueError`."""
    found = shlex.split(text)
    first = next((at for at, word in enumerate(found) if word.startswith("-") and word != "-m"), len(found))
    if first and "=" not in found[0] and any("serve" in word or "launch_server" in word for word in found[:first]):
        return found[first:]
    return found


def device(flags: Sequence[str]) -> str:
    """Return the device that a server's arguments name; "" for SGLang's choice."""
    return next(iter(values_of(flags, "--device")), "")


def command(name: str, argv: Sequence[str]) -> str:
    """Return a command line of this program, as a shell would take it, without secrets."""
    shown = []
    for before, word in zip(["", *argv], argv, strict=False):
        flag, equals, text = word.partition("=") if word.startswith("--launch=") else ("", "", word)
        try:
            within = equals or before == "--launch"
            inner = f"{flag}{equals}{shlex.join(redacted(shlex.split(text)))}" if within else word
        except ValueError:
            inner = word
        shown.append(inner)
    return shlex.join(["radixtier", name, *redacted(shown)])
