"""The ``radixtier`` command: finds the subcommand and hands its arguments over, unread.

Owns the list of subcommands. Invariant: a subcommand is imported only when it runs, so ``radixtier --help``
works where neither SGLang nor torch is installed. Main thread.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from radixtier import SGLANG_VERSION, __version__

_SUBCOMMANDS = {
    "serve": ("radixtier.cli.serve", "start SGLang's server; on --device cpu with what a CPU needs"),
    "doctor": ("radixtier.cli.doctor", "check this machine and directories for the store, and say what to do"),
    "store": ("radixtier.cli.store", "look into the store on NVMe, check it, mend it or empty it"),
    "explain": ("radixtier.cli.explain", "tell what a request was served from and why, or where a path is"),
    "hint": ("radixtier.cli.hint", "tell a running server what is known about the future of a path"),
    "lab": ("radixtier.cli.lab", "replay a trace over three tiers with the policies of the server"),
    "gate": ("radixtier.cli.gate", "prove on your own server that tiering pays, or that it does not"),
    "bench": ("radixtier.cli.bench", "measure the tier, or how any server answers a load; compare two servers"),
}
"""Name -> module with ``main(argv) -> int``, and a line for ``--help``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program name; those of the process by default.

    Returns
    -------
    int
        Exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="radixtier",
        description="Virtual memory for SGLang's RadixAttention: one prefix tree over HBM, DRAM and NVMe.",
        epilog="Each subcommand has its own --help.",
    )
    version = f"radixtier {__version__} (for SGLang {SGLANG_VERSION})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, summary) in _SUBCOMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    # Only the first word is ours: what follows may be flags of SGLang that argparse would try to understand.
    command = parser.parse_args(arguments[:1]).command
    return dispatch(_SUBCOMMANDS[command][0], arguments[1:])


def dispatch(module: str, arguments: Sequence[str]) -> int:
    """Import ``module`` and run its ``main``."""
    run: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    try:
        return run(arguments)
    except BrokenPipeError:
        # Whoever read the output has enough; nothing more may be flushed into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
