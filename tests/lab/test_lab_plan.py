"""Plans: the search against brute force, how a plan ends, targets, prices, the front, the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.cli import lab_plan
from radixtier.cli.lab import main
from radixtier.lab.setup import Setup
from radixtier.lab.sweep.front import front
from radixtier.lab.sweep.grid import Cell, Outcome
from radixtier.lab.sweep.plan import LEAST_RUNS, Plan, Verdict, pursue
from radixtier.lab.sweep.plan_text import front_rows, lines
from radixtier.lab.sweep.prices import GB, Prices
from radixtier.lab.sweep.search import RUNGS, STEP, Point, Search, ladder
from radixtier.lab.sweep.target import Target, hit_ratio, ttft

# ---- search -----------------------------------------------------------------------------------------


class Bench:
    """Measures points by a function, and counts."""

    def __init__(self, reached: Callable[[Point], bool]) -> None:
        self.reached = reached
        self.asked: list[Point] = []

    def __call__(self, points: Sequence[Point]) -> Iterable[tuple[Point, bool]]:
        self.asked += points
        return [(point, self.reached(point)) for point in points]


MONOTONE = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 200), st.integers(0, 200))


@given(
    most=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    prices=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    shape=MONOTONE,
    need=st.integers(0, 2000),
    width=st.integers(1, 4),
)
def test_the_answer_is_that_of_brute_force(
    most: Point, prices: Point, shape: tuple[int, int, int, int], need: int, width: int
) -> None:
    """Of all pairs of rungs, where what is reached grows with both sizes."""

    def cost(point: Point) -> float:
        return prices[0] * point[0] + prices[1] * point[1]

    def reached(point: Point) -> bool:
        return shape[0] * min(point[0], shape[2]) + shape[1] * min(point[1], shape[3]) >= need

    bench = Bench(reached)
    search = Search(cost, bench, most, 10_000, width)
    best = search.best()
    every = [(dram, nvme) for dram in ladder(most[0]) for nvme in ladder(most[1])]
    right = min((cost(point) for point in every if reached(point)), default=None)
    assert (None if best is None else cost(best)) == right
    assert best is None or best in bench.asked, "measured, not interpolated"
    assert len(bench.asked) == len(set(bench.asked)) and not search.stopped


def test_a_ladder_goes_from_none_to_the_most_in_even_steps() -> None:
    rungs = ladder(100_000)
    assert (rungs[:2], rungs[-2:], len(rungs)) == ([0, 390], [84089, 100_000], RUNGS + 2)
    assert (ladder(0), ladder(3)) == ([0], [0, 1, 2, 3])


@pytest.mark.parametrize("prices", [(10, 1), (1, 1), (3, 2)])
@pytest.mark.parametrize("need", [100, 700, 5000])
def test_few_replays_are_needed(prices: Point, need: int) -> None:
    def reached(point: Point) -> bool:
        return min(point[0], 5000) ** 0.8 + 0.5 * min(point[1], 30_000) ** 0.9 >= need

    bench = Bench(reached)
    search = Search(lambda point: prices[0] * point[0] + prices[1] * point[1], bench, (50_000, 200_000), 60)
    assert reached(search.best() or (0, 0)) and not search.stopped
    assert 25 < len(bench.asked) <= 60


def test_runs_are_bounded_and_cheap_sizes_come_first() -> None:
    bench = Bench(lambda point: sum(point) >= 300)
    search = Search(lambda point: float(sum(point)), bench, (1000, 1000), 26)
    assert sum(search.best() or (0, 0)) >= 300
    assert len(bench.asked) == 26 and search.stopped
    assert bench.asked[0] == (0, 0) and bench.asked[24] == (1000, 1000)


def test_what_fails_to_replay_is_not_asked_for_again() -> None:
    asked: list[Point] = []

    def measure(points: Sequence[Point]) -> Iterable[tuple[Point, bool]]:
        asked.extend(points)
        return []

    assert Search(lambda point: float(sum(point)), measure, (1024, 0), 60).best() is None
    assert asked == [(0, 0), (16, 0), (64, 0), (256, 0), (1024, 0)]


# ---- front ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    best = front(points, lambda each: each[0], lambda one, other: one[1] > other[1])
    beaten = {one for one in points for other in points if other[0] <= one[0] and other[1] >= one[1] and other != one}
    assert best == sorted(set(points) - beaten)


# ---- targets and prices -----------------------------------------------------------------------------


def test_targets() -> None:
    assert (hit_ratio("0.4"), ttft("2.5"), ttft("3@mean")) == (Target(0.4), Target(2.5, "p95"), Target(3.0, "mean"))
    assert Target(0.4).reached(0.4) and not Target(0.4).reached(0.39)
    assert Target(2.0, "p95").reached(2.0) and not Target(2.0, "p95").reached(2.1)
    assert str(Target(0.4)) == "hit ratio of 0.400 or more"
    assert str(Target(2.0, "p50")) == "TTFT p50 of 2.00 s or less"


@pytest.mark.parametrize(
    ("read", "text"),
    [(hit_ratio, text) for text in ("0", "1.1", "nan", "x", "")]
    + [(ttft, text) for text in ("0", "2@p42", "@p95", "inf")],
)
def test_targets_that_cannot_be(read: Callable[[str], Target], text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        read(text)


def test_prices_are_per_gb() -> None:
    assert Prices(1.0, 10.0, 0.5).of(GB, 2 * GB, 4 * GB) == 23.0


# ---- plans ------------------------------------------------------------------------------------------

BLOCK = GB // 10
CELL = Cell("t", Setup(10, eviction="lru"))
Replay = Callable[[Sequence[tuple[Cell, bool]]], Generator[Outcome, None, None]]


def report(ratio: float, ceiling: float | None = None) -> dict[str, Any]:
    stacks = {"hbm": 0.1, "tiers": ratio} | ({} if ceiling is None else {"ceiling": ceiling})
    waits = {name: dict.fromkeys(("mean", "p50", "p95", "p99"), 10 * (1 - value)) for name, value in stacks.items()}
    return {
        "hit_ratio": {"total": ratio},
        "stacks": {name: {"hit_ratio": value, "ttft_s": waits[name]} for name, value in stacks.items()},
        "block_bytes": BLOCK,
        "bytes_written_per_day": 5 * BLOCK,
    }


def rig(ratio: Callable[[Point], float], ceiling: float = 0.9, distinct: int = 1000) -> Replay:
    """Replay by a function."""

    def replay(tasks: Sequence[tuple[Cell, bool]]) -> Generator[Outcome, None, None]:
        for cell, wanted in tasks:
            found = report(ratio(cell.sizes[1:]), ceiling if wanted else None)
            yield Outcome(cell, found, distinct=distinct)

    return replay


def rising(point: Point) -> float:
    return min(0.8, 0.1 + point[0] / 1000 + point[1] / 2000)


def pursued(target: Target, replay: Replay, most: tuple[int | None, int | None] = (None, None)) -> Plan:
    plan = Plan(target, Prices(dram=10.0, nvme=1.0))
    pursue(plan, CELL, most, replay)
    return plan


def test_a_plan_finds_the_cheapest() -> None:
    plan = pursued(Target(0.5), rig(rising))
    assert plan.verdict is Verdict.FOUND and plan.answer is not None
    _, dram, nvme = plan.answer.cell.sizes
    assert dram == 0 and 800 <= nvme <= 800 * STEP, "NVMe alone, for it is cheap"
    assert plan.cost(plan.answer) == pytest.approx(nvme / 10)
    assert plan.writes_per_day == pytest.approx(5 / nvme)
    assert len({each.cell for each in plan.found}) == plan.runs <= 60 and not plan.limited
    assert plan.most is not None and plan.most.cell.sizes == (10, 1000, 1000)
    text = "\n".join(lines(plan, "EUR", ["--price-nvme"]))
    assert (
        f"cheapest that reach it: DRAM 0 B (0 blocks), NVMe {nvme * BLOCK / (1 << 30):.1f} GiB ({nvme} blocks)" in text
    )
    assert "0.01 DWPD for a drive of these" in text and f"{plan.runs} replays" in text
    assert "prices, EUR per GB: DRAM 10, NVMe 1 (an assumption, give yours: --price-nvme), HBM 0" in text
    rows = front_rows(plan, "EUR")
    assert [row[-1] for row in rows[1:]].count("reached") >= 1
    assert [float(row[-2].replace(",", "")) for row in rows[1:]] == sorted(
        float(row[-2].replace(",", "")) for row in rows[1:]
    )


def test_a_write_budget_is_told() -> None:
    plan = Plan(Target(0.5), Prices(dram=10.0, nvme=1.0))
    pursue(plan, Cell("t", Setup(10, write_budget="1DWPD")), (None, None), rig(rising))
    text = "\n".join(lines(plan, "EUR", ["--write-budget"]))
    assert "under a budget of 1DWPD (an assumption, give yours: --write-budget)." in text
    assert "--radix-tier-write-budget 1DWPD" in text


def test_writes_that_no_drive_bears_are_told() -> None:
    plan = pursued(Target(0.5), rig(rising))
    assert plan.answer is not None and plan.answer.report is not None
    plan.answer.report["bytes_written_per_day"] = 3 * BLOCK * plan.answer.cell.setup.nvme
    text = "\n".join(lines(plan, "EUR", []))
    assert "3.00 DWPD" in text and "plan with a --write-budget" in text


def test_a_time_to_first_token_is_planned_for_too() -> None:
    plan = pursued(Target(5.0, "p95"), rig(rising), (None, 100))
    assert plan.answer is not None
    _, dram, nvme = plan.answer.cell.sizes
    assert nvme == 100 and 350 <= dram <= 350 * STEP
    assert "TTFT p95" in "\n".join(lines(plan, "EUR", []))


def test_hbm_alone_may_do() -> None:
    plan = pursued(Target(0.1), rig(rising))
    assert (plan.verdict, plan.runs) == (Verdict.HBM_ALONE, 1)
    assert plan.answer is plan.alone
    assert "neither DRAM nor NVMe is needed" in "\n".join(lines(plan, "EUR", []))


@pytest.mark.parametrize(
    ("ceiling", "verdict", "words"),
    [(0.95, Verdict.OUT_OF_REACH, "for this policy"), (0.85, Verdict.BEYOND_CEILING, "not even a policy that knows")],
)
def test_a_target_out_of_reach(ceiling: float, verdict: Verdict, words: str) -> None:
    plan = pursued(Target(0.9), rig(rising, ceiling))
    assert (plan.verdict, plan.answer) == (verdict, None)
    assert words in "\n".join(lines(plan, "EUR", []))
    assert plan.runs == LEAST_RUNS
    assert plan.writes_per_day is None


def test_a_trace_that_cannot_be_replayed() -> None:
    def replay(tasks: Sequence[tuple[Cell, bool]]) -> Generator[Outcome, None, None]:
        yield Outcome(tasks[0][0], error="t.jsonl:7: no")

    plan = Plan(Target(0.5), Prices())
    with pytest.raises(ValueError, match=r"t\.jsonl:7: no"):
        pursue(plan, CELL, (None, None), replay)


def test_a_server_that_cannot_keep_up_is_told() -> None:
    plan = pursued(Target(0.9), rig(rising))
    assert plan.most is not None and plan.most.report is not None
    plan.most.report["stacks"]["tiers"]["utilisation"] = 1.25
    assert "(it cannot keep up: 1.2 s of work a second)" in "\n".join(lines(plan, "EUR", []))


def test_single_failures_do_not_stop_a_plan() -> None:
    def replay(tasks: Sequence[tuple[Cell, bool]]) -> Generator[Outcome, None, None]:
        for outcome in rig(rising)(tasks):
            yield Outcome(outcome.cell, error="died") if outcome.cell.sizes[1:] == (250, 250) else outcome

    plan = pursued(Target(0.5), replay)
    assert plan.verdict is Verdict.FOUND
    assert [each.cell.sizes for each in plan.failed] == [(10, 250, 250)]


def test_brute_force_over_a_real_trace(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every pair of sizes replayed by a sweep: none cheaper reaches the target."""
    common = [str(trace), "--hbm", "4", "--eviction", "lru", "--admission", "all", "--kv-bytes-per-token", "1000"]
    every = ",".join(map(str, range(13)))
    file = tmp_path / "all.json"
    sweep = [*common, "--dram", every, "--nvme", every, "--no-ceiling", "--json", str(file), "--jobs", "1"]
    assert main(["sweep", *sweep]) == 0
    prices = Prices(dram=8.0, nvme=5.0)
    reached = [
        prices.of(0, each["dram"] * 512_000, each["nvme"] * 512_000)
        for each in json.loads(file.read_text())
        if each["report"]["hit_ratio"]["total"] >= 0.5
    ]
    capsys.readouterr()
    plan = [*common, "--target-hit-ratio", "0.5", "--price-nvme", "5", "--jobs", "1", "--json", "-"]
    assert main(["plan", *plan]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "found" and found["answer"]["report"]["hit_ratio"]["total"] >= 0.5
    assert min(reached) <= found["answer"]["cost"] <= min(reached) * STEP + prices.of(0, 512_000, 512_000)


# ---- the command ------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three conversations, taking turns."""
    file = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 60_000 * n, "hash_ids": list(range(100 * (n % 3), 100 * (n % 3) + 2 + n // 3))} for n in range(12)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_command(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    arguments = ["plan", str(trace), "--hbm", "4", "--target-hit-ratio", "0.5", "--out", str(out), "--jobs", "1"]
    assert main([*arguments, "--currency", "EUR", "--eviction", "lru", "--admission", "all"]) == 0
    told = capsys.readouterr()
    assert "target: hit ratio of 0.500 or more, found in any tier" in told.out
    assert "cheapest that reach it" in told.out and "EUR per GB" in told.out and "give yours" in told.out
    assert "replay 1 of at most 80" in told.err
    assert {file.name for file in out.iterdir()} == {"front.md", "front.png"}


def test_a_target_out_of_reach_has_its_status(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--hbm", "4", "--target-hit-ratio", "0.99", "--max-nvme", "0", "--max-dram", "40", "--jobs", "1"]
    assert main(["plan", str(trace), *arguments]) == 1
    assert "out of reach" in capsys.readouterr().out


def test_what_was_found_is_told_when_interrupted(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """In the place of workers: from the fourth replay on nothing is done."""

        done = 0

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Interrupted:
            return self

        def __exit__(self, *_: object) -> None: ...
        def replay(self, tasks: Sequence[tuple[Cell, bool]]) -> Generator[Outcome, None, None]:
            for outcome in rig(rising)(tasks):
                self.done += 1
                if self.done == 4:
                    raise KeyboardInterrupt
                yield outcome

    monkeypatch.setattr(lab_plan, "Workers", Interrupted)
    assert main(["plan", str(trace), "--hbm", "4", "--target-hit-ratio", "0.5", "--jobs", "1"]) == 130
    told = capsys.readouterr()
    assert "stopped before the search was done; the cheapest so far: DRAM" in told.out
    assert "interrupted after 3 replays" in told.err


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (["--target-hit-ratio", "2"], "--target-hit-ratio 2: not a share"),
        (["--target-ttft", "2@p42"], "--target-ttft 2@p42: not a time"),
        (["--target-ttft", "2", "--hbm", "0"], "--hbm 0: "),
        (["--target-ttft", "2", "--max-nvme", "-1"], "--max-nvme -1: "),
        (["--target-ttft", "2", "--price-dram", "-1"], "--price-dram -1: no price"),
        (["--target-ttft", "2", "--price-nvme", "free"], "--price-nvme free: no price"),
        (["--target-ttft", "2", "--runs", "3"], "--runs 3: too few"),
    ],
)
def test_flags_that_cannot_be_used(trace: Path, extra: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(trace), "--hbm", "4", *extra]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and why in told.err
