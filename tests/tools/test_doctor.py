"""``radixtier doctor``: exit status, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixtier.cli import doctor
from radixtier.machine import FileSystem
from radixtier.tools.drive import Drive, Speed
from radixtier.tools.findings import Finding


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_host", lambda: [Finding("ok", "software", "there")])
    speed = Speed(2e9, 1e9, 1 << 20)
    monkeypatch.setattr(doctor, "check_drive", lambda directory: Drive([Finding("ok", "GDS", "off")], speed))
    monkeypatch.setattr(doctor, "check_rooms", lambda paths, size: [Finding("ok", "space", f"{len(paths)} {size}")])
    monkeypatch.setattr(doctor, "file_systems", lambda paths: [FileSystem((path,), 0) for path in paths])


def test_nothing_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    arguments = ["/a", "/b", "--size", "10000", "--json", str(file), "--prefill-rate", "1000"]
    assert doctor.main(arguments) == 0
    text = capsys.readouterr().out
    assert "nothing is in the way" in text and "4096 tokens" in text
    found = json.loads(file.read_text())
    assert [each["where"] for each in found["findings"][:4]] == ["this machine", "/a", "/b", "room"]
    assert found["findings"][3]["found"] == "2 10000"
    assert found["directories"]["/a"] == {"read_gbps": 2.0, "write_gbps": 1.0}
    estimate = found["break_even"]
    assert (estimate["read_gbps"], estimate["prefill_rate"], estimate["kv_bytes_per_token"]) == (4.0, 1000.0, 131072)
    assert estimate["tokens"] > 0


def test_two_directories_on_one_drive_are_one_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_systems", lambda paths: [FileSystem(tuple(paths), 0)])
    file = tmp_path / "found.json"
    assert doctor.main(["/a", "/b", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["break_even"]["read_gbps"] == 2.0


def test_a_problem_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad = Drive([Finding("problem", "directory", "missing", "make it")], None)
    monkeypatch.setattr(doctor, "check_drive", lambda directory: bad)
    assert doctor.main(["/a"]) == 1
    text = capsys.readouterr().out
    assert "-> make it" in text and "1 problem" in text and "break-even" not in text


def test_warnings_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_host", lambda: [Finding("warning", "software", "no SGLang", "install it")])
    assert doctor.main([]) == 0


def test_a_drive_that_never_pays_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["/a", "--prefill-rate", "1e6"]) == 0
    assert "computed faster than read" in capsys.readouterr().out


def test_the_models_kv_counts(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "found.json"
    arguments = ["/a", "--model-config", str(tmp_path), "--kv-cache-dtype", "bfloat16", "--json", str(file)]
    assert doctor.main(arguments) == 0
    assert json.loads(file.read_text())["break_even"]["kv_bytes_per_token"] == 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prefill-rate", "0"],
        ["--prefill-rate", "fast"],
        ["--size", "5tok"],
        ["--model-config", "/absent"],
        ["--kv-bytes-per-token", "1KiB", "--model-config", "x"],
    ],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        doctor.main(arguments)
    assert end.value.code == 2
    assert "usage: radixtier doctor" in capsys.readouterr().err
