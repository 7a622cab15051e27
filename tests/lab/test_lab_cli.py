"""``radixtier lab run``: its report, and one clear line for what it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixtier.cli.lab import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations of three turns, one after the other."""
    file = tmp_path / "t.jsonl"
    turns = [[0, 1], [0, 1, 2, 3], [10, 11], [0, 1, 2, 3, 4], [10, 11, 12], [10, 11, 12, 13]]
    rows = [{"timestamp": 1000 * n, "hash_ids": ids} for n, ids in enumerate(turns)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_report_on_the_screen(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(trace), "--hbm", "4", "--dram", "4", "--nvme", "20", "--admission", "all"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "6 requests, 20 blocks",
        "              hits  with those above",
        "HBM              7            0.3500",
        "DRAM             4            0.5500",
        "NVMe             0            0.5500",
        "written to NVMe: 9 blocks (576.0 MiB)",
        "demoted from HBM to DRAM: 9 blocks; from DRAM to NVMe: 1",
        "forgotten: 0 blocks",
    ]


def test_the_report_as_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    arguments = ["run", str(trace), "--hbm", "100", "--mirror", "--kv-bytes-per-token", "1", "--json"]
    assert main([*arguments, str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["blocks"], found["hits"], found["hit_ratio"]["total"]) == (20, 11, 0.55)
    assert (found["mirror"], found["block_bytes"], found["written"], found["seconds"]) == (True, 512, 0, 5.0)
    capsys.readouterr()
    assert main([*arguments, "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_budget_bounds_what_is_written(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(trace), "--hbm", "1", "--nvme", "20", "--kv-bytes-per-token", "1", "--json", "-"]
    assert main([*arguments, "--write-budget", f"{24 * 512 * 3}B/day"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 3


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (["--hbm", "0"], "sizes of 0, 0 and 0 blocks"),
        (["--hbm", "1", "--dram", "-2"], "sizes of 1, -2 and 0 blocks"),
        (["--hbm", "1", "--write-budget", "lots"], "--write-budget lots: not a size. Write 500GB/day"),
        (["--hbm", "1", "--kv-bytes-per-token", "0"], "--kv-bytes-per-token 0"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    trace: Path, extra: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(trace), *extra]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and why in output.err


def test_a_bad_line_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(trace.read_text() + '{"timestamp": 9000}\n')
    assert main(["run", str(trace), "--hbm", "1"]) == 2
    assert f"{trace}:7: no object with timestamp and hash_ids" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "nope.jsonl"), "--hbm", "1"]) == 2
    assert "nope.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["nope"], ["run"], ["run", "t", "--hbm", "1", "--eviction", "nope"]])
def test_wrong_words_are_an_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
