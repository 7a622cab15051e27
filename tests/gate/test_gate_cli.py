"""``radixtier gate``: bad input is one line and starts nothing; statuses; a signal leaves a report."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gate_run_fakes import FakeStand, result

from radixtier.cli import gate as command
from radixtier.cli import gate_options
from radixtier.cli.gate import launch_flags, main
from radixtier.cli.gate_options import duration
from radixtier.cli.main import main as radixtier
from radixtier.gate import cpu_default
from radixtier.gate.launched import check_flags
from radixtier.gate.profiles import CPU_SIZES, Plan, Sizes
from radixtier.gate.report import JSON_NAME, TITLES, read_json
from radixtier.live.client import Client, RequestFailed
from radixtier.units import BadValue

check_sglang = command._check_sglang


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Stand in for everything that would start or ask a server; return what was asked of it."""
    seen: dict[str, Any] = {"outcomes": {key: ["pass"] for key in TITLES}, "stand": FakeStand()}

    def launched(flags: list[str], made: Plan, scratch: Path, say: Any) -> FakeStand:
        check_flags(flags)
        seen.update(flags=flags, plan=made, scratch=scratch)
        return seen["stand"]

    def attached(url: str, control: Any, directories: Any = (), *, disturb: bool = False) -> FakeStand:
        seen.update(url=url, control=control, directories=directories, disturb=disturb)
        seen["stand"].attached = True
        return seen["stand"]

    def find(key: str) -> Callable[..., Any]:
        def gate(stand: Any, made: Plan, say: Any) -> Any:
            seen["plan"] = made
            outcome = seen["outcomes"][key]
            return outcome() if callable(outcome) else result(key, *outcome)

        return gate

    @contextmanager
    def prepared(say: Any, sizes: Sizes = CPU_SIZES) -> Iterator[list[str]]:
        seen["sizes"] = sizes
        yield cpu_default.arguments(Path("/model"), tmp_path, sizes)

    run = command.run.run
    monkeypatch.delenv("RADIXTIER_CONTROL", raising=False)
    monkeypatch.setattr(command, "LaunchedStand", launched)
    monkeypatch.setattr(command, "AttachedStand", attached)
    monkeypatch.setattr(command, "server_info", lambda url: seen.get("info", {}))
    monkeypatch.setattr(command, "_check_sglang", lambda url: None)
    monkeypatch.setattr(command.cpu_default, "prepared", prepared)
    monkeypatch.setattr(command.run, "alive", lambda stand: True)
    monkeypatch.setattr(command.run, "run", lambda *arguments: run(*arguments, find))
    before = signal.getsignal(signal.SIGTERM)
    yield seen
    assert signal.getsignal(signal.SIGTERM) is before


def launch(tmp_path: Path, *more: str, without: str = "") -> str:
    """Arguments of a server whose model and store are there."""
    words = ["--model-path", str(tmp_path), "--enable-radix-tier", "--radix-tier-nvme-path", str(tmp_path), *more]
    return shlex.join(word for word in words if word != without)


# ---- good input --------------------------------------------------------------------------------------------------


