"""Sweeps: the grid, processes that fail and die, results that are taken up again, the table, the command."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.cli import lab_sweep
from radixtier.cli.lab import main
from radixtier.lab.rates import Rates
from radixtier.lab.setup import Setup
from radixtier.lab.sweep.clock import TimeLeft, spoken
from radixtier.lab.sweep.grid import Cell, Outcome, ceiling_tasks, grid, scaled, share_ceiling, sizes
from radixtier.lab.sweep.held import Shelf
from radixtier.lab.sweep.results import NAME, BadResults, Results
from radixtier.lab.sweep.table import as_csv, as_markdown, as_text, table
from radixtier.lab.sweep.workers import Workers
from radixtier.lab.traces.mooncake import MooncakeTrace
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.trace import Request, Trace

# ---- the grid ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("5", [5]),
        ("5,7,5", [5, 7]),
        ("1..16:5", [1, 2, 4, 8, 16]),
        ("0,10..1000:3", [0, 10, 100, 1000]),
        ("1..4:9", [1, 2, 3, 4]),
    ],
)
def test_sizes(text: str, blocks: list[int]) -> None:
    assert sizes(text, int) == blocks


@pytest.mark.parametrize("text", ["1..4", "1..4:1", "1..4:x", "4..1:3", "0..4:3", "4:3", "1..4:5000"])
def test_ranges_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|larger"):
        sizes(text, int)


@given(st.integers(1, 1000), st.integers(1, 10**6), st.integers(2, 40))
def test_a_range_ends_where_it_says_and_grows_evenly(low: int, more: int, steps: int) -> None:
    found = sizes(f"{low}..{low + more}:{steps}", int)
    assert (found[0], found[-1]) == (low, low + more)
    assert found == sorted(set(found)) and len(found) <= steps


def test_scales_multiply_all_three() -> None:
    assert scaled([(1, 0, 5)], [0.5, 1, 3]) == [(1, 0, 2), (1, 0, 5), (3, 0, 15)]


def test_the_grid_is_the_product() -> None:
    cells = grid(
        {"a": [(1, 2, 3), (2, 4, 6)], "b": [(9, 0, 0)]},
        Setup(1, mirror=True),
        evictions=["lru", "auto"],
        admissions=["all"],
        budgets=["none", "1GB/day"],
    )
    assert [cell.trace for cell in cells] == ["a"] * 8 + ["b"] * 2, "without NVMe no budget"
    assert len(set(cells)) == 10
    assert cells[7].setup == Setup(2, 4, 6, eviction="auto", admission="all", write_budget="1GB/day", mirror=True)


def outcome(cell: Cell, ceiling: float | None = None) -> Outcome:
    waits = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "mean": 1.5}
    stacks: dict[str, Any] = {
        name: {"hit_ratio": 0.5, "ttft_s": waits, "utilisation": 0.25} for name in ("hbm", "tiers")
    }
    if ceiling is not None:
        stacks["ceiling"] = {"hit_ratio": ceiling, "ttft_s": waits}
    report = {
        "hit_ratio": {"hbm": 0.125, "hbm_dram": 0.25, "total": 0.5},
        "stacks": stacks,
        "block_bytes": 1 << 20,
        "bytes_written_per_day": 3 << 30,
    }
    return Outcome(cell, report, seconds=2.0, distinct=7)


A, B, C = (Cell("t", Setup(size, eviction=eviction)) for size, eviction in ((1, "lru"), (1, "auto"), (2, "lru")))


def test_one_ceiling_for_all_policies_of_a_size() -> None:
    assert ceiling_tasks([A, B, C], []) == [(A, True), (B, False), (C, True)]
    assert ceiling_tasks([B, C], [outcome(A, 0.75)]) == [(B, False), (C, True)]
    assert ceiling_tasks([B], [outcome(A), Outcome(C, error="no")]) == [(B, True)]
    shared = share_ceiling([outcome(A, 0.75), outcome(B), outcome(C), Outcome(C, error="no")])
    found = [(each.report or {"stacks": {}})["stacks"].get("ceiling", {}).get("hit_ratio") for each in shared]
    assert found == [0.75, 0.75, None, None]


# ---- traces in memory -------------------------------------------------------------------------------

TURNS = [[0, 1], [0, 1, 2, 3], [10, 11], [0, 1, 2, 3, 4], [10, 11, 12], [10, 11, 12, 13]]


def write_trace(file: Path, extra: str = "") -> Path:
    rows = [{"timestamp": 1000 * n, "hash_ids": ids} for n, ids in enumerate(TURNS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + extra)
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations of three turns."""
    return write_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize(("most", "reads"), [(1000, 1), (5, 3)])
