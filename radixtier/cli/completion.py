"""``radixtier completion``: a script that completes subcommands, flags, choices and files in a shell.

Owns the one parser that has every subcommand in it. Invariant: this alone imports all subcommands; the others stay
as quick as they are. Flags of SGLang, which ``serve`` passes on, are not completed. Main thread.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

import shtab

from radixtier.cli import bench
from radixtier.cli import main as command_line
from radixtier.cli.exits import OK, subcommands, with_statuses

SHELLS = ("bash", "zsh", "tcsh")

EXPLANATION = """\
  bash  radixtier completion bash > ~/.local/share/bash-completion/completions/radixtier
  zsh   radixtier completion zsh > DIRECTORY/_radixtier, with a DIRECTORY of $fpath, before compinit runs
  tcsh  radixtier completion tcsh > ~/.radixtier.tcsh, and in ~/.tcshrc: source ~/.radixtier.tcsh
"""

_PATHS = {"FILE": shtab.FILE, "TRACE": shtab.FILE, "REPORT.JSON": shtab.FILE, "DIR": shtab.DIRECTORY}
_PATHS["DIRECTORY"] = shtab.DIRECTORY
"""Placeholders of arguments that are completed as names of files or of directories."""


def main(argv: Sequence[str]) -> int:
    """Print the script."""
    shell = parser().parse_args(argv).shell
    print(shtab.complete(everything(), shell=shell))
    return OK


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier completion",
        description="Print a script that completes radixtier's commands. Where it goes:",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", choices=SHELLS, help="the shell that it is for")
    return with_statuses(made)


def everything() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; it completes and is not asked to parse."""
    made = command_line.parser()
    _fill(made, command_line.SUBCOMMANDS)
    _fill(subcommands(made)["bench"], bench.BENCHES)
    _mark_paths(made)
    return made


def _fill(parser: argparse.ArgumentParser, table: command_line.Table) -> None:
    """Put the subcommands' own parsers in the place of their names."""
    commands = subcommands(parser)
    for name, (module, summary) in table.items():
        commands[name] = importlib.import_module(module).parser()
        commands[name].description = summary  # which some shells show beside the name


def _mark_paths(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
        if metavar in _PATHS and action.choices is None:
            action.complete = _PATHS[metavar]  # type: ignore[attr-defined]
    for command in subcommands(parser).values():
        _mark_paths(command)
