"""The tools are tried on stores as the store's own tests make them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))

from store_rig import IDENTITY, Rig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make stores that a restart would find, in directories of their own; all are closed at the end."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(tmp_path / f"store{len(rigs)}", **{"identity": IDENTITY, **options}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
