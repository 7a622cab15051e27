"""``radixtier serve`` adds what a CPU needs, keeps what the user says, and leaves every other server alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixtier.cli import serve
from radixtier.cpu.environment import NO_NCCL, STUBS, environment, numa_nodes, usable_cores


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


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Eight cores of one NUMA node, of which this process may use six."""
    mine = [0, 1, 2, 3, 6, 7]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(mine))
    monkeypatch.setattr(cpu_environment_module(), "numa_nodes", lambda: 1)
    monkeypatch.setattr(cpu_environment_module(), "usable_cores", lambda: len(mine))
    return mine


@pytest.mark.parametrize(
    ("flags", "bound", "threads"),
    [
        (["--tp", "2"], "0,1,2|3,6,7", "2"),
        (["--tp-size=3"], "0,1|2,3|6,7", "1"),
        (["--tensor-parallel-size", "4"], "0|1,2|3|6,7", "1"),
        (["--tp-size", "8"], "0|1|2|3|6|7|0|1", "1"),
    ],
)
def test_ranks_share_the_cores(flags: list[str], bound: str, threads: str, cores: list[int]) -> None:
    _, env, notes = serve.prepare(["--device", "cpu", *flags], {})
    assert env["SGLANG_CPU_OMP_THREADS_BIND"] == bound
    assert env["OMP_NUM_THREADS"] == threads
    assert env["SGLANG_NCCL_SO_PATH"] == NO_NCCL
    assert not Path(NO_NCCL).exists()
    assert f"setting SGLANG_CPU_OMP_THREADS_BIND={bound}" in notes


@pytest.mark.parametrize(
    ("flags", "fraction"),
    [
        (["--tp", "2"], "0.400"),
        (["--tp", "8"], "0.100"),
        (["--tp", "1"], None),
        (["--tp", "2", "--max-total-tokens", "4096"], None),
        (["--tp", "2", "--mem-fraction-static=0.3"], None),
        (["--tp", "2", "--enable-radix-tier"], None),
    ],
)
def test_ranks_share_the_memory(flags: list[str], fraction: str | None, cores: list[int]) -> None:
    arguments, _, _ = serve.prepare(["--device", "cpu", *flags], {})
    added = arguments[2 + len(flags) :]
    assert ("--mem-fraction-static" in added) == (fraction is not None)
    assert fraction is None or added[added.index("--mem-fraction-static") + 1] == fraction


def test_ranks_in_a_config_file_count(tmp_path: Path, cores: list[int]) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("device: cpu\ntp-size: 2\n")
    _, env, _ = serve.prepare(["--config", str(config)], {})
    assert env["SGLANG_CPU_OMP_THREADS_BIND"] == "0,1,2|3,6,7"


def test_what_the_user_says_of_ranks_is_kept(cores: list[int]) -> None:
    base = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/lib/libnccl.so", "OMP_NUM_THREADS": "3"}
    _, env, _ = serve.prepare(["--device", "cpu", "--tp", "2"], base)
    assert {name: env[name] for name in base} == base


@pytest.mark.parametrize("flags", [[], ["--tp", "1"], ["--tp", "many"], ["--tp", "0"], ["--tp"]])
def test_one_rank_needs_neither_cores_nor_a_missing_nccl(flags: list[str], cores: list[int]) -> None:
    _, env, _ = serve.prepare(["--device", "cpu", *flags], {})
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in env
    assert "SGLANG_NCCL_SO_PATH" not in env
    assert env["OMP_NUM_THREADS"] == "5"


def test_a_numa_node_for_each_rank_is_left_to_sglang(cores: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_environment_module(), "numa_nodes", lambda: 2)
    _, env, _ = serve.prepare(["--device", "cpu", "--tp", "2"], {})
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in env
    assert env["SGLANG_NCCL_SO_PATH"] == NO_NCCL


def test_numa_nodes_with_cores_of_ours_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 9})
    assert numa_nodes(tmp_path) == 1, "the kernel does not tell"
    for node, cpus in enumerate(("0-3,8", "4-7", "", "9-11")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert numa_nodes(tmp_path) == 2
