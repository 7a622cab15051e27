"""Every test that docs/compatibility.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "compatibility.md").read_text())))


def test_tests_are_named() -> None:
    assert len(NAMED) >= 15


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_named_test_exists(file: str, name: str) -> None:
    [path] = (ROOT / "tests").rglob(file)
    assert f"\ndef {name}(" in path.read_text()
