"""``radixtier patch``: applies the native integration to the installed SGLang, takes it back, says where it stands.

Owns the text and the exit status. Invariant: SGLang is found and changed without being imported. Main thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from radixtier import SGLANG_VERSION
from radixtier.cli.exits import FAILED, OK, USAGE, with_statuses
from radixtier.seams.installed import package_directory, version_in
from radixtier.seams.patch import (
    Patch,
    PatchError,
    State,
    Whole,
    apply_patch,
    read_patch,
    revert_patch,
    states,
    versions,
    whole,
)

PROG = "radixtier patch"

EXPLANATION = """\
The plugin needs no patch. With it the tier is a part of SGLang: `sglang serve --help` lists the flags,
Engine(enable_radix_tier=True, ...) takes them, /server_info shows them, and nothing is hooked at run time (with several
ranks, one function). Only files that are as SGLang ships them are changed; revert gives them back byte for byte. Stop
servers first.
"""

_MEANING: dict[Whole, str] = {
    "stock": "not applied; radixtier patch apply does it, and the plugin works without",
    "patched": "applied; radixtier patch revert takes it back",
    "half": "half applied: run radixtier patch apply or revert again, SGLang does not work as it is",
    "foreign": "not possible: a file is not as SGLang ships it; reinstall SGLang for it",
}


def main(argv: Sequence[str]) -> int:
    """Run one subcommand."""
    made = parser()
    options = made.parse_args(argv)
    package = _package(options.target)
    if package is None:
        named = "Python finds none here" if options.target is None else f"{options.target} holds none"
        print(f"{PROG}: no SGLang: {named}; give --target DIR, the directory of the package sglang", file=sys.stderr)
        return USAGE
    version = version_in(package)
    if version not in versions():
        has = f"the patch is for {', '.join(versions())}"
        print(f"{PROG}: SGLang {version} in {package}: {has}; pip install sglang=={SGLANG_VERSION}", file=sys.stderr)
        return FAILED
    try:
        return _run(options, read_patch(version), package)
    except PatchError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog=PROG, description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in (
        ("status", "tell whether the patch is applied; status 1 if it is not"),
        ("apply", "apply the patch, if it is not there yet"),
        ("revert", "take the patch back, if it is there"),
    ):
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        where = "the package directory of SGLang, or one that holds it (default: the one of this Python)"
        command.add_argument("--target", type=Path, metavar="DIR", help=where)
        command.add_argument("--json", action="store_true", help="print JSON")
    return with_statuses(made)


def _run(options: argparse.Namespace, patch: Patch, package: Path) -> int:
    changed: list[str] = []
    if options.command == "apply":
        changed = apply_patch(patch, package)
    elif options.command == "revert":
        changed = revert_patch(patch, package)
    found = states(patch, package)
    _tell(options, patch, package, found, changed)
    return FAILED if options.command == "status" and whole(found) != "patched" else OK


def _tell(
    options: argparse.Namespace, patch: Patch, package: Path, found: dict[str, State], changed: list[str]
) -> None:
    state = whole(found)
    if options.json:
        report = {"sglang": patch.version, "directory": str(package), "state": state, "files": found}
        print(json.dumps({**report, "changed": changed}, indent=2))
        return
    print(f"SGLang {patch.version} in {package}: {_MEANING[state]}")
    for path, kind in found.items() if state in ("half", "foreign") else ():
        print(f"  {kind:<7}  {path}")
    if options.command != "status":
        print(f"{len(changed)} files changed" if changed else "nothing to do")


def _package(target: Path | None) -> Path | None:
    """Return the package directory, None where there is none."""
    if target is None:
        return package_directory()
    for directory in (target, target / "sglang"):
        if (directory / "srt").is_dir() and (directory / "_version.py").is_file():
            return directory.resolve()
    return None
