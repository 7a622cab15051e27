"""``radixtier suggest``: four forms of one answer, and its exit status."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from suggest_rig import GIB, smi_row, write_config, write_smi, write_weights

from radixtier.cli import suggest


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = write_config(tmp_path / "model")
    write_weights(path, 16 * GIB)
    return path


@pytest.fixture
def store(tmp_path: Path, room: None) -> str:
    (tmp_path / "kv").mkdir(mode=0o700)
    return str(tmp_path / "kv")


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", write_smi(tmp_path / "bin", smi_row(0)))


@pytest.fixture
def eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", write_smi(tmp_path / "bin", *(smi_row(i) for i in range(8))))


def asked(model: str, store: str, *more: str) -> list[str]:
    return ["--model-path", model, "--path", store, "--ram", "512GiB", *more]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert suggest.main([*arguments, "--json"]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_text(one_gpu: None, model: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert suggest.main(asked(model, store)) == 0
    text = capsys.readouterr().out
    assert "python3 -m sglang.launch_server \\\n    --model-path" in text
    assert f"    --radix-tier-nvme-path {store} \\" in text
    assert "    --radix-tier-dram-size 256GiB \\" in text
    assert "128.0 KiB per token (32 layers, 8 KV heads of 128, bfloat16)" in text
    assert f"radixtier doctor {store} --kv-bytes-per-token 131072B" in text


def test_all_forms_say_the_same(
    one_gpu: None, model: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [server] = as_json(capsys, *asked(model, store))["servers"]
    wanted = [*server["python"], *server["arguments"]]
    assert suggest.main(asked(model, store, "--shell")) == 0
    assert ran(tmp_path, capsys.readouterr().out, "--host", "0.0.0.0") == [*wanted, "--host", "0.0.0.0"]
    assert suggest.main(asked(model, store, "--yaml")) == 0
    content = yaml.safe_load(capsys.readouterr().out)
    words = []
    for key, value in content.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += [f"--{key}", *map(str, values)]
    assert words == server["arguments"]


def ran(tmp_path: Path, script: str, *arguments: str) -> list[str]:
    """Run a script with an interpreter that writes its arguments down; returns them."""
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o700)
    file = tmp_path / "start.sh"
    file.write_text(script)
    env = {**os.environ, "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        ["sh", str(file), *arguments], capture_output=True, text=True, env=env, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_paths_with_blanks_survive_the_shell(
    one_gpu: None, model: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "it's $HOME; true"
    odd.mkdir(mode=0o700)
    assert suggest.main(asked(model, str(odd), "--shell")) == 0
    words = ran(tmp_path, capsys.readouterr().out)
    assert words[words.index("--radix-tier-nvme-path") + 1] == str(odd)


@pytest.mark.parametrize("breaking", ["\n", "\r", "\x85", "\u2028"])
def test_a_line_break_in_a_path_starts_no_line(
    eight_gpus: None, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str], breaking: str
) -> None:
    odd = tmp_path / f"kv{breaking}touch ran; exit 3; x: 1"
    odd.mkdir(mode=0o700)
    model = write_config(tmp_path / f"model{breaking}touch ran; exit 3; y: 1")
    more = ["--gpu", "0", "--kv-bytes-per-token", "128KiB"]
    [server, *_] = as_json(capsys, *asked(model, str(odd), *more))["servers"]
    assert suggest.main(asked(model, str(odd), *more, "--shell")) == 0
    script = capsys.readouterr().out
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "python").chmod(0o700)
    env = {**os.environ, "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(["sh", "-c", script], capture_output=True, env=env, timeout=60, check=True, cwd=tmp_path)
    assert done.stdout.decode().split("\0")[:-1] == [*server["python"], *server["arguments"]]
    assert not (tmp_path / "ran").exists()
    assert suggest.main(asked(model, str(odd), *more, "--yaml")) == 0
    content = yaml.safe_load(capsys.readouterr().out)
    assert content["model-path"] == model and content["radix-tier-nvme-path"] == [f"{odd}/gpu0"]
    assert set(content) == {word.removeprefix("--") for word in server["arguments"] if word.startswith("--")}


def test_a_model_is_found_from_everywhere(
    one_gpu: None, model: str, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    for relative in ("model", "./model/", "../" + str(Path(model).parent.name) + "/model"):
        [server] = as_json(capsys, *asked(relative, store))["servers"]
        assert server["arguments"][:2] == ["--model-path", model]


def test_eight_gpus(
    eight_gpus: None, model: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = as_json(capsys, *asked(model, store))["servers"]
    assert [s["gpu"] for s in servers] == [str(i) for i in range(8)]
    assert suggest.main(asked(model, store)) == 0
    text = capsys.readouterr().out
    assert text.count("sglang.launch_server") == 8 and "CUDA_VISIBLE_DEVICES=7 python3" in text
    assert suggest.main(asked(model, store, "--shell", "--gpu", "5")) == 0
    script = capsys.readouterr().out
    words = ran(tmp_path, script)
    assert words == [*servers[5]["python"], *servers[5]["arguments"]]
    assert os.path.isdir(f"{store}/gpu5") and os.stat(f"{store}/gpu5").st_mode & 0o777 == 0o700
    assert "export CUDA_VISIBLE_DEVICES=5" in script


@pytest.mark.parametrize("form", ["--shell", "--yaml"])
def test_one_file_is_one_server(
    eight_gpus: None, model: str, store: str, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert suggest.main(asked(model, store, form)) == 2
    told = capsys.readouterr()
    assert told.out == "" and f"{form}: 8 GPUs, so 8 servers: add --gpu" in told.err
    assert suggest.main(asked(model, store, form, "--gpu", "9")) == 2
    assert "there are: 0, 1, 2" in capsys.readouterr().err


def test_a_cpu_is_served_by_our_own_command(model: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_weights(model, GIB)
    answer = as_json(capsys, *asked(model, store))
    [server] = answer["servers"]
    assert server["python"] == ["-m", "radixtier.cli", "serve"]
    assert shlex.join(server["arguments"]).startswith(f"--model-path {model} --device cpu --dtype float32 ")
    # nvidia-smi is there and fails: that is no reason to keep silent.
    assert answer["findings"][0]["found"] == "nvidia-smi failed: No devices were found"


def test_a_gpu_that_is_not_here_yet(model: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    [server] = as_json(capsys, *asked(model, store, "--gpu-memory", "24GiB", "--kv-cache-dtype", "fp8_e5m2"))["servers"]
    assert server["gpu"] == "0" and server["kv_bytes_per_token"] == 65536
    assert "--kv-cache-dtype fp8_e5m2" in shlex.join(server["arguments"])


def test_what_is_in_the_way_is_told_in_every_form(
    one_gpu: None, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = write_config(tmp_path / "sparse", index_topk=2048)
    answer = as_json(capsys, *asked(sparse, store), status=1)
    assert answer["servers"] == [] and any(f["level"] == "problem" for f in answer["findings"])
    assert suggest.main(asked(sparse, store, "--shell")) == 1
    told = capsys.readouterr()
    assert told.out == "" and "sparse attention" in told.err and told.err.count("\n") == 1
    assert suggest.main(asked(sparse, store)) == 1
    assert "nothing to start" in capsys.readouterr().out


def test_a_model_by_name(one_gpu: None, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert suggest.main(asked("org/model", store)) == 2
    assert "give --kv-bytes-per-token" in capsys.readouterr().err
    answer = as_json(capsys, *asked("org/model", store, "--kv-bytes-per-token", "128KiB"))
    assert answer["servers"][0]["arguments"][:2] == ["--model-path", "org/model"]
    assert answer["servers"][0]["kv_bytes_per_token"] == 131072
    assert any("not looked at" in f["found"] for f in answer["findings"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model-path", "m", "--ram", "5tok"],
        ["--model-path", "m", "--dwpd", "0"],
        ["--model-path", "m", "--dwpd", "often"],
        ["--model-path", "m", "--port", "70000"],
        ["--model-path", "m", "--kv-bytes-per-token", "2tok"],
        ["--model-path", "m", "--shell", "--yaml"],
    ],
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        suggest.main(arguments)
    assert end.value.code == 2 and "usage: radixtier suggest" in capsys.readouterr().err
