"""The ``radixtier`` command: finds the subcommand and hands its arguments over, unread.

Owns the list of subcommands, and what becomes of an interrupt or of output that cannot be written. Invariants: a
subcommand is imported only when it runs, so ``radixtier --help`` works where neither SGLang nor torch is installed;
what was printed is written before this returns, or the status says that it was not. Main thread.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from radixtier.cli.exits import FAILED, INTERRUPTED, with_statuses
from radixtier.cli.version import ShowVersion

Table: TypeAlias = Mapping[str, tuple[str, str]]
"""Name -> module with ``main(argv) -> int`` and ``parser()``, and a line for ``--help``."""

SUBCOMMANDS: Table = {
    "serve": ("radixtier.cli.serve", "start SGLang's server; on --device cpu with what a CPU needs"),
    "suggest": ("radixtier.cli.suggest", "print the command for this machine, with reasons"),
    "config": ("radixtier.cli.config", "check the settings, print them with where each comes from, or their schema"),
    "doctor": ("radixtier.cli.doctor", "check this machine and directories for the store, and say what to do"),
    "top": ("radixtier.cli.top", "watch a running server: tiers, answers, drives, sessions, health"),
    "dashboard": ("radixtier.cli.dashboard", "open the dashboard of a running server on this machine"),
    "explain": ("radixtier.cli.explain", "tell what a request was served from and why, or where a path is"),
    "hint": ("radixtier.cli.hint", "tell a running server what is known about the future of a path"),
    "drain": ("radixtier.cli.drain", "let go of the NVMe directories, so that they can be unmounted"),
    "store": ("radixtier.cli.store", "look into the store on NVMe, check it, mend it or empty it"),
    "lab": ("radixtier.cli.lab", "replay a trace over three tiers with the policies of the server"),
    "gate": ("radixtier.cli.gate", "prove on your own server that tiering pays, or that it does not"),
    "bench": ("radixtier.cli.bench", "measure the tier, or how any server answers a load; compare two servers"),
    "patch": ("radixtier.cli.patch", "make the tier a part of the installed SGLang, or take that back"),
    "completion": ("radixtier.cli.completion", "print a script that completes these commands in your shell"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program name; those of the process by default.

    Returns
    -------
    int
        Exit status; :mod:`radixtier.cli.exits` has the table.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            # Only the first word is ours: what follows may be flags of SGLang that argparse would try to understand.
            command = parser().parse_args(arguments[:1]).command
            return dispatch(SUBCOMMANDS[command][0], arguments[1:])
        finally:
            if sys.stdout is not None:  # as after >&-
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("radixtier: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except OSError as error:
        _drop_output()
        print(f"radixtier: {error}", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser of the first word."""
    made = argparse.ArgumentParser(
        prog="radixtier",
        description="Virtual memory for SGLang's RadixAttention: one prefix tree over HBM, DRAM and NVMe.",
        epilog="Each subcommand has its own --help.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action=ShowVersion, help="show what is installed here, and whether it fits")
    add_names(made, SUBCOMMANDS, "command")
    return with_statuses(made)


def add_names(parser: argparse.ArgumentParser, table: Table, dest: str) -> None:
    """Add the names of subcommands, which read their own arguments."""
    commands = parser.add_subparsers(dest=dest, metavar=dest.upper(), required=True)
    for name, (_, summary) in table.items():
        commands.add_parser(name, help=summary, add_help=False)


def dispatch(module: str, arguments: Sequence[str]) -> int:
    """Import ``module`` and run its ``main``."""
    run: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    return run(arguments)


def _drop_output() -> None:
    """Send what cannot be written nowhere: the interpreter would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
