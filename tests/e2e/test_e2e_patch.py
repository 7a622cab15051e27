"""A copy of the installed SGLang with the patch, and ``Engine`` with it and without: tiers, flags, and back."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from e2e_rig import (
    DRAM,
    HBM,
    LENGTH,
    PATCH,
    REQUEST_TIMEOUT_S,
    START_TIMEOUT_S,
    Tiered,
    patched_copy,
    prompts,
    tier_flags,
    with_path,
)

from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.seams.installed import package_directory
from radixtier.seams.patch import revert_patch, states, whole
from radixtier.settings import CONFIG_FILE, SETTINGS
from radixtier.sglang.flags import field_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

_HELP = "import sys; from sglang.cli.main import main; sys.argv = ['sglang', 'serve', '--help']; main()"


def run(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Run Python in a process group of its own, which does not outlive the time; return what it prints."""
    process = subprocess.Popen(
        [sys.executable, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=START_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-5000:]
    return output


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    return patched_copy(tmp_path)


def test_a_patched_server_and_the_way_back(patched: Path, tiny_model: Path, tmp_path: Path) -> None:
    env = with_path(patched)
    told = run(["-c", _HELP], env).split()
    assert {setting.flag for setting in (*SETTINGS, CONFIG_FILE)} <= set(told)

    store = tmp_path / "nvme"
    store.mkdir()
    with Server("that is patched", tiny_model, tier_flags(store, 16), tmp_path / "log", env=env) as server:
        server.start(START_TIMEOUT_S)
        tiered = Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), 16, store)
        info = json.loads(tiered.client.call("GET", "/server_info"))
        expected = {"enable_radix_tier": True, "radix_tier_nvme_path": [str(store)], "radix_tier_eviction": "auto"}
        assert {name: info[name] for name in expected} == expected
        assert (info["radix_tier_hbm_size"], info["radix_tier_dram_size"]) == (f"{HBM} tokens", f"{DRAM} tokens")
        assert {field_of(setting) for setting in (*SETTINGS, CONFIG_FILE)} <= info.keys()
        batch = prompts(8, seed=20)
        first, again = tiered.send_all(batch), tiered.send_all(batch)
        assert [reply.output_ids for reply in again] == [reply.output_ids for reply in first]
        assert max(reply.nvme for reply in again) == tiered.most_cached
        tiered.update_weights(tiny_model)
        server.stop()
    log = (tmp_path / "log").read_text()
    assert "weights were updated" in log
    assert "hook(s) to" not in log, "something was hooked although SGLang is patched"

    assert len(revert_patch(PATCH, patched / "sglang")) == len(PATCH.files)
    stock = package_directory()
    assert stock is not None and whole(states(PATCH, patched / "sglang")) == whole(states(PATCH, stock)) == "stock"
    assert [digest(patched / "sglang" / file.path) for file in PATCH.files] == [
        digest(stock / file.path) for file in PATCH.files
    ]


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_a_patched_sglang_works_without_radixtier(patched: Path, tmp_path: Path) -> None:
    """Neither the package nor its entry point is there; SGLang's own parser then knows none of the flags."""
    program = f"""
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "radixtier":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import sglang.srt.plugins
assert sglang.srt.plugins.__file__.startswith({str(patched)!r}) and sglang.srt.plugins.radix_tier is None
from sglang.srt.server_args import ServerArgs, prepare_server_args
assert not [name for name in ServerArgs.__struct_fields__ if "radix_tier" in name]
record = prepare_server_args(["--model-path", "dummy", "--device", "cpu"])
record.resolve_once()
from sglang.srt.runtime_context import publish
publish(record, role="scheduler")
prepare_server_args(["--model-path", "dummy", "--enable-radix-tier"])
"""
    env = {**with_path(patched), "SGLANG_PLUGINS": "none"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "unrecognized arguments: --enable-radix-tier" in done.stderr


@pytest.mark.parametrize("mode", ["engine_args", "fields"])
def test_engine(mode: str, request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "nvme"
    store.mkdir()
    env = with_path(Path(__file__).parent)
    if mode == "fields":  # what SGLang calls by itself needs no plugin
        env = {**with_path(Path(__file__).parent, request.getfixturevalue("patched")), "SGLANG_PLUGINS": "none"}
    output = run([str(Path(__file__).with_name("engine_play.py")), str(tiny_model), str(store), mode], env)
    [line] = [line for line in output.splitlines() if line.startswith("played ")]
    played = json.loads(line.removeprefix("played "))
    first, again = played["rounds"]
    assert [one["ids"] for one in again] == [one["ids"] for one in first]
    assert max(one.get("storage", 0) for one in again) == (LENGTH - 1) // 16 * 16
    assert played["backend"] == "radixtier"
    assert played["shown"].get("radix_tier_dram_size") == (f"{DRAM} tokens" if mode == "fields" else None)
