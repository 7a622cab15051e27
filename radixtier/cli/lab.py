"""``radixtier lab``: what three tiers of given sizes would have done for a recorded load.

Owns the list of subcommands and their exit status: 0; 2 when a trace, a file or a flag cannot be used, with one line
that says why; 130 when interrupted. Main thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from radixtier.cli import lab_compare, lab_plan, lab_run, lab_sweep, lab_timed
from radixtier.cli.exits import INTERRUPTED, USAGE, with_statuses

_COMMANDS = (lab_run, lab_timed, lab_sweep, lab_plan, lab_compare)


def main(argv: Sequence[str]) -> int:
    """Run one subcommand."""
    options = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except ValueError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("radixtier lab: interrupted", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog="radixtier lab", description="Replay a recorded load over three tiers.")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add(commands)
    return with_statuses(made)


def _refuse(why: str) -> int:
    print(f"radixtier lab: {why}", file=sys.stderr)
    return USAGE
