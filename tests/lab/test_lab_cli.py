"""``radixtier lab run``: its report, and one clear line for what it cannot use."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixtier.cli import lab_progress, lab_run
from radixtier.cli.lab import main
from radixtier.cli.lab_progress import Bar, guess
from radixtier.cli.lab_report import duration, table
from radixtier.lab.setup import run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations of three turns, one after the other, in 200 minutes."""
    file = tmp_path / "t.jsonl"
    turns = [[0, 1], [0, 1, 2, 3], [10, 11], [0, 1, 2, 3, 4], [10, 11, 12], [10, 11, 12, 13]]
    rows = [{"timestamp": 2_400_000 * n, "hash_ids": ids} for n, ids in enumerate(turns)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def words(text: str) -> list[str]:
    """Lines with single spaces; the date is that of the day."""
    text = re.sub(r"worn out on \d{4}-\d\d-\d\d", "worn out on DATE", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_report_on_the_screen(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(trace), "--hbm", "4", "--dram", "4", "--nvme", "20", "--admission", "all"]) == 0
    found = words(capsys.readouterr().out)
    assert found[:15] == [
        "6 requests in 200 min: 20 blocks of 512 tokens (64.0 MiB), 10,240 prompt tokens",
        "eviction lru, admission all, write budget none",
        "",
        "size blocks found tokens found share with those above",
        "HBM 4 (256.0 MiB) 7 3,584 0.3500 0.3500",
        "DRAM 4 (256.0 MiB) 4 2,048 0.2000 0.5500",
        "NVMe 20 (1.2 GiB) 0 0 0.0000 0.5500",
        "nowhere 9 4,608 0.4500",
        "",
        "moved HBM to DRAM DRAM to HBM DRAM to NVMe NVMe to DRAM",
        "576.0 MiB 256.0 MiB 576.0 MiB 0 B",
        "forgotten: 0 blocks; dropped from DRAM, on NVMe still: 1",
        "written to NVMe: 9 blocks; 4.0 GiB a day",
        "at this rate from today on, a drive of 1.2 GiB at 1 DWPD for 5 years is worn out on DATE",
        "",
    ]
    assert [line.split(" 0.")[0] for line in found[16:20]] == [
        "HBM alone",
        "HBM, DRAM",
        "HBM, DRAM, NVMe",
        "ceiling (Belady)",
    ]
    assert [re.findall(r"0\.\d{4}", line) for line in found[16:20]] == [["0.3500"], ["0.5500"], ["0.5500"], ["0.5500"]]


def test_what_is_asked_for_is_left_out_or_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--hbm", "4", "--nvme", "20", "--drive-bytes", "1TB", "--drive-dwpd", "3", "--mirror", "--no-ceiling"]
    trace.write_text(trace.read_text() + "{}\n")
    assert main(["run", str(trace), *sizes, "--skip-bad"]) == 0
    found = "\n".join(words(capsys.readouterr().out))
    assert "ceiling" not in found and ", DRAM mirrors HBM" in found
    assert f"1 lines left out, the first: {trace}:7: no object with timestamp and hash_ids" in found
    assert "a drive of 931.3 GiB at 3 DWPD for 5 years is not worn out in a hundred years" in found


def test_an_overloaded_server_is_told_with_what_to_do(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(trace), "--hbm", "4", "--prefill-rate", "0.1"]) == 0
    found = capsys.readouterr().out
    assert "queues grow as long as the load lasts" in found and "--prefill-rate" in found
    assert main(["run", str(trace), "--hbm", "4"]) == 0
    assert "queues grow" not in capsys.readouterr().out


