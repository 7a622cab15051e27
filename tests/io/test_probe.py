"""How an engine is chosen: real trials in another process, which may crash or hang, and the law on their verdicts."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixtier.io import probe, probe_child, trial
from radixtier.io.posix import try_direct
from radixtier.io.probe import choose_engine, engine_factory, kvikio_fault, probe_report
from radixtier.io.trial import Verdict, try_kvikio, try_posix

Say = Callable[[str], None]

GDS = "cufile nvidia-fs"
WORKS = Verdict(imports=True, no_gds=None, no_device=None)
ABSENT = Verdict(trial.NOT_INSTALLED)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that trials started."""
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(trial.subprocess, "Popen", Recorded)
    return started


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the trials find out."""

    def found(posix: Verdict, kvikio: Verdict = ABSENT) -> None:
        monkeypatch.setattr(probe, "try_posix", lambda directory: posix)
        monkeypatch.setattr(probe, "try_kvikio", lambda directory: kvikio)

    return found


# The law


def test_a_real_directory(tmp_path: Path) -> None:
    expected = "posix buffered" if try_direct(tmp_path) else "posix O_DIRECT"
    choice = choose_engine("posix", tmp_path)
    assert choice.engine.name == expected
    assert choice.reason.startswith(f"posix in {tmp_path}, ")
    assert "\n" not in choice.reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "posix", "kvikio", "engine", "reason"),
    [
        ("posix", Verdict(), WORKS, "posix O_DIRECT", "O_DIRECT: a test write and read worked"),
        ("posix", Verdict("is refused (EINVAL)"), WORKS, "posix buffered", "buffered: O_DIRECT is refused (EINVAL)"),
        ("posix", Verdict(untested="No space"), WORKS, "posix O_DIRECT", "O_DIRECT untested: No space"),
        ("auto", Verdict(), WORKS, "kvikio", "a test write and read worked; GPUDirect Storage is active"),
        ("auto", Verdict("no"), WORKS, "kvikio", "GPUDirect Storage is active"),
        ("auto", Verdict(), Verdict("crashed"), "posix O_DIRECT", "read worked; not kvikio: crashed"),
        ("auto", Verdict("no"), Verdict("crashed"), "posix buffered", "O_DIRECT no; not kvikio: crashed"),
        ("auto", Verdict(), Verdict(no_gds="old"), "posix O_DIRECT", "not kvikio: no GPUDirect Storage: old"),
        ("auto", Verdict(untested="F"), Verdict(untested="F"), "posix O_DIRECT", "O_DIRECT untested: F; not kvikio: F"),
        ("kvikio", Verdict(), WORKS, "kvikio", "GPUDirect Storage is active"),
        ("kvikio", Verdict(), Verdict(no_gds="old"), "kvikio", "no GPUDirect Storage: old"),
        ("kvikio", Verdict(untested="F"), Verdict(untested="F"), "kvikio", "untested: F"),
    ],
)
def test_law(
    tmp_path: Path,
    verdicts: Callable[..., None],
    name: str,
    posix: Verdict,
    kvikio: Verdict,
    engine: str,
    reason: str,
) -> None:
    verdicts(posix, kvikio)
    choice = choose_engine(name, tmp_path)
    assert choice.engine.name == engine
    assert choice.reason.endswith(reason)
    assert str(tmp_path) in choice.reason


def test_kvikio_demanded_where_it_does_not_work(tmp_path: Path, verdicts: Callable[..., None]) -> None:
    verdicts(Verdict(), Verdict("no driver"))
    with pytest.raises(ValueError, match=f"kvikio: KvikIO does not work in {tmp_path}: no driver. Use auto"):
        choose_engine("kvikio", tmp_path)
    verdicts(Verdict())
    with pytest.raises(ValueError, match=r"not installed. Install it \(pip install kvikio-cu13\), or use auto."):
        choose_engine("kvikio", tmp_path)


def test_unknown_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uring is not an engine: use auto, posix or kvikio"):
        choose_engine("uring", tmp_path)


def test_a_factory_tries_a_directory_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, children: list[subprocess.Popen[bytes]]
) -> None:
    make = engine_factory("posix")
    with caplog.at_level(logging.INFO):
        engines = [make(tmp_path) for _ in range(3)]
    assert len({id(engine) for engine in engines}) == 3
    assert len(children) == 1
    assert [r.message for r in caplog.records] == [f"radixtier: {choose_engine('posix', tmp_path).reason}"]


# Trials


@pytest.mark.parametrize("attempt", [try_posix, try_kvikio, kvikio_fault])
def test_a_missing_directory_is_no_verdict(kvikio: Any, tmp_path: Path, attempt: Callable[[Path], Any]) -> None:
    with pytest.raises(FileNotFoundError):
        attempt(tmp_path / "absent")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (GDS, WORKS),
        ("", Verdict(imports=True, no_gds="KvikIO is in compatibility mode")),
        ("cufile", Verdict(imports=True, no_gds="the nvidia-fs driver is not loaded")),
        (f"{GDS} fail-at-gds-open", Verdict(imports=True, no_gds="no gds-open today")),
        (f"{GDS} kill-at-gds-open", Verdict(imports=True, no_gds="the test died of signal 9")),
        (f"{GDS} no-gpu", Verdict(imports=True, no_gds=None, no_device="cuInit: CUDA_ERROR_NO_DEVICE")),
        (f"{GDS} device-read-fails", Verdict(imports=True, no_gds=None, no_device="no device-read today")),
        (f"{GDS} device-read-short", Verdict(imports=True, no_gds=None, no_device="4096 of 65536 bytes arrived")),
        (f"{GDS} device-read-lies", Verdict(imports=True, no_gds=None, no_device="other bytes arrived")),
        ("fail-at-import", Verdict("no import today")),
        ("kill-at-import", Verdict("the test died of signal 9")),
        ("fail-at-open", Verdict("kvikio cannot open it: no open today", imports=True)),
        ("fail-at-write", Verdict("no write today", imports=True)),
        ("kill-at-write", Verdict("the test died of signal 9", imports=True)),
        ("fail-at-read", Verdict("no read today", imports=True)),
    ],
)
def test_a_trial_of_kvikio(kvikio: Any, tmp_path: Path, say: Say, words: str, verdict: Verdict) -> None:
    say(words)
    found = try_kvikio(tmp_path)
    assert (found.why_not, found.imports) == (verdict.why_not, verdict.imports)
    if verdict.works:
        assert (found.no_gds or "").startswith(verdict.no_gds or "")
        assert (found.no_gds is None) == (verdict.no_gds is None)
        wanted = None if verdict.no_device == "not tested" else verdict.no_device
        assert (found.no_device or "").startswith(wanted or "") and (found.no_device is None) == (wanted is None)
    assert list(tmp_path.iterdir()) == []
    assert kvikio.CALLS == {}  # nothing of it ran here


@pytest.mark.parametrize("where", ["import", "write", "gds-open"])
def test_a_hanging_library_is_killed(
    kvikio: Any,
    tmp_path: Path,
    say: Say,
    monkeypatch: pytest.MonkeyPatch,
    children: list[subprocess.Popen[bytes]],
    where: str,
) -> None:
    """What it did before counts."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv("FAKE_KVIKIO_HANGS", str(fifo))
    original = subprocess.Popen.communicate

    def when_it_hangs(child: Any, timeout: float) -> Any:
        reader = select.poll()
        reader.register(end := os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), select.POLLIN)
        assert reader.poll(60_000)
        os.close(end)
        return original(child, timeout=0.2)

    monkeypatch.setattr(subprocess.Popen, "communicate", when_it_hangs)
    say(f"{GDS} hang-at-{where}")
    (tmp_path / "d").mkdir()
    found = try_kvikio(tmp_path / "d")
    assert found.works is (where == "gds-open")
    assert found.imports is (where != "import")
    assert found.no_gds == "the test did not end in time"
    [child] = children
    assert child.returncode == -signal.SIGKILL
    assert list((tmp_path / "d").iterdir()) == []


