"""The tables of docs/sizing.md and docs/deploy.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from radixtier.cli import suggest
from radixtier.footprint import slots_for
from radixtier.lab.geometry import PRESETS
from radixtier.tools.breakeven import break_even

DOCS = Path(__file__).parents[2] / "docs"
SIZING = (DOCS / "sizing.md").read_text()
DEPLOY = (DOCS / "deploy.md").read_text()

MODELS = [
    (name, row)
    for row in re.findall(r"^\| (`.+` \| [\d.]+ KiB \| .+) \|$", SIZING, re.MULTILINE)
    for name in re.findall(r"`(.+?)`", row)
]
SPEEDS = re.findall(r"^\| (\d+) GB/s \| (.+) \|$", SIZING, re.MULTILINE)


def test_the_tables_were_found() -> None:
    assert len(MODELS) >= 10 and len(SPEEDS) == 5


@pytest.mark.parametrize(("name", "row"), MODELS, ids=[name for name, _ in MODELS])
def test_what_a_token_takes(name: str, row: str) -> None:
    nbytes = PRESETS[name].rank_bytes()
    assert row.split(" | ")[1:] == [
        f"{nbytes / 1024:.1f} KiB",
        f"{2**30 // nbytes:,}",
        f"{8192 * nbytes / 2**30:.2f} GiB",
        f"{64 * nbytes / 2**20:.2f} MiB",
    ]


@pytest.mark.parametrize(("speed", "cells"), SPEEDS)
def test_from_which_length_on(speed: str, cells: str) -> None:
    rates = (2000, 5000, 10000, 20000, 50000)
    found = [break_even(int(speed) * 1e9, rate, 128 << 10, ()).tokens for rate in rates]
    assert cells.split(" | ") == ["never" if tokens is None else f"{tokens:,}" for tokens in found]


def test_tokens_of_a_tebibyte() -> None:
    assert f"a TiB of NVMe holds {64 * slots_for(1 << 40, 64 * (128 << 10), 64):,} tokens" in SIZING


def test_options_of_the_table_exist() -> None:
    known = {option for action in suggest.parser()._actions for option in action.option_strings}
    section = DEPLOY.split("## The command for this machine")[1].split("## One GPU")[0]
    named = set(re.findall(r"(--[a-z][a-z-]+)", section)) - {"--config"}
    assert named <= known