def test_sizes_in_tokens_and_bytes(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    sizes = ["--hbm", "2ktok", "--dram", "1MB", "--kv-bytes-per-token", "100", "--json", str(file)]
    assert main(["run", str(trace), *sizes]) == 0
    found = json.loads(file.read_text())
    assert (found["hbm"], found["dram"], found["nvme"], found["block_bytes"]) == (3, 19, 0, 51_200)


def test_the_report_as_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    arguments = ["run", str(trace), "--hbm", "100", "--mirror", "--kv-bytes-per-token", "1", "--json"]
    assert main([*arguments, str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["blocks"], found["hits"], found["hit_ratio"]["total"]) == (20, 11, 0.55)
    assert (found["mirror"], found["block_bytes"], found["written"], found["seconds"]) == (True, 512, 0, 12_000.0)
    assert (found["trace"], found["block_tokens"], found["rates"]["decode_s"]) == ("t.jsonl", 512, 0.02)
    assert found["stacks"]["tiers"] == found["stacks"]["hbm"] and found["worn_out"] is None
    capsys.readouterr()
    assert main([*arguments, "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_budget_bounds_what_is_written(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(trace.read_text().replace("2400000", "1").replace("00000", ""))
    arguments = ["run", str(trace), "--hbm", "1", "--nvme", "20", "--kv-bytes-per-token", "1", "--json", "-"]
    assert main([*arguments, "--write-budget", f"{24 * 512 * 3}B/day"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 3


def test_a_recording_brings_sizes_and_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    header = {
        "radixtier_trace": 1,
        "page_tokens": 4,
        "page_bytes": 400,
        "hbm_pages": 7,
        "dram_pages": 5,
        "nvme_pages": 9,
    }
    keys = [f"{n:016x}" for n in (1, 2, 3)]
    rows = [
        {**header, "eviction": "slru", "admission": "all", "write_budget": "none"},
        {"t": 0.0, "arrive": 1, "session": 1, "in": 9, "keys": keys[:2]},
        {"t": 0.1, "start": 1, "hit": [0, 0, 0]},
        {"t": 0.5, "end": 1, "out": 4, "after": keys[1], "keys": keys[2:]},
        {"t": 1.0, "arrive": 2, "session": 1, "in": 14, "after": keys[2], "keys": []},
        {"t": 1.1, "start": 2, "hit": [12, 0, 0]},
        {"t": 1.5, "end": 2, "out": 1, "after": keys[2], "keys": []},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["run", str(file), "--dram", "6", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hbm"], found["dram"], found["nvme"], found["eviction"]) == (7, 6, 9, "slru")
    assert (found["block_bytes"], found["blocks"], found["hbm_hits"]) == (400, 5, 3)
    assert found["tokens"] == {"input": 23, "hbm": 12, "dram": 0, "nvme": 0}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ([], "--hbm is missing"),
        (["--hbm", "0"], "--hbm 0: a server "),
        (["--hbm", "1", "--dram", "-2"], "--dram -2: a size cannot be negative"),
        (["--hbm", "1", "--nvme", "1000000000000000TiB"], "--nvme 1000000000000000TiB: more than"),
        (["--hbm", "1", "--write-budget", "lots"], "--write-budget lots: not a size. Write 500GB/day"),
        (["--hbm", "1", "--kv-bytes-per-token", "0"], "--kv-bytes-per-token 0"),
        (["--hbm", "1", "--drive-bytes", "lots"], "--drive-bytes lots: not a size"),
        (["--hbm", "1", "--drive-bytes", "1Mtok"], "--drive-bytes 1Mtok: no number of bytes"),
        (["--hbm", "1", "--drive-dwpd", "0"], "--drive-dwpd 0.0: no rating"),
        (["--hbm", "1", "--drive-years", "nan"], "--drive-years nan: no rating"),
        (["--hbm", "1", "--json", "/dev/null/x"], "/dev/null/x: Not a directory"),
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


def test_an_interrupt_prints_what_was_replayed(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, progress: Callable[[int], None], **others: object) -> object:
        def stop(served: int) -> None:
            progress(served)
            if served == 4:
                raise KeyboardInterrupt

        return run(*arguments, progress=stop, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(lab_run, "run", interrupted)
    file = tmp_path / "r.json"
    assert main(["run", str(trace), "--hbm", "4", "--json", str(file)]) == 130
    output = capsys.readouterr()
    assert output.out.startswith("INTERRUPTED after 4 requests")
    assert output.err == "radixtier lab: interrupted after 4 requests\n"
    found = json.loads(file.read_text())
    assert found["interrupted"] and found["requests"] == 4 and "ceiling" not in found["stacks"]


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_the_bar_shows_after_a_while_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(lab_progress, "monotonic", lambda: now[0])
    screen = Terminal()
    bar = Bar(1000.0, screen)
    bar(64)
    assert screen.getvalue() == ""
    now[0] = 4.0
    bar(65)
    bar(512)
    bar(576)
    shown = screen.getvalue()
    assert shown == "\r\x1b[K[###############...............] about 51%, 4 s left, 512 requests, 128 a second"
    bar.clear()
    assert screen.getvalue() == shown + "\r\x1b[K"
    silent = io.StringIO()
    bar = Bar(None, silent)
    now[0] = 99.0
    bar(64)
    bar.clear()
    assert silent.getvalue() == ""


def test_the_number_of_requests_is_guessed(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert guess(trace) == 6
    monkeypatch.setattr(lab_progress, "HEAD", 100)
    assert guess(trace) == pytest.approx(6, abs=2)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert guess(packed) is None
    packed.write_bytes(b"")
    assert guess(packed) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.0123, "12.3 ms"), (0.9, "900 ms"), (1.5, "1.50 s"), (600, "10.0 min"), (36_000, "10.0 h")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_columns_are_aligned() -> None:
    assert table([("", "a", "bb"), ("name", "100", "")]) == ["        a  bb", "name  100"]


def test_whoever_reads_the_output_may_leave(trace: Path) -> None:
    command = f"{sys.executable} -m radixtier.cli lab run {trace} --hbm 4 --write-budget 1DWPD | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
