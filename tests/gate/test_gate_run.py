"""The order of the gates, what becomes of what they raise, and the report that is always there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate_run_fakes import FakeStand, result

from radixtier.gate import acceptance, baseline, run
from radixtier.gate.html import HTML_NAME
from radixtier.gate.profiles import plan
from radixtier.gate.progress import Progress
from radixtier.gate.report import JSON_NAME, NOT_REACHED, TITLES, Report, read_json
from radixtier.gate.result import Result
from radixtier.gate.stand import Unavailable
from radixtier.live.server import ServerFailed
from radixtier.units import BadValue

PLAN = plan("chat", True)


def play(
    out: Path, outcomes: dict[str, Any], stand: FakeStand | None = None, write: Callable[..., None] | None = None
) -> tuple[int, dict[str, Any], FakeStand, list[str]]:
    """Run the gates of ``outcomes``: verdicts, or what a gate raises; also return which of them ran."""
    ran: list[str] = []
    stand = stand or FakeStand()

    def find(key: str) -> run.Gate:
        def gate(*_: Any) -> Result:
            ran.append(key)
            if ran[:-1]:
                partial = read_json(out / JSON_NAME)
                assert not partial["complete"] and list(partial["gates"]) == ran[:-1]
                assert (out / HTML_NAME).exists()
            if isinstance(outcomes[key], BaseException):
                raise outcomes[key]
            return result(key, *outcomes[key])

        return gate

    status = run.run(stand, PLAN, Report("cmd", list(outcomes), {}, {}), out, Progress(None), find)
    return status, read_json(out / JSON_NAME), stand, ran


def test_all_gates_pass(tmp_path: Path) -> None:
    status, report, stand, ran = play(tmp_path, {key: ["pass"] for key in TITLES})
    assert status == 0 and ran == list(TITLES) and stand.closed == 1
    assert report["complete"] and report["note"] == "" and set(report["verdict"].values()) == {"pass"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [HTML_NAME, JSON_NAME]


def test_a_failed_gate_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    status, report, _, ran = play(tmp_path, {"G1": ["fail"], "G2": ["pass"], "G3": ["skipped"]})
    assert status == 1 and ran == ["G1", "G2", "G3"] and report["complete"]
    assert report["verdict"] == {"G1": "fail", "G2": "pass", "G3": "skipped", "G4": "skipped", "overall": "fail"}


@pytest.mark.parametrize(
    ("raised", "verdict", "reason"),
    [
        (ServerFailed("the server tiered ended"), "fail", "ServerFailed: the server tiered ended"),
        (ZeroDivisionError(), "fail", "ZeroDivisionError"),
        (Unavailable("no control endpoint"), "skipped", "no control endpoint"),
        (BadValue("a level recovers too much", "Give the server more NVMe"), "fail", "a level recovers too much"),
    ],
)
def test_what_a_gate_raises_is_its_verdict(tmp_path: Path, raised: Exception, verdict: str, reason: str) -> None:
    status, report, stand, ran = play(tmp_path, {"G2": raised, "G3": ["pass"]})
    assert status == 1 and ran == ["G2", "G3"] and stand.closed == 1
    assert report["verdict"]["G2"] == verdict and reason in report["reasons"]["G2"][0]


def test_all_skipped_is_no_pass(tmp_path: Path) -> None:
    status, report, _, _ = play(tmp_path, {"G3": ["skipped"]})
    assert status == 1 and report["verdict"]["overall"] == "skipped" and report["complete"]


@pytest.mark.parametrize("at", ["G1", "G3"])
def test_an_interruption_leaves_what_was_found(tmp_path: Path, at: str) -> None:
    outcomes: dict[str, Any] = {"G1": ["pass"], "G3": ["pass"], "G4": ["pass"], at: KeyboardInterrupt()}
    status, report, stand, ran = play(tmp_path, outcomes)
    assert status == run.INTERRUPTED and ran[-1] == at and stand.closed == 1
    assert not report["complete"] and report["note"] == f"interrupted during {at}"
    assert report["verdict"]["overall"] == "skipped" and report["reasons"][at] == [f"interrupted during {at}"]
    assert report["reasons"]["G4"] == [NOT_REACHED]
    assert f"interrupted during {at}" in (tmp_path / HTML_NAME).read_text()


def test_a_users_server_that_is_gone_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Client, "healthy", lambda self: False)
    outcomes = {"G1": ["pass"], "G2": ["pass"]}
    status, report, _, ran = play(tmp_path, outcomes, FakeStand(attached=True))
    assert ran == ["G1"] and status == 1 and report["note"] == "the server was gone after G1"
    assert not report["complete"]
    monkeypatch.setattr(run.Client, "healthy", lambda self: True)
    assert play(tmp_path, outcomes, FakeStand(attached=True))[0] == 0


def test_impatience_does_not_keep_servers_running(tmp_path: Path) -> None:
    class Slow(FakeStand):
        def close(self) -> None:
            super().close()
            if self.closed == 1:
                raise KeyboardInterrupt

    stand = Slow()
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, {"G1": ["pass"]}, stand)
    assert stand.closed == 2 and read_json(tmp_path / JSON_NAME)["complete"]


def test_a_full_disk_closes_the_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    stand = FakeStand()
    monkeypatch.setattr(run, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        run.run(stand, PLAN, Report("cmd", ["G1"], {}, {}), tmp_path, Progress(None), lambda key: acceptance.run)
    assert stand.closed == 1


def test_how_servers_were_started_is_in_the_report_without_keys(tmp_path: Path) -> None:
    stand = FakeStand()
    stand.commands = {"stock": ["--api-key", "hidden", "--x"]}  # type: ignore[attr-defined]
    _, report, _, _ = play(tmp_path, {"G1": ["pass"]}, stand)
    assert report["server"] == {"stock flags": "--api-key ... --x"}
    assert "hidden" not in json.dumps(report)


def test_gates_are_found_by_their_keys() -> None:
    assert run.gate("G1") is acceptance.run and run.gate("G2") is baseline.run
    assert run.chosen(" g3, G1 ") == ["G1", "G3"]
    for bad in ("G9", "", ",", "G1,all"):
        with pytest.raises(BadValue):
            run.chosen(bad)


def test_what_an_interrupted_gate_has_so_far_is_in_the_report(tmp_path: Path) -> None:
    interruption = KeyboardInterrupt()
    interruption.result = result("G4", "pass", "fail")  # type: ignore[attr-defined]
    status, report, _, _ = play(tmp_path, {"G1": ["pass"], "G4": interruption})
    assert status == run.INTERRUPTED and not report["complete"]
    assert report["verdict"]["G4"] == "fail" and report["reasons"]["G4"] == ["check 1: reason 1"]
    assert report["note"] == "interrupted during G4"


def test_an_interruption_is_written_down_before_it_is_said(tmp_path: Path) -> None:
    class Gone(Progress):
        def line(self, text: str, tone: str = "") -> None:
            if "interrupted" in text:
                raise OSError(5, "Input/output error")

    def find(key: str) -> run.Gate:
        def gate(*_: Any) -> Result:
            raise KeyboardInterrupt

        return gate

    with pytest.raises(OSError, match="Input"):
        run.run(FakeStand(), PLAN, Report("cmd", ["G1"], {}, {}), tmp_path, Gone(None), find)
    assert read_json(tmp_path / JSON_NAME)["note"] == "interrupted during G1"


LOG = "the server tiered ended with status 1 before it was ready; its log is /x:\n    secret line\n    another"


def test_a_server_that_never_started_ends_the_run(tmp_path: Path) -> None:
    status, report, stand, ran = play(tmp_path, {"G1": ServerFailed(LOG), "G2": ["pass"], "G3": ["pass"]})
    assert ran == ["G1"] and status == 1 and stand.closed == 1 and not report["complete"]
    assert report["verdict"]["overall"] == "fail" and report["reasons"]["G2"] == [NOT_REACHED]
    # The log is told on the screen, and is no reason.
    [reason] = report["reasons"]["G1"]
    assert reason.endswith("its log is /x") and "secret" not in json.dumps(report)
    assert "no server started in G1" in report["note"]


@pytest.mark.parametrize("text", [LOG, "the server tiered died; its log is /x:\n    line"])
def test_a_server_that_fails_later_leaves_the_next_gates_their_turn(tmp_path: Path, text: str) -> None:
    assert play(tmp_path, {"G1": ["pass"], "G2": ServerFailed(text), "G3": ["pass"]})[3] == ["G1", "G2", "G3"]


def test_a_gate_that_was_chosen_and_skipped_leaves_no_pass(tmp_path: Path) -> None:
    status, report, _, _ = play(tmp_path, {"G1": ["pass"], "G3": Unavailable("no control endpoint")})
    assert status == 1 and report["verdict"]["overall"] == "skipped" and report["complete"]
    assert report["reasons"]["overall"] == ["G3 did not run: the gate could run: no control endpoint"]
    page = (tmp_path / HTML_NAME).read_text()
    assert "No verdict. G3 did not run" in page and "The tier passed" not in page