def test_a_trace_is_read_once_unless_it_is_large(trace: Path, most: int, reads: int) -> None:
    class Counted(MooncakeTrace):
        read = 0

        def requests(self) -> Iterator[Request]:
            Counted.read += 1
            return super().requests()

    shelf = Shelf({"t": Counted(trace)}, most)
    for _ in range(2):
        again = shelf.get("t")
        assert [request.time for request in again.requests()] == [0, 1, 2, 3, 4, 5]
        assert again.nodes.n_pages == 9
    assert Counted.read == reads


def test_a_bad_trace_is_not_read_again(trace: Path) -> None:
    write_trace(trace, "nonsense\n")
    shelf = Shelf({"t": MooncakeTrace(trace)})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"t\.jsonl:7: "):
            shelf.get("t")
        trace.unlink(missing_ok=True)


# ---- processes --------------------------------------------------------------------------------------


class Deadly(MooncakeTrace):
    """Ends the process that reads it."""

    def requests(self) -> Iterator[Request]:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().requests()


class Endless(MooncakeTrace):
    """Never comes to an end."""

    def requests(self) -> Iterator[Request]:
        while True:
            yield Request(0.0, 0, [])


def test_what_fails_and_what_dies_leaves_the_others_alone(tmp_path: Path, trace: Path) -> None:
    bad = write_trace(tmp_path / "bad.jsonl", "nonsense\n")
    traces: dict[str, Trace] = {"deadly": Deadly(trace), "bad": open_trace(bad), "good": open_trace(trace)}
    cells = [Cell(name, Setup(hbm, 4, eviction="lru")) for name in traces for hbm in (2, 4)]
    with Workers(traces, Rates(), 2) as workers:
        found = {each.cell: each for each in workers.replay([(cell, False) for cell in cells])}
    assert set(found) == set(cells)
    errors = [found[cell].error or "" for cell in cells]
    assert all("exit code -9" in error for error in errors[:2])
    assert all("bad.jsonl:7: not a line of JSON" in error for error in errors[2:4])
    assert errors[4:] == ["", ""]
    reports = [found[cell].report or {} for cell in cells[4:]]
    assert [report["hits"] for report in reports] == [10, 11]
    assert [found[cell].distinct for cell in cells] == [0] * 4 + [9] * 2
    assert "ceiling" not in reports[0]["stacks"]


def test_closing_ends_what_is_in_the_middle(trace: Path) -> None:
    traces: dict[str, Trace] = {"good": open_trace(trace), "endless": Endless(trace)}
    tasks = [(Cell(name, Setup(4)), True) for name in traces]
    with Workers(traces, Rates(), 2) as workers:
        with closing(workers.replay(tasks)) as found:
            assert "ceiling" in (next(found).report or {})["stacks"]
        again = list(workers.replay(tasks[:1]))
    assert [each.error for each in again] == [None]


# ---- results ----------------------------------------------------------------------------------------


