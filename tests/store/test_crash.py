"""SIGKILL at 200 random moments (CASES C6, C21, C22): no wrong page, no lost slot, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("crash_play.py")
KILLS = 200
WAIT_S = 600.0


def test_a_writer_killed_200_times_leaves_no_wrong_page_and_no_leftovers(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(mode=0o700)
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), str(KILLS), "1"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["kills"] == KILLS
    assert result["wrong"] == 0
    assert result["leaked"] == 0, "used slots and pages that the journal names differ"
    assert result["strange"] == 0 and result["files"] <= 2 * 5
    assert result["over"] == 0
    assert result["lives_with_pages"] > KILLS // 2 and result["found"] > 10 * KILLS, "else this proves little"
