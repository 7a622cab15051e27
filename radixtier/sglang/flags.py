"""The ``--radix-tier-*`` flags on SGLang's command line.

Owns the argparse side only. Invariant: argparse takes any text, so that every bad value is reported by
:mod:`radixtier.sglang.startup` in one line each, and not by SGLang's usage of many pages. Main thread.
"""

from __future__ import annotations

import argparse
from typing import Any

from radixtier.config import RadixTierConfig
from radixtier.settings import CONFIG_FILE, SETTINGS, Setting
from radixtier.units import ACCEPTED_FORMS, Size


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting, in a group of its own."""
    group = parser.add_argument_group(
        "radixtier",
        f"KV cache on HBM, DRAM and NVMe. A SIZE is {ACCEPTED_FORMS}, per server. "
        "Every flag is also an environment variable and a YAML key.",
    )
    for setting in (*SETTINGS, CONFIG_FILE):
        more: dict[str, Any] = {"metavar": setting.metavar, "nargs": "+" if setting.kind == "paths" else None}
        if setting.kind == "switch":
            more = {"action": "store_true"}
        group.add_argument(setting.flag, dest=field_of(setting), help=help_of(setting), **more)


def given_flags(namespace: Any) -> dict[str, Any]:
    """Return setting name -> value of what is given in a parsed command line or a patched SGLang's arguments."""
    values = {setting.name: getattr(namespace, field_of(setting), None) for setting in (*SETTINGS, CONFIG_FILE)}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def help_of(setting: Setting) -> str:
    """Return what ``--help`` says of a flag, as argparse wants it."""
    return f"{setting.help} Default: {setting.default}. Environment: {setting.env}.".replace("%", "%%")


def field_of(setting: Setting) -> str:
    """Return the name of a setting in a parsed command line, and in the arguments of a patched SGLang."""
    return setting.flag.removeprefix("--").replace("-", "_")


def effective(config: RadixTierConfig) -> dict[str, Any]:
    """Return what the settings came to, as values of the fields of a patched SGLang."""
    values = {setting: getattr(config, setting.name) for setting in SETTINGS}
    return {field_of(setting): _shown(value) for setting, value in values.items()}


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, Size) else list(value) if isinstance(value, tuple) else value