def test_results_are_taken_up_again(tmp_path: Path) -> None:
    about = {"rates": {"read": 1.5}, "seed": 0}
    results = Results(tmp_path / "new" / "dir", about)
    results.add(outcome(A, 0.75))
    results.add(Outcome(B, error="broken"))
    results.close()
    with results.file.open("ab") as file:
        file.write(b'{"cell": {"trace": "cut o')
    again = Results(tmp_path / "new" / "dir", about, resume=True)
    assert again.done == {A: outcome(A, 0.75)}, "what failed is tried again, what was cut off is gone"
    again.add(outcome(B))
    again.close()
    lines = [json.loads(line) for line in results.file.read_text().splitlines()]
    assert len(lines) == 4 and "radixtier_sweep" in lines[0]
    assert set(Results(tmp_path / "new" / "dir", about, resume=True).done) == {A, B}


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    Results(tmp_path, {"seed": 0}).close()
    with pytest.raises(BadResults, match="--resume"):
        Results(tmp_path, {"seed": 0})
    with pytest.raises(BadResults, match="other seed"):
        Results(tmp_path, {"seed": 1}, resume=True)
    file = tmp_path / NAME
    file.write_text(file.read_text() + "{}\n[]\n")
    Results(tmp_path, {"seed": 0}, resume=True).close()


@pytest.mark.parametrize(("text", "line"), [("[]\n", 1), ("nonsense\n", 1), ('{"radixtier_sweep": 1}\nnonsense\n', 2)])
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadResults, match=f"{NAME}:{line}: no"):
        Results(tmp_path, {}, resume=True)
    assert (tmp_path / NAME).read_text() == text


# ---- what is told -----------------------------------------------------------------------------------


def test_the_table() -> None:
    failed = Outcome(C, error="t.jsonl:7: no | good")
    rows = table([outcome(A, 0.75), outcome(B), failed])
    assert as_text(rows).splitlines() == [
        "    HBM  DRAM  NVMe  eviction  in HBM  + DRAM  + NVMe  ceiling  written/day  TTFT p50  TTFT p95  TTFT p99"
        "  p95, HBM alone  busy  busy, HBM alone",
        "1.0 MiB   0 B   0 B  lru        0.125   0.250   0.500    0.750      3.0 GiB    1.00 s    2.00 s    3.00 s"
        "          2.00 s  0.25             0.25",
        "1.0 MiB   0 B   0 B  auto       0.125   0.250   0.500               3.0 GiB    1.00 s    2.00 s    3.00 s"
        "          2.00 s  0.25             0.25",
        "      2     0     0  lru       failed: t.jsonl:7: no | good",
    ]
    markdown = as_markdown(rows).splitlines()
    assert markdown[1].startswith("| ---: | ---: | ---: | --- | ---: |") and r"no \| good" in markdown[4]
    names, first, *_ = as_csv([outcome(A, 0.75), failed]).splitlines()
    values = dict(zip(names.split(","), first.split(","), strict=True))
    assert (values["trace"], values["hbm"], values["hit_ratio.total"]) == ("t", "1", "0.5")
    assert values["stacks.ceiling.ttft_s.p95"] == "2.0"


def test_time_left_goes_by_trace_and_policy() -> None:
    clock = TimeLeft([A, B, C], 1)
    assert clock.seconds is None
    clock.done(outcome(A))
    clock.done(outcome(B)._replace(seconds=10.0))
    assert clock.seconds == 2.0, "as long as the other of lru"
    clock.done(outcome(C))
    assert clock.seconds == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (400, "7 min"), (7500, "2 h 05 min")])