def test_a_directory_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(trial, "_PROGRAM", "import time; time.sleep(3600)")
    with pytest.raises(TimeoutError, match="does not answer"):
        choose_engine("auto", tmp_path)
    assert children[0].returncode == -signal.SIGKILL


def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.sys, "executable", "/nowhere/python")
    choice = choose_engine("posix", tmp_path)
    assert choice.engine.name == "posix O_DIRECT"
    assert "untested: the test could not be started (No such file or directory)" in choice.reason


def test_no_room_for_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.tempfile, "tempdir", str(tmp_path / "absent"))
    assert "could not be started" in (try_posix(tmp_path).untested or "")


def test_what_a_failing_process_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_PROGRAM", "print('noise'); print('3'); raise SystemExit('all is lost')")
    assert try_posix(tmp_path).untested == "the test failed: all is lost"


def test_a_full_disk_does_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(directory: Path) -> str | None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(probe_child, "try_direct", full)
    probe_child.main("posix", str(tmp_path))
    said = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(trial, "_ask", lambda kind, directory: (said, None))
    assert try_posix(tmp_path) == Verdict(untested="No space left on device")


def test_the_child_writes_no_log_where_the_server_runs(
    kvikio: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.delenv(trial.LOG_VARIABLE)
    seen: dict[str, Any] = {}
    recording = trial.subprocess.Popen

    def looking(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return recording(*args, **kwargs)

    monkeypatch.setattr(trial.subprocess, "Popen", looking)
    assert try_kvikio(tmp_path).works
    log = seen["env"][trial.LOG_VARIABLE]
    assert os.path.dirname(log) == seen["cwd"]
    assert not os.path.exists(seen["cwd"])


# The report


def test_a_report_is_plain_facts(kvikio: Any, tmp_path: Path, say: Say) -> None:
    say("cufile")
    report = probe_report(tmp_path)
    assert json.loads(json.dumps(report)) == report
    assert report["error"] is None
    assert report["posix_direct"]["ok"] is (try_direct(tmp_path) is None)
    assert report["kvikio"] == {"importable": True, "works": True, "why": None}
    assert report["gds"] == {"ok": False, "why": "the nvidia-fs driver is not loaded"}
    assert report["auto"] == choose_engine("auto", tmp_path).reason
    assert report["file_system"] != "unknown"
    assert report["block_alignment"] >= 512
    assert list(tmp_path.iterdir()) == []


def test_a_report_on_nothing(tmp_path: Path) -> None:
    report = probe_report(tmp_path / "absent")
    assert report["error"] == "No such file or directory"
    assert report["posix_direct"]["ok"] is report["gds"]["ok"] is report["kvikio"]["works"] is False


def test_a_report_without_the_library(tmp_path: Path, verdicts: Callable[..., None]) -> None:
    verdicts(Verdict("is refused (EINVAL)"))
    report = probe_report(tmp_path)
    assert report["posix_direct"] == {"ok": False, "why": "is refused (EINVAL)"}
    assert report["kvikio"] == {"importable": False, "works": False, "why": "it is not installed"}
    assert report["gds"]["ok"] is False
    assert "buffered" in report["auto"]
