"""GPUs as nvidia-smi tells them, and every way in which it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from suggest_rig import smi_row, write_smi

from radixtier.suggest import gpus
from radixtier.suggest.gpus import Gpu, find_gpus


def env(tmp_path: Path, *rows: str, **variables: str) -> dict[str, str]:
    return {"PATH": write_smi(tmp_path / "bin", *rows), **variables}


def test_without_nvidia_smi_there_is_none(tmp_path: Path) -> None:
    assert find_gpus({"PATH": str(tmp_path)}) == ((), "")


def test_each_line_is_a_gpu(tmp_path: Path) -> None:
    found = find_gpus(env(tmp_path, smi_row(0), smi_row(1, name="NVIDIA L4", memory=23034, used=300)))
    assert found.gpus == (
        Gpu("0", "NVIDIA H100 80GB HBM3", 81559 << 20, 4 << 20),
        Gpu("1", "NVIDIA L4", 23034 << 20, 300 << 20),
    )
    assert not found.trouble


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [("1", ["1"]), ("2,0", ["0", "2"]), ("GPU-00000001", ["1"]), ("GPU-00000001-0000, 2", ["1", "2"])],
)
def test_the_variable_hides_the_others(tmp_path: Path, visible: str, numbers: list[str]) -> None:
    found = find_gpus(env(tmp_path, *(smi_row(i) for i in range(3)), CUDA_VISIBLE_DEVICES=visible))
    assert [gpu.number for gpu in found.gpus] == numbers


def test_all_of_them_hidden_is_told(tmp_path: Path) -> None:
    found = find_gpus(env(tmp_path, smi_row(0), CUDA_VISIBLE_DEVICES=""))
    assert found == ((), "CUDA_VISIBLE_DEVICES= hides every GPU")


@pytest.mark.parametrize("memory", ["[N/A]", "[Not Supported]", "Unknown Error"])
def test_memory_that_is_not_told(tmp_path: Path, memory: str) -> None:
    [gpu] = find_gpus(env(tmp_path, smi_row(0, memory=memory))).gpus
    assert gpu.memory is None


def test_a_divided_gpu_is_marked(tmp_path: Path) -> None:
    [gpu] = find_gpus(env(tmp_path, smi_row(0).replace("Disabled", "Enabled"))).gpus
    assert gpu.split


def test_an_instance_that_is_named_has_no_memory_of_its_own(tmp_path: Path) -> None:
    [gpu] = find_gpus(env(tmp_path, smi_row(0), CUDA_VISIBLE_DEVICES="MIG-1f2e")).gpus
    assert (gpu.number, gpu.memory, gpu.split) == ("MIG-1f2e", None, True)


def test_a_driver_in_trouble_is_told(tmp_path: Path) -> None:
    path = write_smi(tmp_path / "bin", status=18, error="Failed to initialize NVML: Driver/library version mismatch")
    assert find_gpus({"PATH": path}).trouble == (
        "nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch"
    )


def test_a_driver_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.2)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    assert find_gpus({"PATH": f"{tmp_path}:/usr/bin:/bin"}) == ((), "nvidia-smi did not answer within 0.2 s")


def test_lines_of_another_form_are_left_out(tmp_path: Path) -> None:
    assert find_gpus(env(tmp_path, "No devices were found", smi_row(0))).gpus[0].number == "0"