def test_time_is_spoken(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


# ---- the command ------------------------------------------------------------------------------------

SMALL = ["--hbm", "2", "--dram", "2", "--nvme", "4", "--scale", "1,2", "--eviction", "lru,s3fifo", "--jobs", "1"]


def test_the_command(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = [
        "sweep",
        str(trace),
        *SMALL,
        "--out",
        str(out),
        "--format",
        "none",
        "--json",
        str(tmp_path / "all.json"),
    ]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert [line.split()[3] for line in first.out.splitlines()[1:]] == ["128.0", "MiB"] or "s3fifo" in first.out
    assert "4/4" in first.err and "left" in first.err
    assert {file.name for file in out.iterdir()} == {NAME, "table.md", "table.csv"}
    found = json.loads((tmp_path / "all.json").read_text())
    assert [(each["hbm"], each["eviction"]) for each in found] == [(2, "lru"), (2, "s3fifo"), (4, "lru"), (4, "s3fifo")]
    assert all("ceiling" in each["report"]["stacks"] for each in found)
    lines = (out / NAME).read_text().splitlines()
    assert sum('"ceiling": {' in line for line in lines) == 2, "replayed once per size"
    (out / NAME).write_text("\n".join(lines[:3]) + "\n")
    assert main([*arguments, "--resume"]) == 0
    second = capsys.readouterr()
    assert "2 of 4 replays were there" in second.err and second.out == first.out
    again = json.loads((tmp_path / "all.json").read_text())
    assert [each["report"] for each in again] == [each["report"] for each in found]


def test_what_was_done_is_told_when_interrupted(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """In the place of workers: the second cell is never done."""

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Interrupted:
            return self

        def __exit__(self, *_: object) -> None: ...
        def replay(self, tasks: Sequence[tuple[Cell, bool]]) -> Iterator[Outcome]:
            yield outcome(tasks[0][0], 0.75)
            raise KeyboardInterrupt

    monkeypatch.setattr(lab_sweep, "Workers", Interrupted)
    assert main(["sweep", str(trace), *SMALL, "--out", str(tmp_path / "out"), "--format", "none"]) == 130
    told = capsys.readouterr()
    assert "interrupted; 1 of 4 replays are done" in told.err
    assert len(told.out.splitlines()) == 2
    assert len((tmp_path / "out" / NAME).read_text().splitlines()) == 2
    assert len((tmp_path / "out" / "table.md").read_text().splitlines()) == 3


def test_a_bad_trace_fails_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_trace(tmp_path / "bad.jsonl", "nonsense\n")
    assert main(["sweep", str(bad), *SMALL]) == 2
    told = capsys.readouterr()
    assert told.err.count("bad.jsonl:7: not a line of JSON") == 1 and "4 replays failed" in told.err


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (["--hbm", "0"], "--hbm 0: a server "),
        (["--hbm", "1", "--dram", "5..2:3"], "--dram 5..2:3: '5..2:3' does not go from"),
        (["--hbm", "1", "--nvme", "lots"], "--nvme lots: "),
        (["--hbm", "1", "--scale", "1,x"], "--scale x: no factor"),
        (["--hbm", "1", "--eviction", "lru,nope"], "--eviction nope: no such policy. Choose of lru"),
        (["--hbm", "1", "--admission", "nope"], "--admission nope: no such policy"),
        (["--hbm", "1", "--write-budget", "none,lots"], "--write-budget lots: "),
        (["--hbm", "1", "--jobs", "0"], "--jobs 0: "),
        (["--hbm", "1", "--resume"], "--resume: from where. Give --out"),
        (["--hbm", "1..1000:1000", "--dram", "1..1000:1000"], "a grid of more than 100000 replays"),
        (["--hbm", "1", "--out", "here", "--format", "gif"], "--format gif: no format 'gif'"),
    ],
)
def test_flags_that_cannot_be_used(trace: Path, extra: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(trace), *extra]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and why in told.err


def test_without_matplotlib_one_line_says_what_to_install(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["sweep", str(trace), *SMALL, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert "pip install 'radixtier[lab]'" in told.err and told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_trace_that_is_given_twice(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(trace), str(trace), *SMALL]) == 2
    assert "given twice" in capsys.readouterr().err
    (tmp_path / "x").mkdir()
    other = write_trace(tmp_path / "x" / "t.jsonl")
    assert list(lab_sweep.named([trace, other], [open_trace(trace), open_trace(other)])) == [str(trace), str(other)]
