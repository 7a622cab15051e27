from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_rig import ALIGNED, MISALIGNED, ODD, Layout, Rig

from radixtier.store import health, keeper, ledger, quarantine, store


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make rigs in directories of their own; all are closed at the end."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(tmp_path / f"store{len(rigs)}", **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture(params=[ALIGNED, ODD, MISALIGNED], ids=["aligned", "odd", "misaligned"])
def layout(request: pytest.FixtureRequest) -> Layout:
    param: Layout = request.param
    return param


@pytest.fixture
def rig(make_rig: Callable[..., Rig], layout: Layout) -> Rig:
    return make_rig(layout=layout)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers look around and commit often, and try drives and slots again soon."""
    monkeypatch.setattr(keeper, "CHECK_S", 0.02)
    monkeypatch.setattr(keeper, "RETRY_S", 0.02)
    monkeypatch.setattr(ledger, "COMMIT_S", 0.01)
    monkeypatch.setattr(quarantine, "RETRY_S", 0.02)
    monkeypatch.setattr(health, "FIRST_PROBE_S", 0.02)
    monkeypatch.setattr(health, "LAST_PROBE_S", 0.02)
    monkeypatch.setattr(store, "LOOK_S", 0.0)
