from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_rig import ALIGNED, MISALIGNED, ODD, Layout, Rig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make rigs in directories of their own; all are closed at the end."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(tmp_path / f"store{len(rigs)}", **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.engine.clear()
        assert rig.store.close(10)


@pytest.fixture(params=[ALIGNED, ODD, MISALIGNED], ids=["aligned", "odd", "misaligned"])
def layout(request: pytest.FixtureRequest) -> Layout:
    param: Layout = request.param
    return param


@pytest.fixture
def rig(make_rig: Callable[..., Rig], layout: Layout) -> Rig:
    return make_rig(layout=layout)
