"""``radixtier config``: checks settings, prints what they come to and where each comes from, or their schema.

Owns the text and the exit status: 0; 1 when a setting cannot be used; 2 for a file that cannot be read. Invariant:
nothing is changed, and no server is started. Works without SGLang: what only SGLang's own arguments decide is not
checked. Main thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from radixtier.cli.config_schema import schema
from radixtier.cli.exits import FAILED, OK, USAGE, with_statuses
from radixtier.config import Problem, RadixTierConfig
from radixtier.machine import Machine, directory_fault
from radixtier.settings import CONFIG_FILE, FILE_VERSION, SETTINGS, Setting, load_config
from radixtier.units import BadValue, Size, Unit, format_bytes

PROG = "radixtier config"


def main(argv: Sequence[str]) -> int:
    """Run one subcommand."""
    options = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except OSError as error:
        if error.filename is None:  # not of a file: standard output
            raise
        print(f"{PROG}: {error.filename}: {error.strerror}", file=sys.stderr)
        return USAGE


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog=PROG, description="Check, print or describe the settings of the tier.")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    summary = "say what a server's start on this machine would refuse"
    check = commands.add_parser("check", help=summary, description=f"{summary.capitalize()}; 1 if something.")
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the YAML file, alone")
    env_help = f"the environment, and the file that {CONFIG_FILE.env} names"
    which.add_argument("--env", action="store_true", help=env_help)
    check.add_argument("--form", action="store_true", help="names and values only: the file is for another machine")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)
    summary = "print the settings as a YAML file, with where each comes from"
    shown = commands.add_parser("print", help=summary, description=f"{summary.capitalize()}.")
    file_help = f"a YAML file, which the environment wins over (default: the one in {CONFIG_FILE.env})"
    shown.add_argument("file", nargs="?", type=Path, metavar="FILE", help=file_help)
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.set_defaults(run=_print)
    summary = "print the JSON Schema of the YAML file"
    commands.add_parser("schema", help=summary, description=f"{summary.capitalize()}.").set_defaults(run=_schema)
    return with_statuses(made)


# ---- check ------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> int:
    flags: dict[str, Any] = {"enable": True}
    if options.file is not None:
        _readable(options.file)
        flags["config"] = str(options.file)
    config, problems, notes = load_config(flags, os.environ if options.env else {})
    if not problems and not options.form:
        problems = _on_this_machine(config)
    if options.json:
        found = [problem.__dict__ | {"value": str(problem.value)} for problem in problems]
        print(json.dumps({"ok": not problems, "problems": found, "notes": notes}, indent=2))
    else:
        for line in [*map(str, problems), *notes]:
            print(line)
        if not problems:
            print("nothing is in the way" if not options.form else "names and values are in order")
    return FAILED if problems else OK


def _on_this_machine(config: RadixTierConfig) -> list[Problem]:
    found = config.validate(Machine.probe())
    try:
        config.control_address(key=True)
    except BadValue as error:
        found.append(config.problem("control", error.why, error.fix))
    return found


def _readable(file: Path) -> None:
    """Raise `OSError` where the file cannot be read."""
    with file.open("rb"):
        pass


# ---- print ------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One setting: what it comes to, as the file would have it, and where that was said."""

    value: Any
    origin: str
    remark: str = ""


def _print(options: argparse.Namespace) -> int:
    env = dict(os.environ)
    if options.file is not None:
        _readable(options.file)
        env[CONFIG_FILE.env] = str(options.file)
    config, problems, notes = load_config({}, env)
    unusable = {problem.setting for problem in problems}
    rows = {setting.name: _row(setting, config, config.named(setting.name) in unusable) for setting in SETTINGS}
    for name, size in _chosen(config).items():
        rows[name] = _Row(_plain(size), "default", f"{format_bytes(size.amount)}, {_by_name(name).default}")
    if options.json:
        found = {name: row._asdict() for name, row in rows.items()}
        report = {"settings": found, "problems": list(map(str, problems)), "notes": notes}
        print(json.dumps({"version": FILE_VERSION, **report}, indent=2))
    else:
        print("\n".join(_yaml_lines(rows)))
        for line in [*map(str, problems), *notes]:
            print(f"{PROG}: {line}", file=sys.stderr)
    return FAILED if problems else OK


def _row(setting: Setting, config: RadixTierConfig, unusable: bool) -> _Row:
    value = getattr(config, setting.name)
    remark = format_bytes(value.amount) if isinstance(value, Size) and value.unit is Unit.BYTES else ""
    if setting.name in config.origin and not unusable:
        return _Row(_plain(value), config.named(setting.name), remark)
    return _Row(_plain(value), "default", setting.default if value is None or value == () else remark)


def _chosen(config: RadixTierConfig) -> Mapping[str, Size]:
    """Return the sizes that a server on this machine would choose for those that were not given."""
    if any(map(directory_fault, config.nvme_path)):
        return {}
    complete, _ = config.with_defaults(Machine.probe())
    sizes = {name: getattr(complete, name) for name in ("dram_size", "nvme_size")}
    return {name: size for name, size in sizes.items() if getattr(config, name) is None}


def _by_name(name: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.name == name)


def _plain(value: Any) -> Any:
    """Return a field as the YAML file has it."""
    if isinstance(value, Size):
        return value.amount if value.unit is Unit.BYTES else f"{value.amount}tok"
    return list(value) if isinstance(value, tuple) else value


def _yaml_lines(rows: Mapping[str, _Row]) -> list[str]:
    settings = {"version": _Row(FILE_VERSION, ""), **{name.replace("_", "-"): row for name, row in rows.items()}}
    written = {name: f"{name}: {_yaml(row.value)}" for name, row in settings.items()}
    width = max(len(text) for text in written.values() if len(text) <= 48)
    remarks = {name: ": ".join(filter(None, (row.origin, row.remark))) for name, row in settings.items()}
    return [f"{text:<{width}}  # {remarks[name]}" if remarks[name] else text for name, text in written.items()]


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()


# ---- schema -----------------------------------------------------------------------------------------


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return OK
