"""one_gpu.sh and eight_gpus.sh: what they start, how they stop it, and when they start nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from launch_rig import DEADLINE_S, LAUNCH, Rig, value
from suggest_rig import write_config, write_weights

SCRIPTS = sorted(LAUNCH.glob("*.sh"))
OURS = ("one_gpu.sh", "eight_gpus.sh")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", [*OURS, "check_mount.sh"])
def test_it_can_be_run_and_says_that_no_gpu_has_seen_it(script: str) -> None:
    assert os.access(LAUNCH / script, os.X_OK)
    if script in OURS:
        assert "never on a GPU" in (LAUNCH / script).read_text()


@pytest.mark.parametrize("script", OURS)
@pytest.mark.parametrize("arguments", [[], ["--help"], ["model", "--shell"]])
def test_usage(rig: Rig, script: str, arguments: list[str]) -> None:
    done = rig.run(script, *arguments)
    assert done.returncode == 2 and f"launch/{script} MODEL_DIRECTORY" in done.stderr


@pytest.mark.parametrize("script", OURS)
def test_without_a_gpu_nothing_starts(rig: Rig, model: str, script: str) -> None:
    done = rig.run(script, model)
    assert done.returncode == 1 and "shows no GPU" in done.stderr
    assert not list(rig.records.iterdir())


@pytest.mark.parametrize("script", OURS)
def test_what_is_in_the_way_is_told(rig: Rig, tmp_path: Path, script: str) -> None:
    rig.gpus(2)
    done = rig.run(script, write_config(tmp_path / "sparse", index_topk=2048))
    assert done.returncode == 1 and "sparse attention" in done.stderr
    done = rig.run(script, "org/model")
    assert done.returncode != 0 and "--kv-bytes-per-token" in done.stderr
    assert not list(rig.records.iterdir())


def test_one_gpu(rig: Rig, model: str, store: str) -> None:
    rig.gpus(8)
    process = rig.start("one_gpu.sh", model, store, "--", "--port", "31000", "--host", "127.0.0.1")
    [server] = rig.recorded("server", 1)
    # The server takes the script's place, so that a supervisor's SIGTERM reaches it and nobody else.
    assert (server["pid"], server["gpu"]) == (process.pid, "0")
    argv = server["argv"]
    assert argv[:2] == ["-m", "sglang.launch_server"] and value(argv, "--model-path") == model
    assert value(argv, "--attention-backend") == "flashinfer" and argv[-4:-2] == ["--port", "31000"]
    assert value(argv, "--radix-tier-dram-size") == "256GiB" and value(argv, "--radix-tier-nvme-path") == store
    status, _ = rig.stop(process)
    [stopped] = rig.recorded("stopped", 1)
    assert (status, stopped["argv"]) == (0, ["server", "SIGTERM"])


def test_one_gpu_by_name_with_another_rating(rig: Rig, store: str) -> None:
    rig.gpus(1)
    done = rig.run("one_gpu.sh", "org/model", store, DRY_RUN="1", KV_BYTES_PER_TOKEN="144KiB", DWPD="none")
    assert done.returncode == 0 and "--radix-tier-write-budget none" in done.stdout


def test_a_dry_run_prints_a_script_that_can_be_kept(rig: Rig, model: str, store: str, tmp_path: Path) -> None:
    rig.gpus(2)
    done = rig.run("one_gpu.sh", model, store, DRY_RUN="1", CUDA_VISIBLE_DEVICES="1")
    assert done.returncode == 0 and not list(rig.records.iterdir())
    kept = tmp_path / "start.sh"
    kept.write_text(done.stdout)
    assert "#   DRAM: 256.0 GiB" in done.stdout and "export CUDA_VISIBLE_DEVICES=1" in done.stdout
    rig.end()
    subprocess.run(["sh", str(kept)], env={**rig.env, "STAND_IN_ENDS": "1"}, timeout=60, check=False)
    [server] = rig.recorded("server", 1)
    assert (value(server["argv"], "--model-path"), server["gpu"]) == (model, "1")


def test_eight_gpus(rig: Rig, model: str, store: str) -> None:
    rig.gpus(8)
    process = rig.start("eight_gpus.sh", model, store, "--", "--log-level", "warning")
    servers = rig.recorded("server", 8)
    [router] = rig.recorded("router", 1)
    assert [s["gpu"] for s in servers] == [str(i) for i in range(8)]
    assert [value(s["argv"], "--port") for s in servers] == [str(30000 + i) for i in range(8)]
    assert [value(s["argv"], "--radix-tier-nvme-path") for s in servers] == [f"{store}/gpu{i}" for i in range(8)]
    assert all(os.path.isdir(f"{store}/gpu{i}") for i in range(8))
    # Each has an eighth of half of 512 GiB, however much the first ones take.
    assert {value(s["argv"], "--radix-tier-dram-size") for s in servers} == {"32GiB"}
    assert all(s["argv"][-4:] == ["--host", "127.0.0.1", "--log-level", "warning"] for s in servers)
    assert all(s["session"] == s["pid"] for s in (*servers, router))
    argv = router["argv"]
    assert argv[argv.index("--worker-urls") + 1 :] == [f"http://127.0.0.1:{30000 + i}" for i in range(8)]
    assert (value(argv, "--policy"), value(argv, "--host"), value(argv, "--port")) == (
        "cache_aware",
        "127.0.0.1",
        "8000",
    )
    status, said = rig.stop(process, signal.SIGINT)
    stopped = rig.recorded("stopped", 9)
    assert status == 0 and "stopping" in said
    assert {s["argv"][1] for s in stopped} == {"SIGTERM"}


@pytest.mark.parametrize(("count", "servers"), [(2, ["0,1"]), (4, ["0,1", "2,3"])])
def test_a_model_that_needs_two_gpus(rig: Rig, tmp_path: Path, store: str, count: int, servers: list[str]) -> None:
    rig.gpus(count)
    model = write_config(tmp_path / "large")
    write_weights(model, 100 << 30)
    process = rig.start("eight_gpus.sh", model, store)
    started = rig.recorded("server", len(servers))
    assert [s["gpu"] for s in started] == servers
    assert {value(s["argv"], "--tp-size") for s in started} == {"2"}
    assert [value(s["argv"], "--port") for s in started] == [str(30000 + i) for i in range(len(servers))]
    assert {value(s["argv"], "--radix-tier-dram-size") for s in started} == {f"{256 // len(servers)}GiB"}
    routers = rig.recorded("router", 1) if len(servers) > 1 else []
    status, said = rig.stop(process)
    assert status == 0 and ("no router" in said) == (not routers)
    assert len(rig.recorded("stopped", len(servers) + len(routers))) == len(servers) + len(routers)


def test_a_server_that_ends_does_not_end_the_others(rig: Rig, model: str) -> None:
    rig.gpus(3)
    process = rig.start(
        "eight_gpus.sh", model, STAND_IN_ENDS="1", ROUTER_POLICY="manual", ROUTER_PORT="8100", FIRST_PORT="31000"
    )
    servers = rig.recorded("server", 3)
    [router] = rig.recorded("router", 1)
    assert (value(router["argv"], "--policy"), value(router["argv"], "--port")) == ("manual", "8100")
    assert value(router["argv"], "--max-idle-secs") == str(7 * 86400)
    assert value(servers[2]["argv"], "--port") == "31002"
    rig.end()
    line = ""
    while "has ended" not in line:
        line = process.stdout.readline() if process.stdout else ""
        assert line, "the script is gone"
    assert "the server on GPU 1 has ended" in line and process.poll() is None
    assert rig.stop(process)[0] == 0
    assert len(rig.recorded("stopped", 3)) == 3


def test_when_all_have_ended_so_does_the_router(rig: Rig, model: str) -> None:
    rig.gpus(2)
    process = rig.start("eight_gpus.sh", model, STAND_IN_ENDS="0,1")
    rig.recorded("router", 1)
    rig.end()
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1 and "every server has ended" in said
    [stopped] = rig.recorded("stopped", 1)
    assert stopped["argv"] == ["router", "SIGTERM"]


def test_without_a_router(rig: Rig, model: str) -> None:
    rig.gpus(2)
    process = rig.start("eight_gpus.sh", model, ROUTER_POLICY="none", CUDA_VISIBLE_DEVICES="1")
    [server] = rig.recorded("server", 1)
    assert server["gpu"] == "1"
    status, said = rig.stop(process)
    assert status == 0 and "no router" in said and not list(rig.records.glob("router-*"))


def test_a_dry_run_of_all_gpus(rig: Rig, model: str, store: str) -> None:
    rig.gpus(4)
    done = rig.run("eight_gpus.sh", model, store, DRY_RUN="1")
    assert done.returncode == 0 and done.stdout.count("#!/bin/sh") == 4
    assert "-m sglang_router.launch_router --host 127.0.0.1" in done.stdout
    assert not list(rig.records.iterdir()) and not rig.logs.exists() and os.listdir(store) == []
