"""``radixtier bench serve`` from the command line to the exit status, against servers that are none of SGLang's."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load_fakes import Behaviour, fake_server

from radixtier.cli import bench, bench_serve
from radixtier.cli.bench_serve import main
from radixtier.cli.bench_serve_options import Refusal, read
from radixtier.load.answer import Answer
from radixtier.load.compare import Comparison
from radixtier.load.figures import figures as made_of
from radixtier.load.play import Exchange, Played
from radixtier.load.workloads.common import Length
from radixtier.load.workloads.multi_turn import MultiTurn

URL = "http://127.0.0.1:1"
SMALL = ["--clients", "3", "--turns", "2", "--first", "20:30", "--request", "4", "--output", "3"]
FAKE = f"{sys.executable} {Path(__file__).parent / 'load_fakes.py'} --port {{port}}"
SERVE = "--model-path /models/a"


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(details={"device": 0, "host": 0, "storage": 16})


@pytest.fixture
def url(behaviour: Behaviour) -> Iterator[str]:
    with fake_server(behaviour) as url:
        yield url


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# ---- the command line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "exactly one of URL"),
        ([URL, "--launch", SERVE], "exactly one of URL"),
        (["ftp://a"], "URL"),
        ([URL, "--rounds", "3"], "--rounds goes with --compare"),
        ([URL, "--apart"], "--apart goes with --compare"),
        ([URL, "--name", "A=x"], "--name goes with --compare"),
        (["--compare", SERVE, SERVE, "--name", "C=x"], "--name C=x: write A=NAME"),
        (["--compare", SERVE, SERVE, "--name", "A=B"], "two names"),
        (["--compare", SERVE, SERVE, "--rounds", "0"], "--rounds: write a whole number|--rounds 0"),
        (["--compare", SERVE, "--enable-radix-tier"], "--compare.*--model-path"),
        (["--launch", f"{SERVE} --port 3"], "--launch.*--port is chosen here"),
        ([URL, "--concurrency", "0"], "--concurrency.*1 to 4096"),
        ([URL, "--concurrency", "2", "x"], "--concurrency x"),
        ([URL, "--rate", "0"], "--rate 0|--rate: "),
        ([URL, "--warm-up", "-1"], "--warm-up"),
        ([URL, "--timeout", "soon"], "--timeout soon"),
        ([URL, "--seed", "x"], "--seed"),
        ([URL, "--clients", "0"], "--clients"),
        ([URL, "--first", "9:1"], "--first 9:1"),
        ([URL, "--groups", "2"], "--groups is no flag of the workload multi-turn"),
        ([URL, "--workload", "no-reuse", "--clients", "2"], "--clients is no flag of the workload no-reuse"),
        ([URL, "--workload", "trace"], "--trace FILE"),
        ([URL, "--trace", "/does/not/exist"], "--trace /does/not/exist"),
        ([URL, "--trace", __file__], "--trace: .*test_bench_serve.py:1"),
        ([URL, "--json", "/does/not/exist"], "--json"),
        ([URL, "--json", "/"], "--json /: that is a directory"),
        ([URL, "--api", "soap"], "--api"),
        ([URL, "--unknown"], "--unknown"),
    ],
)
def test_bad_command_lines(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refusal, match=text):
        read(argv)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("radixtier bench serve: ") and err.count("\n") == 1


def test_defaults_quick_and_given() -> None:
    options = read([URL])
    assert (options.workload, options.levels, options.plan.order) == ("multi-turn", (8,), "round-robin")
    assert options.plan.workload == MultiTurn()
    quick = read([URL, "--quick", "--output", "5:6", "--concurrency", "1", "4", "1"])
    assert quick.plan.workload == MultiTurn(
        clients=4, turns=3, first=Length(256, 256), request=Length(32, 32), output=Length(5, 6)
    )
    assert quick.levels == (1, 4)


def test_a_trace_is_a_workload_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text('{"timestamp": 0, "hash_ids": [1, 2]}\n')
    assert read([URL, "--trace", str(file), "--time-scale", "10"]).workload == "trace"


def test_commands_that_begin_like_flags() -> None:
    options = read(["--quick", "--compare", f"{SERVE} --seed=3", f"{SERVE}", "--name", "B=tier", "--rounds", "4"])
    assert options.compare is not None
    assert [command.words[-1] for command in options.compare] == ["--seed=3", "/models/a"]
    assert (options.names, options.rounds, options.plan.seed) == (("A", "tier"), 4, 0)
    launched = read([f"--launch={SERVE}"]).launch
    assert launched is not None and launched.words == ("--model-path", "/models/a")


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert read([URL]).api_key == "secret"
    assert read([URL, "--api-key", "other"]).api_key == "other"


# ---- one server -------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["auto", "openai", "chat"])
def test_a_run(url: str, behaviour: Behaviour, api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    argv = ["serve", url, *SMALL, "--concurrency", "1", "2", "--api", api, "--json", str(file), "--api-key", "secret"]
    assert bench.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    assert out.count("6 requests answered, 0 failed") == 2 and "NVMe" in out
    report = json.loads(file.read_text())
    assert report["complete"] and set(report["levels"]) == {"1", "2"}
    for figures in report["levels"].values():
        assert figures["requests"] == 6 and sum(part["requests"] for part in figures["prefixes"].values()) == 6
    assert report["workload"] == {
        "name": "multi-turn", "clients": 3, "turns": 2, "first": "20:30", "request": "4", "output": "3",
    }  # fmt: skip
    assert "secret" not in file.read_text() and report["target"]["model"] == "fake-model"


def test_failures_are_counted_and_shown(url: str, behaviour: Behaviour, capsys: pytest.CaptureFixture[str]) -> None:
    behaviour.status = 500
    assert main([url, *SMALL]) == 1
    out, err = capsys.readouterr()
    assert "0 requests answered, 3 failed" in out and "3 failed: POST /generate: status 500" in out
    assert err == "radixtier bench serve: no request was answered\n"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([URL, *SMALL]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("radixtier bench serve: no server answers at http://127.0.0.1:1 (")
    assert err.count("\n") == 1


def test_a_load_that_the_server_knows_is_told(
    url: str, behaviour: Behaviour, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour.details = {"device": 19}
    assert main([url, *SMALL, "--seed", "4"]) == 0
    assert "--seed 5" in capsys.readouterr().out


def test_ctrl_c_leaves_figures(
    url: str, behaviour: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    done = threading.Event()

    def interrupt() -> None:
        while len(behaviour.requests) < 5 and not done.wait(0.005):
            pass
        behaviour.trouble = "slow"
        while len(behaviour.requests) < 6 and not done.wait(0.005):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        argv = [url, *SMALL, "--clients", "60", "--concurrency", "1", "3", "--warm-up", "0", "--json", str(file)]
        assert main(argv) == 130
    finally:
        done.set()
        thread.join(5)
    out, err = capsys.readouterr()
    assert err == "radixtier bench serve: interrupted; these are the figures so far\n"
    report = json.loads(file.read_text())
    assert report["complete"] is False and set(report["levels"]) == {"1"}
    figures = report["levels"]["1"]
    assert 4 <= figures["requests"] < 120 and figures["cut"] <= 1 and figures["failed"] == 0
    assert f"{figures['requests']} requests answered" in out


# ---- servers of its own -----------------------------------------------------------------------------


def test_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["--launch", FAKE, *SMALL, "--concurrency", "2"]) == 0
    assert "6 requests answered" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_start_shows_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert main(["--launch", f"{sys.executable} -c 'print(\"no such GPU\")'", *SMALL]) == 1
    err = capsys.readouterr().err
    assert "ended with status" in err and "no such GPU" in err
    (logs,) = tmp_path.iterdir()
    assert str(logs) in err and (logs / "server.log").exists()


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "out.json"
    argv = ["--compare", FAKE, f"{FAKE} shift=1", "--name", "A=stock", "--name", "B=tier", "--rounds", "2"]
    assert main([*argv, *SMALL, "--concurrency", "2", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "tier / stock" in out and "outputs: 0 of 12 equal" in out and "needs 6 rounds" in out
    report = json.loads(file.read_text())
    level = report["levels"]["2"]
    assert level["outputs"] == {"compared": 12, "equal": 0}
    assert [each["first"] for each in level["rounds"]] == ["A", "B"]
    assert all(len(ratio) == 3 for ratio in level["ratios"].values())
    assert {side: each["name"] for side, each in report["sides"].items()} == {"A": "stock", "B": "tier"}
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


def test_a_side_that_always_fails_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(bench_serve, "compare", lambda stage, plan, levels, rounds, progress: _one_sided(levels[0]))
    argv = ["--compare", FAKE, FAKE, "--name", "B=tier", "--rounds", "1", *SMALL, "--concurrency", "2"]
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert err.endswith("radixtier bench serve: no request was answered by tier\n")
    assert "1 of 1 rounds left out" in out


def _one_sided(level: int) -> Comparison:
    good = Played((Exchange("a", 0, Answer(0.0, 1.0, 2.0, (0.5,), 4, 2)),), 2.0)
    bad = Played((Exchange("a", 0, Answer(0.0, 1.0, 2.0, error="gone")),), 2.0)
    outputs = {"compared": 0, "equal": 0}
    return Comparison({level: [{"first": "A", "A": made_of(good), "B": made_of(bad), "outputs": outputs}]})


def test_nothing_heavy_is_imported() -> None:
    modules: dict[str, Any] = vars(bench_serve)
    assert "torch" not in modules and "sglang" not in modules
