"""``launch/verify_gpu.sh``: what it says without a GPU, its transfers on a CPU, and the verdicts that it comes to."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")

SCRIPT = Path(__file__).parents[2] / "launch" / "verify_gpu.sh"


def modules() -> tuple[Any, Any, Any]:
    from radixtier.gate import gpu_server, gpu_transfers, verify_gpu

    return verify_gpu, gpu_transfers, gpu_server


def test_without_a_gpu_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path)], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert "has never run on a GPU" in SCRIPT.read_text(), "say so until it has"
    assert done.returncode == 3 and done.stdout == "" and "there is no CUDA GPU here" in done.stderr
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["/does/not/exist"], ["--bogus"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_gpu, _, _ = modules()
    with pytest.raises(SystemExit) as ended:
        verify_gpu.main(arguments)
    assert ended.value.code == 2 and "verify_gpu: error" in capsys.readouterr().err


def test_transfers_are_compared_and_damage_is_noticed(tmp_path: Path) -> None:
    import torch

    _, gpu_transfers, _ = modules()
    found = gpu_transfers.measure(tmp_path, 6, 64 << 10, torch.device("cpu"), rounds=1)
    assert found.equal and found.noticed and min(found.straight_gbps, found.through_gbps) > 0
    assert list(tmp_path.iterdir()) == []


GOOD_MOVES = {
    "pages": 4, "page_bytes": 4096, "engine": "kvikio", "straight_gbps": 9.0, "through_gbps": 5.0, "equal": True,
    "noticed": True,
}  # fmt: skip
GOOD_SERVER = {
    "computed_s": 1.0, "nvme_s": 0.2, "hbm_s": 0.1, "landed": 8, "promoted": 9, "worst": 0.01, "same": True,
    "flushed": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("moves", "server", "problem"),
    [
        ({}, {}, ""),
        ({"equal": False}, {}, "other bytes"),
        ({"noticed": False}, {}, "was not noticed"),
        ({}, {"landed": 0}, "no page went straight"),
        ({}, {"worst": 0.9}, "differ by 0.900"),
        ({}, {"flushed": False}, "after a flush"),
        ({}, {"nvme_s": None, "hbm_s": None, "same": False}, ""),
    ],
)
def test_what_counts_as_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    moves: dict[str, Any], server: dict[str, Any], problem: str,
) -> None:  # fmt: skip
    verify_gpu, gpu_transfers, gpu_server = modules()
    moved = gpu_transfers.Transfers(**{**GOOD_MOVES, **moves})
    served = gpu_server.Served(**{**GOOD_SERVER, **server})
    monkeypatch.setattr(verify_gpu, "measure", lambda *_: moved)
    monkeypatch.setattr(verify_gpu, "serve", lambda *_: served)
    report = tmp_path / "report.json"
    status = verify_gpu.main([str(tmp_path), "--rehearse", "--json", str(report)])
    said = capsys.readouterr().out
    assert status == (1 if problem else 0) and ("PROBLEM" in said) == bool(problem) and problem in said
    assert json.loads(report.read_text())["transfers"]["pages"] == 4


def test_a_step_that_fails_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verify_gpu, gpu_transfers, _ = modules()

    def broken(*_: Any) -> Any:
        raise OSError("the driver is gone")

    monkeypatch.setattr(verify_gpu, "measure", broken)
    assert verify_gpu.main([str(tmp_path), "--rehearse"]) == 1
    assert "transfers: OSError: the driver is gone" in capsys.readouterr().out
    monkeypatch.setattr(verify_gpu, "measure", lambda *_: gpu_transfers.Transfers(**GOOD_MOVES))
    monkeypatch.setattr(verify_gpu, "serve", broken)
    assert verify_gpu.main([str(tmp_path), "--rehearse"]) == 1
    assert "server: the driver is gone" in capsys.readouterr().out


def test_answers_are_compared_up_to_where_they_part() -> None:
    _, _, gpu_server = modules()

    def heard(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> Any:
        return gpu_server.Heard(0.1, tokens, logprobs, 0, 0)

    first = heard((1, 2, 3), (-0.1, -0.2, -0.3))
    assert gpu_server.difference(first, first) == 0.0
    assert gpu_server.difference(first, heard((1, 2, 3), (-0.1, -0.25, -0.3))) == pytest.approx(0.05)
    assert gpu_server.difference(first, heard((1, 9, 3), (-0.11, -5.0, -9.0))) == pytest.approx(0.01)
