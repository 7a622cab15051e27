"""The ``--radix-tier-*`` flags on SGLang's command line.

Owns the argparse side only. Invariant: argparse takes any text, so that every bad value is reported by
:mod:`radixtier.sglang.startup` in one line each, and not by SGLang's usage of many pages. Main thread.
"""

from __future__ import annotations

import argparse
from typing import Any

from radixtier.settings import CONFIG_FILE, SETTINGS, Setting
from radixtier.units import ACCEPTED_FORMS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting, in a group of its own."""
    group = parser.add_argument_group(
        "radixtier",
        f"KV cache on HBM, DRAM and NVMe. A SIZE is {ACCEPTED_FORMS}, per server. "
        "Every flag is also an environment variable and a YAML key.",
    )
    for setting in (*SETTINGS, CONFIG_FILE):
        help_text = f"{setting.help} Default: {setting.default}. Environment: {setting.env}.".replace("%", "%%")
        if not setting.metavar:
            group.add_argument(setting.flag, action="store_true", dest=_dest(setting), help=help_text)
        else:
            several: dict[str, Any] = {"nargs": "+"} if setting.name == "nvme_path" else {}
            group.add_argument(setting.flag, dest=_dest(setting), metavar=setting.metavar, help=help_text, **several)


def given_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return setting name -> value of the flags on a parsed command line, without those not given."""
    values = {setting.name: getattr(namespace, _dest(setting), None) for setting in (*SETTINGS, CONFIG_FILE)}
    return {name: value for name, value in values.items() if value not in (None, False)}


def _dest(setting: Setting) -> str:
    return setting.flag.removeprefix("--").replace("-", "_")
