"""``radixtier serve`` adds what a CPU needs, keeps what the user says, and leaves every other server alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixtier.cli import serve
from radixtier.cpu.environment import STUBS, environment, usable_cores


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_environment_module(), "sgl_kernel_serves_cpu", lambda: False)


def cpu_environment_module() -> object:
    import sys

    return sys.modules["radixtier.cpu.environment"]


@pytest.mark.parametrize(
    "argv", [[], ["--model-path", "m"], ["--device", "cuda"], ["--device=cuda", "--dtype", "half"], ["--help"]]
)
def test_other_devices_are_handed_over_untouched(argv: list[str]) -> None:
    assert serve.prepare(argv, {"HOME": "/h"}) == (argv, {"HOME": "/h"}, [])


@pytest.mark.parametrize("device", [["--device", "cpu"], ["--device=cpu"]])
def test_cpu_gets_defaults_and_environment(device: list[str]) -> None:
    arguments, env, notes = serve.prepare(["--model-path", "m", *device], {"PYTHONPATH": "/x"})
    assert arguments == [
        *("--model-path", "m", *device),
        *("--dtype", "float32"),
        *("--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch"),
        "--disable-overlap-schedule",
        "--sleep-on-idle",
    ]
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert env["PYTHONPATH"] == os.pathsep.join([str(STUBS), "/x"])
    assert len(notes) == 5 + 4


def test_what_the_user_says_is_kept() -> None:
    argv = ["--device", "cpu", "--dtype=bfloat16", "--attention-backend", "intel_amx", "--sleep-on-idle"]
    base = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE", "SGLANG_USE_CPU_ENGINE": "1"}
    arguments, env, _ = serve.prepare(argv, base)
    assert arguments == [*argv, "--sampling-backend", "pytorch", "--disable-overlap-schedule"]
    assert {name: env[name] for name in base} == base


def test_config_file_counts_as_said(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("device: cpu\nattention_backend: intel_amx\nsleep-on-idle: true\n")
    arguments, _, _ = serve.prepare(["--config", str(config)], {})
    assert arguments[2:] == [
        *("--dtype", "float32"),
        *("--sampling-backend", "pytorch"),
        "--disable-overlap-schedule",
    ]
    on_a_gpu = ["--config", str(config), "--device", "cuda"]
    assert serve.prepare(on_a_gpu, {})[0] == on_a_gpu


def test_stub_is_added_once() -> None:
    once = environment({})
    assert environment(once) == once


def test_container_quota_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
