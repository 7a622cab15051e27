"""The exit statuses of every ``radixtier`` command, and the words with which ``--help`` tells them.

Owns the table. Law: 1 is an answer (no, bad, not passed) or a failure on the way; 2 means that the command line cannot
be used, and that nothing was done. Pure; any thread.
"""

from __future__ import annotations

import argparse

OK = 0
FAILED = 1
"""The answer is no, or it could not be done."""
USAGE = 2
"""Usage, or a value that cannot be used."""
INTERRUPTED = 130
"""As shells say it of a process that Ctrl-C ended."""

MEANINGS = {
    OK: "done",
    FAILED: "the answer is no, or it could not be done",
    USAGE: "the command line cannot be used",
    INTERRUPTED: "interrupted",
}

EPILOG = f"exit status: {'; '.join(f'{status} {meaning}' for status, meaning in MEANINGS.items())}"


def with_statuses(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the statuses to the help of a parser and of the subcommands it has by now; return the parser."""
    parser.epilog = f"{parser.epilog.rstrip()}\n\n{EPILOG}" if parser.epilog else EPILOG
    for command in subcommands(parser).values():
        with_statuses(command)
    return parser


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands by name; what is changed in it is changed in the parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: dict[str, argparse.ArgumentParser] = action.choices
            return found
    return {}
