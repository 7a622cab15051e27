"""A tiny run of ``radixtier bench restart``: every page comes back, and the figures are there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from radixtier.sglang.bench_restart import main

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")


def test_a_small_index_comes_back_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "restart.json"
    assert main(["--pages", "160", "--page-size", "16", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["pages"] == 160 == row["back_at_serving"]
    assert {"open_s", "serving_s", "all_back_s", "index_s", "index_bytes_per_page"} <= set(row)
    assert "160" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--pages", "0"], ["--page-size", "0"], ["--page-size", "1024"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(arguments)
    assert exit_status.value.code == 2
