"""Ranks that have the same latents, each a process with the real cache: alike, with one store, also after restarts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("ranks_worker.py")
TIMEOUT_S = 540.0


def play(directory: Path, ranks: int, *, steps: int, seed: int, lives: int = 1) -> list[list[dict[str, Any]]]:
    """Have all ranks take the same random steps; returns per life what each rank tells."""
    (directory / "meet").unlink(missing_ok=True)
    command = [sys.executable, str(WORKER), str(directory)]
    numbers = [str(ranks), str(steps), str(seed), str(lives), "mla"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), *numbers], stdout=subprocess.PIPE, stderr=(directory / f"errors{rank}").open("w")
        )
        for rank in range(ranks)
    ]
    try:
        told = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        assert process.returncode == 0, (directory / f"errors{rank}").read_text()[-2000:]
    return list(zip(*(results(each) for each in told), strict=True))  # type: ignore[arg-type]


def results(lines: bytes) -> list[dict[str, Any]]:
    """Return what a rank tells at the end of each life."""
    told = map(json.loads, lines.splitlines())
    return [{**each, **each["stats"]} for each in told if "decisions" in each]


@pytest.mark.parametrize(("ranks", "steps", "lives"), [(2, 800, 2), (3, 300, 1)])
def test_ranks_with_one_store_stay_alike(tmp_path: Path, ranks: int, steps: int, lives: int) -> None:
    """CASES C9, C11: every byte is checked, and every account, while the drive of each rank fails in its own way."""
    for told in play(tmp_path, ranks, steps=steps, seed=7, lives=lives):
        first = told[0]
        for rank, each in enumerate(told):
            assert each["decisions"] == first["decisions"], f"rank {rank}"
            for name in ("hits", "served", "promoted", "written", "read_failures", "write_failures", "restored"):
                assert each[name] == first[name], name
            assert each["held"] == each["leases"] == 0
            assert each["write_bytes"] == (0 if rank else first["written"] * first["slot_bytes"]), "written once"
        assert first["hits"]["storage"] > 0 and first["faults"] > 0
    # A restart brings all of it back, on all ranks, who are told where it is.
    [again] = play(tmp_path, ranks, steps=0, seed=7)
    assert first["stored"] > 0
    # But pages that no restart can reach: what is in front of them was lost, or not known when they were stored.
    (restored,) = {each["restored"] for each in again}
    assert 0.9 * first["stored"] <= restored <= first["stored"]
    assert [each["stored"] for each in again] == [restored] * ranks
    assert len({each["decisions"][-1] for each in again}) == 1, "places and checksums as well"