def test_a_launched_server_passes(stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "report"
    text = "radixtier serve " + launch(tmp_path, "--hf-token", "hidden")
    assert main(["run", "--launch", text, "--out", str(out), "--quick", "--ttft-fall", "0.5", "--soak", "90s"]) == 0
    assert stage["flags"][0] == "--model-path" and stage["scratch"] == out / command.LOGS
    assert stage["plan"].limits.ttft_fall == 0.5 and stage["plan"].soak_s == 90.0 and stage["plan"].quick
    told = capsys.readouterr()
    assert "overall: pass" in told.out and str(out / "report.html") in told.out
    report = read_json(out / JSON_NAME)
    assert report["command"].startswith("radixtier gate run --launch") and "hidden" not in json.dumps(report)
    assert report["plan"]["limits"]["ttft_fall"] == 0.5
    assert main(["show", str(out / JSON_NAME)]) == 0
    assert "overall: pass" in capsys.readouterr().out


def test_status_is_1_when_a_gate_fails(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage["outcomes"]["G3"] = ["pass", "fail"]
    arguments = ["run", "--launch", launch(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--gates", "G1,G3"]) == 1
    told = capsys.readouterr().out
    assert "check 1: reason 1" in told and "-> the fix" in told and "not asked for" in told


def test_an_attached_server_is_only_asked(stage: dict[str, Any], tmp_path: Path) -> None:
    stage["info"] = {"device": "cpu", "version": "0.5.23", "api_key": "hidden"}
    arguments = ["run", "--server", "http://127.0.0.1:30000/", "--out", str(tmp_path / "out"), "--levels", "2", "4"]
    assert main([*arguments, "--control", "127.0.0.1:5000", "--directory", str(tmp_path)]) == 0
    assert stage["url"] == "http://127.0.0.1:30000" and stage["disturb"] is False
    assert stage["control"] is not None and stage["directories"] == [tmp_path]
    assert stage["plan"].levels == (2, 4) and stage["plan"].tier is not None
    assert read_json(tmp_path / "out" / JSON_NAME)["server"] == {
        "url": "http://127.0.0.1:30000",
        "version": "0.5.23",
        "device": "cpu",
    }


def test_the_control_endpoint_may_come_from_the_environment(
    stage: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ["run", "--server", "http://127.0.0.1:1", "--disturb"]
    assert main([*server, "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().err
    assert stage["control"] is None and "no --control" in told and "will be flushed" in told and stage["disturb"]
    monkeypatch.setenv("RADIXTIER_CONTROL", "127.0.0.1:5000")
    assert main([*server, "--out", str(tmp_path / "b")]) == 0
    assert stage["control"] is not None
    assert main(["run", "--launch", launch(tmp_path), "--out", str(tmp_path / "c")]) == 0


def test_the_demo_has_sizes_and_a_directory_of_its_own(
    stage: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path / "cache"))
    assert main(["run", "--cpu-demo", "--quick"]) == 0
    assert stage["sizes"] == CPU_SIZES and stage["plan"].levels == (1, 2, 4)
    [report] = (tmp_path / "cache" / "gate").glob("report-*")
    assert read_json(report / JSON_NAME)["complete"]


def test_a_termination_leaves_a_report(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminated() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not end the gate")

    stage["outcomes"]["G2"] = terminated
    assert main(["run", "--launch", launch(tmp_path), "--out", str(tmp_path / "out")]) == 130
    report = read_json(tmp_path / "out" / JSON_NAME)
    assert report["note"] == "interrupted during G2" and report["verdict"]["G1"] == "pass"
    assert stage["stand"].closed == 1 and "incomplete" in capsys.readouterr().out


# ---- bad input ---------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, expected: int = 2) -> str:
    """Return the line with which arguments are refused."""
    try:
        status = main(["run", *arguments])
    except SystemExit as left:
        status = int(left.code or 0)
    assert status == expected
    told = capsys.readouterr().err
    assert "Traceback" not in told and "usage:" not in told and "word@" not in told
    [line] = [line for line in told.splitlines() if line.startswith("radixtier gate")]
    return line


@pytest.mark.parametrize(
    ("more", "without", "named"),
    [
        (["--port", "1"], "", "--port"),
        (["--host=0.0.0.0"], "", "--host"),
        ([], "--enable-radix-tier", "--enable-radix-tier"),
        ([], "--radix-tier-nvme-path", "--radix-tier-nvme-path"),
        ([], "--model-path", "--model-path"),
        (["--radix-tier-nvme-path", "/nowhere/at/all"], "", "/nowhere/at/all"),
        (["--model-path", "/nowhere/at/all"], "", "/nowhere/at/all"),
    ],
)
def test_arguments_of_no_server_are_refused(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], without: str, named: str
) -> None:
    line = refused(capsys, "--out", str(tmp_path / "o"), "--launch", launch(tmp_path, *more, without=without))
    assert "--launch" in line and named in line and "flags" not in stage
    assert not (tmp_path / "o").exists()


def test_quotes_must_close() -> None:
    with pytest.raises(BadValue, match="Close the quotes"):
        launch_flags("--model-path 'x")


@pytest.mark.parametrize(
    "text",
    [
        "radixtier serve --x 1",
        "sglang serve --x 1",
        "python3 -m sglang.launch_server --x 1",
        "--x 1",
        "/bin/serve --x 1",
    ],
)
def test_a_leading_command_is_left_out(text: str) -> None:
    assert gate_options.words(text) == ["--x", "1"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--server"),
        (["--server", "ftp://x"], "ftp://x"),
        (["--server", "http://x:port"], "http://x:port"),
        (["--server", "http://x/path"], "http://x/path"),
        (["--server", "http://user:word@x:1"], "user or password"),
        (["--server", "http://x:1?a=b"], "http://x:1?a=b"),
        (["--cpu-demo", "--ttft-fall", "25"], "--ttft-fall: 25: a share, from 0 to 1; write 0.25 for 25 %"),
        (["--cpu-demo", "--cold-share", "90"], "write 0.9 for 90 %"),
        (["--cpu-demo", "--throughput-rise", "29"], "write 0.29 for 29 %"),
        (["--cpu-demo", "--levels", "4096"], "--levels 4096"),
        (["--cpu-demo", "--nonsense"], "--nonsense"),
        (["--server", "http://x", "--cpu-demo"], "--cpu-demo"),
        (["--server", "http://x", "--control", "nonsense"], "--control nonsense"),
        (["--server", "http://x", "--control", "127.0.0.1:1", "--key-file", "/no/key"], "--key-file /no/key"),
        (["--cpu-demo", "--disturb"], "--disturb"),
        (["--cpu-demo", "--control", "127.0.0.1:1"], "--control"),
        (["--cpu-demo", "--gates", "G5"], "--gates G5"),
        (["--cpu-demo", "--soak", "3 days"], "--soak"),
        (["--cpu-demo", "--soak", "0s"], "--soak"),
        (["--cpu-demo", "--levels", "8", "0"], "--levels"),
        (["--cpu-demo", "--no-reuse", "much"], "--no-reuse"),
        (["--cpu-demo", "--no-reuse", "-1"], "--no-reuse"),
        (["--cpu-demo", "--profile", "poetry"], "--profile"),
    ],
)
def test_bad_input_is_one_line_that_names_it(
    stage: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], named: str
) -> None:
    assert named in refused(capsys, *arguments, *(["--out", str(tmp_path / "o")] if arguments else []))
    assert not (tmp_path / "o").exists() and stage["stand"].closed == 0


def test_a_directory_that_cannot_be_used_is_refused(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert "--out" in refused(capsys, "--cpu-demo", "--out", str(tmp_path / "file"))
    (tmp_path / JSON_NAME).touch()
    assert "a report already" in refused(capsys, "--cpu-demo", "--out", str(tmp_path))


def test_a_server_that_does_not_answer_is_refused(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise RequestFailed("status 503")

    monkeypatch.setattr(command, "AttachedStand", silent)
    line = refused(capsys, "--server", "http://x:1", "--out", str(tmp_path / "o"), expected=1)
    assert "--server http://x:1" in line and "503" in line and not (tmp_path / "o").exists()


class Web:
    """An HTTP server that says the same to everybody."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self.url

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "named"),
    [
        (200, b"<html>", "no SGLang server answers there"),
        (200, b"{}", "no SGLang server answers there"),
        (200, b"[1]", "no SGLang server answers there"),
        (404, b"", "no SGLang server answers there"),
        (401, b"", "API key"),
        (200, b'{"version": "0.5"}', ""),
    ],
)
def test_what_is_no_sglang_server_is_refused(status: int, body: bytes, named: str) -> None:
    with Web(status, body) as url:
        if named:
            with pytest.raises(BadValue, match=named) as told:
                check_sglang(url)
            assert f"--server {url}" in str(told.value)
        else:
            check_sglang(url)


def test_where_nobody_listens_there_is_no_server() -> None:
    with Web(200, b"") as url:
        pass
    with pytest.raises(BadValue, match="no answer"):
        check_sglang(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_end_hangs_up_on_requests_under_way(stage: dict[str, Any], tmp_path: Path, number: signal.Signals) -> None:
    hung_up = threading.Event()

    class Line(Client):
        def hang_up(self) -> None:
            hung_up.set()

    def waiting() -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal did not end the gate")

    before = signal.getsignal(number)
    stage["stand"].tiered.target.client = Line("http://127.0.0.1:9")
    stage["outcomes"]["G1"] = waiting
    assert main(["run", "--launch", launch(tmp_path), "--out", str(tmp_path / "out")]) == 130
    assert hung_up.wait(10.0) and signal.getsignal(number) is before
    assert read_json(tmp_path / "out" / JSON_NAME)["note"] == "interrupted during G1"


def test_a_signal_that_is_ignored_stays_so(stage: dict[str, Any], tmp_path: Path) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def hung() -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return result("G1", "pass")

    try:
        stage["outcomes"]["G1"] = hung
        assert main(["run", "--launch", launch(tmp_path), "--out", str(tmp_path / "out")]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_becomes_of_a_users_server_is_said(
    stage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control = ["--control", "127.0.0.1:5000", "--out", str(tmp_path / "a")]
    assert main(["run", "--server", "http://127.0.0.1:1", *control]) == 0
    told = capsys.readouterr().err
    assert "may be evicted" in told and "the drive is written" in told and "nothing else" not in told
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = capsys.readouterr().out
    for words in ("may be evicted", "directory of its own", "1 2 4", "120 s", "it takes the place of --launch"):
        assert words.lower() in " ".join(told.split()).lower()


def test_secrets_of_a_launch_are_left_out_in_either_form() -> None:
    for words in (["--launch", "--hf-token hidden --x"], ["--launch=--hf-token hidden --x"]):
        shown = gate_options.command("gate", ["run", *words])
        assert "hidden" not in shown and "--x" in shown


def test_show_refuses_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    assert radixtier(["gate", "show", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("72h", 259200.0), ("1h30m", 5400.0), ("90s", 90.0), ("0.5d", 43200.0)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "72", "h", "1x", "-1h", "0s", "1h 30m", "1.h", "٣h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


# ---- the default on a CPU ----------------------------------------------------------------------------------------


def test_the_default_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(1000, 1000, 10000)
    free, ram = 1 << 40, 1 << 40
    monkeypatch.setattr(cpu_default, "free_disk_bytes", lambda directory: free)
    monkeypatch.setattr(cpu_default.Machine, "probe", lambda: cpu_default.Machine(ram))
    monkeypatch.setattr(cpu_default, "file_system_type", lambda directory: "ext4")
    cpu_default.check_room(tmp_path, sizes)
    free = 1 << 30
    with pytest.raises(BadValue, match="the store and its reserve"):
        cpu_default.check_room(tmp_path, sizes)
    free, ram = 1 << 40, 1 << 30
    with pytest.raises(BadValue, match="of RAM"):
        cpu_default.check_room(tmp_path, sizes)
    monkeypatch.setattr(cpu_default, "file_system_type", lambda directory: "tmpfs")
    with pytest.raises(BadValue, match="RADIXTIER_CACHE"):
        cpu_default.check_room(tmp_path, sizes)


def test_the_defaults_store_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_default, "check_room", lambda directory, sizes: None)
    monkeypatch.setattr(cpu_default, "smollm2", lambda say: tmp_path / "model")
    stores = []

    def interrupted() -> None:
        with cpu_default.prepared(print) as flags:
            check_flags(flags)
            stores.append(Path(flags[-1]))
            assert stores[0].is_dir() and stores[0].parent == tmp_path / "gate"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not stores[0].exists()
