"""The way of the settings into SGLang: fields, page size, token budget, transfers, refusals, processes."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_rig import CPU, MLA, VISION, command_line, resolved, write_model

from radixtier.config import RadixTierConfig
from radixtier.cpu import environment
from radixtier.footprint import footprint
from radixtier.io.trial import NOT_INSTALLED, Verdict
from radixtier.machine import Machine
from radixtier.sglang import resolution, startup
from radixtier.sglang.refusals import RadixTierConfigError
from radixtier.store.slab import lock, unlock
from radixtier.units import Size, Unit

SIZES = ["--radix-tier-hbm-size", "4MiB", "--radix-tier-dram-size", "8MiB"]
BYTES_PER_TOKEN = 512


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    prefix = "radixtier: error: "
    return [line.removeprefix(prefix) for line in capsys.readouterr().err.splitlines() if line.startswith(prefix)]


def refused(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        resolved(model, *flags)
    assert end.value.code == 2
    return errors(capsys)


def test_what_is_set(model: str) -> None:
    view = resolved(model, *SIZES)
    assert view.radix_cache_backend == "radixtier"
    assert view.enable_hierarchical_cache
    assert view.max_total_tokens == 4 * 2**20 // BYTES_PER_TOKEN
    assert view.page_size == 16
    assert (view.hicache_io_backend, view.hicache_mem_layout) == ("direct", "page_first_direct")
    assert view.hicache_write_policy == "write_through"
    assert view.hicache_host_memory_fraction is None


def test_without_the_tier_nothing_is_set(model: str) -> None:
    record = command_line(model)
    untouched = pickle.loads(pickle.dumps(record))
    record.resolve_once()
    assert record._radix_tier is None
    assert repr(record) == repr(untouched)
    assert all(source != resolution.SOURCE for source, _ in record._resolved_overrides)


def test_the_configuration_reaches_the_scheduler(model: str, tmp_path: Path) -> None:
    flags = ["--radix-tier-nvme-size", "1Mtok", "--radix-tier-nvme-path", str(tmp_path)]
    record = command_line(model, "--enable-radix-tier", *SIZES, *flags)
    record.resolve_once()
    config = pickle.loads(pickle.dumps(record))._radix_tier
    assert config.dram_size == Size(8 * 2**20)
    assert config.nvme_size == Size(1_000_000, Unit.TOKENS)
    assert config.nvme_path == (str(tmp_path),)


def test_a_control_endpoint_that_others_could_reach_needs_a_key(capsys: pytest.CaptureFixture[str], model: str) -> None:
    (line,) = refused(capsys, model, "--enable-radix-tier", *SIZES, "--radix-tier-control", "0.0.0.0:9000")
    assert line.startswith("--radix-tier-control 0.0.0.0:9000: ") and "no key is set" in line
    view = resolved(model, *SIZES, "--radix-tier-control", "0.0.0.0:9000", "--api-key", "secret")
    assert view.radix_cache_backend == "radixtier"


def test_a_budget_in_tokens(model: str) -> None:
    view = resolved(model, "--radix-tier-hbm-size", "5ktok", "--radix-tier-dram-size", "1Mtok")
    assert view.max_total_tokens == 5000


@pytest.mark.parametrize(("dtype", "width"), [("auto", 4), ("bf16", 2), ("fp8_e4m3", 1)])
def test_a_budget_in_bytes_follows_the_kv_dtype(model: str, dtype: str, width: int) -> None:
    view = resolved(model, *SIZES, "--kv-cache-dtype", dtype)
    assert view.max_total_tokens == 4 * 2**20 // (2 * 2 * 2 * 16 * width)


@pytest.mark.parametrize(("dtype", "width"), [("auto", 4), ("bf16", 2), ("fp8_e5m2", 1)])
def test_a_budget_in_bytes_of_a_model_with_a_latent(tmp_path: Path, dtype: str, width: int) -> None:
    view = resolved(write_model(tmp_path / "model", **MLA), *SIZES, "--kv-cache-dtype", dtype)
    assert view.max_total_tokens == 4 * 2**20 // (2 * (32 + 16) * width) // 16 * 16


def test_a_budget_in_bytes_of_a_model_with_images(tmp_path: Path) -> None:
    view = resolved(write_model(tmp_path / "model", **VISION), *SIZES)
    assert view.max_total_tokens == 4 * 2**20 // BYTES_PER_TOKEN


def test_direct_transfers_of_latents_need_as_many_pages_as_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", **MLA, num_hidden_layers=5)
    flags = ["--radix-tier-hbm-size", "4ktok", "--radix-tier-dram-size"]
    [line] = refused(capsys, model, *flags, "64tok")
    assert line.startswith("--radix-tier-dram-size 64tok: less than 5 pages") and "at least 80tok" in line
    resolved(model, *flags, "80tok")


def test_a_checkpoint_with_fp8_kv(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic", "kv_cache_quant_algo": "FP8"}
    view = resolved(write_model(tmp_path / "model", quantization_config=quantization), *SIZES)
    assert view.max_total_tokens == 4 * 2**20 // 128


def test_defaults_on_a_cpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "probe", classmethod(lambda cls: cls(ram_bytes=2**30)))
    view = resolved(model)
    assert view.max_total_tokens == 2**28 // BYTES_PER_TOKEN


def test_a_given_token_budget_is_left_alone(model: str) -> None:
    assert resolved(model, "--max-total-tokens", "4096").max_total_tokens == 4096


@pytest.mark.parametrize(
    ("flags", "tokens", "reason"),
    [
        ([], 16, "chosen because --page-size is not given"),
        (["--page-size", "1"], 1, "as given by --page-size"),
        (["--page-size", "32"], 32, "as given by --page-size"),
        (["--chunked-prefill-size", "100"], 4, "chosen"),
        (["--chunked-prefill-size", "-1"], 16, "chosen"),
    ],
)
def test_page_size(model: str, flags: list[str], tokens: int, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    record = command_line(model, "--enable-radix-tier", *SIZES, *flags)
    with caplog.at_level(logging.INFO):
        # SGLang's logging setup removed the handler that records.
        logging.getLogger().addHandler(caplog.handler)
        record.resolve_once()
    [line] = [text for text in caplog.messages if text.startswith("radixtier: page size")]
    assert line.startswith(f"radixtier: page size {tokens}, ")
    assert reason in line
    from sglang.srt.arg_groups.overrides import resolving_view

    assert resolving_view(record).page_size == tokens


@pytest.mark.parametrize(
    ("flags", "backend", "layout", "tokens"),
    [
        ([], "kernel", "page_first", 64),
        (["--hicache-io-backend", "direct"], "direct", "page_first_direct", 64),
        (["--page-size", "1"], "kernel", "page_first", 1),
    ],
)
def test_on_a_gpu(model: str, flags: list[str], backend: str, layout: str, tokens: int) -> None:
    view = resolved(model, *SIZES, "--device", "cuda", "--attention-backend", "triton", *flags)
    assert (view.hicache_io_backend, view.hicache_mem_layout) == (backend, layout)
    assert view.page_size == tokens


def test_all_problems_at_once(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--radix-tier-dram-size", "64G", "--radix-tier-nvme-path", "/nope", "--pp-size", "2"]
    lines = refused(capsys, model, *flags, "--max-total-tokens", "9", "--radix-tier-hbm-size", "1Mtok")
    assert [line.split(":")[0] for line in lines] == [
        "--radix-tier-dram-size 64G",
        "--radix-tier-nvme-path /nope",
        "--pp-size 2",
        "--max-total-tokens 9",
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--radix-tier-hbm-size", "4096"], "less than one page of 16 tokens, 8.0 KiB"),
        (["--radix-tier-dram-size", "15tok"], "less than one page"),
        (["--radix-tier-dram-size", "1000Gtok"], "of RAM are available"),
        (["--radix-tier-hbm-size", "1000Gtok"], "of RAM are available"),
        (["--radix-tier-nvme-size", "4096", "--radix-tier-nvme-path", "{tmp}"], "with its journal less than one page"),
        (["--radix-tier-nvme-size", "100000Gtok", "--radix-tier-nvme-path", "{tmp}"], "are free in"),
    ],
)
def test_sizes_that_the_model_decides(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    filled = [flag.replace("{tmp}", str(tmp_path)) for flag in flags]
    [line] = refused(capsys, model, *SIZES, *filled)
    assert line.startswith(filled[0])
    assert why in line


def test_the_least_that_a_store_takes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        os.mkdir(path)
    flags = [*SIZES, "--radix-tier-nvme-path", *paths, "--radix-tier-nvme-size"]
    least = footprint(2, 16 * BYTES_PER_TOKEN, 16, 2)
    [line] = refused(capsys, model, *flags, str(least - 1))
    assert line.endswith(f"Give it at least {least // 1024}KiB, which holds one page per directory, or 0 for none.")
    resolved(model, *flags, f"{least // 1024}KiB")


def test_the_log_names_all_directories(model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        os.mkdir(path)
    flags = [*SIZES, "--radix-tier-nvme-path", *paths, "--radix-tier-nvme-size", "1000tok"]
    record = command_line(model, "--enable-radix-tier", *flags)
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    size = footprint(62, 16 * BYTES_PER_TOKEN, 16, 2) / 2**20
    assert any(f"NVMe 992 tokens ({size:.1f} MiB) in {paths[0]}, {paths[1]};" in text for text in caplog.messages)
    assert any("share a file system" in text for text in caplog.messages)


def test_kvikio_where_it_does_not_work(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        os.mkdir(path)
    flags = [*SIZES, "--radix-tier-io-engine", "kvikio", "--radix-tier-nvme-path", *paths]
    monkeypatch.setattr("radixtier.io.probe.try_kvikio", lambda directory: Verdict(NOT_INSTALLED))
    prefix = "--radix-tier-io-engine kvikio: "
    assert refused(capsys, model, *flags) == [
        f"{prefix}KvikIO is not installed. Install it (pip install kvikio-cu13), or use auto."
    ]
    monkeypatch.setattr(
        startup, "kvikio_fault", lambda path: None if path.name == "a" else (f"broken in {path}", "Fix")
    )
    assert refused(capsys, model, *flags) == [f"{prefix}broken in {paths[1]}. Fix."]
    monkeypatch.setattr(startup, "kvikio_fault", lambda path: None)
    resolved(model, *flags)
    [line] = refused(capsys, model, *flags, "/nope")
    assert line.startswith("--radix-tier-nvme-path /nope: the directory does not exist")


def test_a_directory_that_another_server_uses_is_refused_with_its_pid(tmp_path: Path) -> None:
    fd = lock(tmp_path, 0)
    try:
        config = RadixTierConfig(enable=True, nvme_path=(str(tmp_path),))
        (problem,) = startup._check_directories(config)
        assert f"in use by process {os.getpid()}" in str(problem) and str(tmp_path) in str(problem)
    finally:
        unlock(fd)
    assert startup._check_directories(config) == []


def test_a_directory_that_hangs_is_not_touched(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(path: Path) -> None:
        if path == tmp_path:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", str(path))

    monkeypatch.setattr(startup, "try_posix", hangs)
    monkeypatch.setattr(RadixTierConfig, "validate", lambda *_: pytest.fail("looked at it"))
    [line] = refused(capsys, model, *SIZES, "--radix-tier-nvme-path", "/tmp", str(tmp_path))
    assert line.startswith(f"--radix-tier-nvme-path {tmp_path}: does not answer. Look at the drive or the mount")


def test_hbm_and_dram_share_the_ram_of_a_cpu(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "probe", classmethod(lambda cls: cls(ram_bytes=12 * 2**20)))
    [line] = refused(capsys, model, *SIZES)
    assert line.startswith("--radix-tier-dram-size 8MiB: more than the machine has")


def test_more_hbm_than_the_gpu_has(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "_device_memory", lambda device: 2**20)
    [line] = refused(capsys, model, *SIZES, "--device", "cuda", "--attention-backend", "triton")
    assert line.startswith("--radix-tier-hbm-size 4MiB: more than the 1.0 MiB that the GPU has")


def test_a_dram_tier_below_one_chunk_warns(model: str, caplog: pytest.LogCaptureFixture) -> None:
    record = command_line(model, "--enable-radix-tier", *SIZES, "--radix-tier-dram-size", "1ktok")
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    assert any("less than one prefill chunk" in text for text in caplog.messages)


def test_the_environment_is_enough_for_engine(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    monkeypatch.setenv("RADIXTIER_ENABLE", "1")
    monkeypatch.setenv("RADIXTIER_DRAM_SIZE", "8MiB")
    fields: dict[str, Any] = {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"}
    record = ServerArgs(model_path=model, skip_tokenizer_init=True, **fields)
    record.resolve_once()
    assert record._radix_tier.dram_size == Size(8 * 2**20)
    monkeypatch.setenv("RADIXTIER_DRAM_SIZE", "0")
    with pytest.raises(RadixTierConfigError, match=r"^radixtier: RADIXTIER_DRAM_SIZE 0: "):
        ServerArgs(model_path=model, skip_tokenizer_init=True, **fields).resolve_once()


def test_a_device_that_is_detected_is_checked_too(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.arg_groups import serving_hook
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import common

    load_plugins()
    monkeypatch.setenv("RADIXTIER_ENABLE", "1")
    for module in (common, serving_hook):
        monkeypatch.setattr(module, "get_device", lambda: "xpu")
    with pytest.raises(RadixTierConfigError, match="--device xpu: "):
        ServerArgs(model_path=model, skip_tokenizer_init=True).resolve_once()


def test_flags_without_the_switch_end_the_start(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line(model, *SIZES).resolve_once()
    assert len(errors(capsys)) == 2


_SERVE = "import sys; from sglang.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("start", "flags"),
    [
        (["-m", "sglang.launch_server", "--model-path"], ["--radix-tier-dram-size", "64G"]),
        (["-c", _SERVE, "serve"], ["--radix-tier-dram-size", "0"]),
    ],
    ids=["launch_server", "serve"],
)
def test_a_real_start_with_a_bad_value(model: str, start: list[str], flags: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, *start, model, *CPU, "--enable-radix-tier", *flags],
        env=environment(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 2, result.stderr
    assert f"radixtier: error: {' '.join(flags)}: " in result.stderr
    assert "Traceback" not in result.stderr


_PROCESS = """
import sys
sys.path.insert(0, {rig!r})
from sglang_rig import command_line
record = command_line({model!r}, *{flags!r})
from sglang.srt import runtime_context
runtime_context.publish(record, role="tokenizer")
print("tokenizer", "radixtier.cpu.activate" in sys.modules, "sglang.srt.mem_cache.registry" in sys.modules)
runtime_context.publish(record, role="scheduler")
from sglang.srt.mem_cache.registry import registered_radix_cache_backends
print("scheduler", sys.modules["radixtier.cpu.activate"]._active, registered_radix_cache_backends())
"""


@pytest.mark.parametrize("tier", [True, False], ids=["tier", "stock"])
def test_a_scheduler_process_is_prepared_and_others_are_not(model: str, tier: bool) -> None:
    flags = ["--enable-radix-tier", *SIZES] if tier else []
    result = subprocess.run(
        [sys.executable, "-c", _PROCESS.format(rig=str(Path(__file__).parent), model=model, flags=flags)],
        env=environment(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith(("tokenizer", "scheduler"))]
    backends = ["radixtier"] if tier else []
    assert lines == ["tokenizer False False", f"scheduler True {backends}"], result.stderr
