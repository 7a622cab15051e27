"""``--json`` to standard output: JSON and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixtier.cli import bench_serve, doctor, gate
from radixtier.cli.main import main
from radixtier.tools.findings import Finding


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_host", lambda: [Finding("ok", "Python", "3.11")])


def test_doctor(healthy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["where"] for each in found["findings"]] == ["this machine"]
    assert main(["doctor", "--json", str(tmp_path / "d.json")]) == 0
    assert "this machine" in capsys.readouterr().out
    assert json.loads((tmp_path / "d.json").read_text()) == found
    assert main(["doctor", "--json", str(tmp_path)]) == 2
    assert f"--json {tmp_path}: Is a directory: name another file" in capsys.readouterr().err


def test_gate_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gate, "read_json", lambda file: {"file": str(file)})
    assert main(["gate", "show", "report.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "report.json"}


def test_bench_serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(options: Any, _: Path, screen: Any, report: dict[str, Any]) -> int:
        screen.line("a table")
        return bench_serve._end(options, screen, report | {"complete": True}, False, True)

    monkeypatch.setattr(bench_serve, "_measure", measure)
    monkeypatch.setattr(bench_serve, "end_like_ctrl_c", lambda: None)
    assert main(["bench", "serve", "http://127.0.0.1:1", "--json", "-"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["complete"] and told.err == "a table\n"
