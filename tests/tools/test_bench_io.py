"""The I/O benchmark moves what it says and leaves nothing behind; nothing about the rates is asserted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from radixtier.tools import bench_io
from radixtier.tools.bench_io import DEFAULT_PAGE, Plan, main, make_plan, measure, render
from radixtier.tools.store_side import StoreSide
from radixtier.units import BadValue

MIB = 1 << 20
FIGURES = (
    *("raw_read_gbps", "raw_write_gbps", "store_read_gbps", "store_write_gbps", "read_ratio", "write_ratio"),
    *("file_per_page_read_gbps", "file_per_page_write_gbps"),
)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fio, and no more memory than must be."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bench_io, "FRAMES_BYTES", 64 * MIB)


def test_every_page_size_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("stays")
    lines: list[str] = []
    pages = (MIB + 1, DEFAULT_PAGE)
    report = measure(Plan(tmp_path, 8 * MIB, pages, rounds=1, frames_bytes=64 * MIB), lines.append)
    assert os.listdir(tmp_path) == ["other"]
    assert [page["page_bytes"] for page in report["pages"]] == list(pages)
    for page in (report, *report["pages"]):
        assert all(page[name] > 0 for name in FIGURES)
        assert page["read_ratio"] == page["store_read_gbps"] / page["raw_read_gbps"]
    assert {name: report[name] for name in report["pages"][1]} == report["pages"][1]
    assert (report["depth"], report["rounds"], report["size"], report["raw"]) == (8, 1, 8 * MIB, "loop")
    assert len(lines) == 2 * 2 * 2
    text = render(report)
    assert "1.0 MiB" in text and "256.0 KiB" in text and report["engine"] in text
    json.dumps(report)


def test_raw_and_store_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    rate = bench_io.rawio.Loop.rate

    def raw_rate(self: Any, kind: str, *rest: Any) -> float:
        turns.append(f"raw {kind}")
        return rate(self, kind, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(bench_io.rawio.Loop, "rate", raw_rate)
    for kind in ("read", "write"):
        inner = getattr(StoreSide, kind)
        monkeypatch.setattr(
            StoreSide, kind, lambda self, kind=kind, inner=inner: turns.append(f"store {kind}") or inner(self)
        )
    measure(Plan(tmp_path, 8 * MIB, (MIB,), rounds=1, frames_bytes=64 * MIB), lambda line: None)
    for kind in ("write", "read"):
        before = ["store write"]  # what raw writes destroyed is stored anew
        warm_up = [f"{side} {kind}" for side in ("store", "raw", "raw", "store")]
        counted = [f"{side} {kind}" for side in ("raw", "store", "store", "raw")]
        assert [turns.pop(0) for _ in range(9)] == before + warm_up + counted
    assert not turns


def test_ctrl_c_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: StoreSide) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreSide, "read", interrupted)
    assert main(["--path", str(tmp_path), "--size", "8MiB", "--page", "1MiB"]) == 130
    assert os.listdir(tmp_path) == []
    assert "scratch files are removed" in capsys.readouterr().err


def test_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--path", str(tmp_path), "--size", "8MiB", "--page", "1MiB", "--rounds", "1", "--json", str(file)]
    assert main(arguments) == 0
    assert json.loads(file.read_text())["page_bytes"] == MIB


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadValue, match="free in"):
        make_plan(tmp_path, 1 << 60, (MIB,), 1)
    with pytest.raises(BadValue, match="less than two"):
        make_plan(tmp_path, 8 * MIB - 1, (MIB,), 1)
    with pytest.raises(BadValue, match="--rounds"):
        make_plan(tmp_path, 8 * MIB, (MIB,), 0)
    assert make_plan(tmp_path, None, (MIB,), 1).size <= 2 << 30
    assert main(["--path", str(tmp_path / "absent")]) == 1
    assert "absent" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--path", ".", "--page", "12tok"], ["--path", ".", "--size", "0"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: radixtier bench io" in capsys.readouterr().err
