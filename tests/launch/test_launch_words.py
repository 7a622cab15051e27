"""No file of the project names a flag, variable or key of the tier that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch_rig import ROOT

from radixtier.settings import CONFIG_FILE, SETTINGS

FLAGS = {setting.flag for setting in (*SETTINGS, CONFIG_FILE)}
VARIABLES = {setting.env for setting in (*SETTINGS, CONFIG_FILE)}
OTHER_VARIABLES = {
    *("RADIXTIER_PYTHON", "RADIXTIER_VENV", "RADIXTIER_EXTRAS", "RADIXTIER_CACHE"),  # the scripts for a checkout
    *("RADIXTIER_MODEL", "RADIXTIER_STORE", "RADIXTIER_GPU"),  # launch/docker/compose.yaml
}

SUFFIXES = {"", ".conf", ".env", ".md", ".service", ".sh", ".yaml", ".yml", ".json"}
TEXTS = [
    *sorted(path for path in (ROOT / "launch").rglob("*") if path.is_file() and path.suffix in SUFFIXES),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
]
PARSED = [path for path in TEXTS if path.suffix in {".yaml", ".yml"}]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_exist(path: Path) -> None:
    named = set(re.findall(r"--(?:enable-)?radix-tier(?:-[a-z]+)*(?![a-z*-])", path.read_text()))
    assert named <= FLAGS


@pytest.mark.parametrize("path", PARSED, ids=lambda path: str(path.relative_to(ROOT)))
def test_keys_exist(path: Path) -> None:
    named = set(re.findall(r"^[ #]*((?:enable-)?radix-tier[a-z-]*):", path.read_text(), re.MULTILINE))
    assert {f"--{name}" for name in named} <= FLAGS


@pytest.mark.parametrize(
    "path", [path for path in TEXTS if "launch" in path.parts], ids=lambda path: str(path.relative_to(ROOT))
)
def test_variables_exist(path: Path) -> None:
    named = set(re.findall(r"\bRADIXTIER_[A-Z_]+\b", path.read_text()))
    assert named <= VARIABLES | OTHER_VARIABLES
