"""The match benchmark runs on tiny sizes and reports what it promises; nothing about the times is asserted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from radixtier.sglang import bench_match
from radixtier.sglang.bench_handles import measure_handles

TIERS = ("hbm", "dram", "dram-changed", "dram-admission", "nvme", "nvme-changed")
STEPS = ("alloc", "filled", "write_commit", "demote", "read_commit", "free")

needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs SGLang")


@needs_sglang
def test_rows_and_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plan = bench_match.Plan(page_sizes=(1, 16), prefixes=(64, 128), turns=4, handles=2048)
    monkeypatch.setattr(bench_match, "QUICK", plan)
    file = tmp_path / "match.json"
    assert bench_match.main(["--quick", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    seen = [(row["page_size"], row["prefix_tokens"], row["tier"]) for row in report["rows"]]
    assert sorted(seen) == sorted((p, n, tier) for p in (1, 16) for n in (64, 128) for tier in TIERS)
    for row in report["rows"]:
        assert row["stock_us"] > 0 and row["radixtier_us"] > 0 and row["ratio"] > 0 and row["spread"] >= 0
        assert row["target"] == (1.10 if row["tier"] == "hbm" else 1.50)
    assert report["handles"]["handles"] == 2048
    assert isinstance(report["noisy"], bool)
    printed = capsys.readouterr()
    assert printed.out.count("dram-admission") == 4 and "2,048 handles" in printed.out
    assert "building both caches" in printed.err


def test_handles_take_every_step_once() -> None:
    figures = measure_handles(4096)
    assert figures["handles"] == 4096
    assert 0 < figures["bytes_per_handle"] <= 64
    assert 8 <= figures["tree_bytes_per_handle"] < 64
    assert tuple(figures["ns_per_page"]) == STEPS
    assert all(ns > 0 for ns in figures["ns_per_page"].values())


def test_help_tells_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench_match.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(tier in text for tier in TIERS)
