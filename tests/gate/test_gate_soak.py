from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from gate_fakes import FakeStand

from radixtier.gate import soak
from radixtier.gate.profiles import Plan, Soak, plan
from radixtier.gate.progress import Progress
from radixtier.gate.result import Result, Verdict
from radixtier.gate.soak_events import KILL, KINDS, TITLES, Event, Events
from radixtier.gate.soak_load import Known, SoakLoad, learn, scripts
from radixtier.gate.soak_watch import Watch
from radixtier.live.server import ServerFailed

LOAD = Soak(
    conversations=3, turns=2, first_tokens=64, turn_tokens=16, answer_tokens=4, clients=2, cut_share=0.1,
    burst_prompts=2, burst_tokens=32, fault_s=0.02, event_every_s=0.03, look_s=0.02,
)  # fmt: skip


def small(**limits: float) -> Plan:
    made = plan("long-context", True, cpu=True, soak_s=0.6, recover_s=0.2, **limits)
    return replace(made, soak=LOAD)


def run(stand: FakeStand, made: Plan | None = None) -> Result:
    # A request takes a moment, so that the records stay few.
    for server in (stand.server, stand.plain):
        busy = server.on_ask
        server.on_ask = lambda busy=busy: (time.sleep(0.001), busy())[1]  # type: ignore[misc]
    return soak.run(stand, made or small(), Progress(None))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.gate.soak_events.LOOK_S", 0.02)


def verdicts(result: Result) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in result.checks}


def eventually(true: Callable[[], object]) -> bool:
    """Other threads need a moment, on a busy machine a long one."""
    for _ in range(1000):
        if true():
            return True
        time.sleep(0.01)
    return False


def after_learning(stand: FakeStand, then: Callable[[], None]) -> None:
    """Do something as soon as the tiered server is asked: the answers are learnt from stock."""
    done = threading.Event()

    def once() -> None:
        if not done.is_set():
            done.set()
            then()

    stand.server.on_ask = once


def test_a_server_that_holds_passes_and_had_every_event() -> None:
    stand = FakeStand()
    result = run(stand)
    failed = [check for check in result.checks if check.verdict is Verdict.FAIL and check.name != "TTFT drift"]
    assert not failed
    assert {event["what"] for event in result.figures["events"]} == set(TITLES.values())
    assert result.figures["wrong"] == 0
    assert result.figures["turns"] == sum(result.figures[each] for each in ("right", "wrong", "failed", "cut"))
    assert result.figures["cut"] > 0
    assert stand.kills == 1
    assert stand.faults[-1] == ""
    assert {"error=0.5", "flip=0.3", "slow_read=20,slow_write=20"} <= set(stand.faults)


def test_wrong_answers_fail() -> None:
    stand = FakeStand()
    stand.server.wrong_from = "hbm"
    result = run(stand)
    assert verdicts(result)["wrong answers"] is Verdict.FAIL
    assert verdicts(result)["recovery: burst without reuse"] is Verdict.FAIL


def test_failing_requests_fail() -> None:
    stand = FakeStand()
    after_learning(stand, lambda: stand.server.errors.extend(["no luck"] * 3))
    assert verdicts(run(stand))["failed requests"] is Verdict.FAIL


def test_writes_that_do_not_go_on_are_no_recovery() -> None:
    stand = FakeStand()
    after_learning(stand, lambda: setattr(stand, "cold", False))
    found = verdicts(run(stand))
    assert found["recovery: drive errors"] is Verdict.FAIL
    assert found["wrong answers"] is Verdict.PASS


def test_a_store_that_is_gone_after_the_kill_fails() -> None:
    stand = FakeStand()
    stand.survives = False
    assert verdicts(run(stand))["the store survives kill -9"] is Verdict.FAIL


def test_a_server_that_does_not_come_back_fails_and_leaves_the_figures() -> None:
    stand = FakeStand()

    def kill() -> float:
        raise ServerFailed("it ended before it was ready")

    stand.kill = kill  # type: ignore[method-assign]
    result = run(stand)
    assert verdicts(result)["server"] is Verdict.FAIL
    assert result.figures["turns"] > 0
    assert stand.faults[-1] == ""


def test_a_users_server_is_neither_flushed_nor_hurt() -> None:
    stand = FakeStand(stock=False)
    stand.disturb = False
    result = run(stand)
    found = verdicts(result)
    assert {found[f"recovery: {TITLES[kind]}"] for kind in ("error", "flip", "slow", "flush", KILL)} == {
        Verdict.SKIPPED
    }
    assert found["recovery: burst without reuse"] is Verdict.PASS
    assert found["wrong answers"] is Verdict.PASS
    assert stand.flushed == stand.kills == 0
    assert not any(stand.faults)


def test_faults_end_even_if_the_soak_is_interrupted() -> None:
    stand = FakeStand()
    real = stand.misbehave

    def misbehave(faults: str) -> None:
        real(faults)
        if faults:
            raise KeyboardInterrupt

    stand.misbehave = misbehave  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(stand)
    assert stand.faults[-1] == ""


def test_learning_counts_answers_that_vary_by_themselves() -> None:
    stand = FakeStand()
    made = scripts(LOAD, stand.plain, stand.number)
    known = learn(stand.plain, made, LOAD)
    assert (known.asked, known.varied, len(known.answers)) == (6, 0, 6)
    stand.plain.paths.clear()
    stand.plain.wrong_from = "hbm"
    known = learn(stand.plain, made, LOAD)
    assert known.varied > 0
    assert known.varying == known.varied / 6
    stand.plain.always_error = "broken"
    with pytest.raises(RuntimeError, match="broken"):
        learn(stand.plain, made, LOAD)


def test_prompts_build_on_each_other_and_a_conversation_has_one_request_at_a_time() -> None:
    stand = FakeStand()
    made = scripts(LOAD, stand.plain, stand.number)
    assert all(script.prompts[1][: len(script.prompts[0])] == script.prompts[0] for script in made)
    known = learn(stand.plain, made, LOAD)
    asking: set[str] = set()
    lock = threading.Lock()
    real = stand.server.ask

    def ask(prompt, answer_tokens, *, session=None, rid=None, cut_after=None):  # type: ignore[no-untyped-def]
        with lock:
            assert session not in asking
            asking.add(session)
        time.sleep(0.002)
        with lock:
            asking.discard(session)
        return real(prompt, answer_tokens, cut_after=cut_after)

    stand.server.ask = ask  # type: ignore[method-assign]
    with SoakLoad(stand.server, made, known, LOAD) as load:
        assert eventually(lambda: load.records)
        with load.held(quiet=True):
            held = len(load.records)
            time.sleep(0.03)
            assert len(load.records) == held and not asking
        assert eventually(lambda: len(load.records) > held)
    assert {record.outcome for record in load.records} <= {"right", "cut"}


@pytest.mark.parametrize("kind", [*KINDS, KILL])
def test_an_event_that_is_not_possible_here_says_why(kind: str) -> None:
    stand = FakeStand()
    stand.unavailable = {"flush", "kill", "misbehave", "restart"}
    with (
        SoakLoad(stand.server, [], Known({(1,): {(2,)}}), LOAD) as load,
        Watch(stand, 10.0, lambda: load.records) as watch,
    ):
        events = Events(stand, small(), load, watch, time.perf_counter)
        event: Event = events.happen(kind)
    assert (event.skipped == "") == (kind == "burst")


def test_the_watch_looks_and_counts_lives() -> None:
    stand = FakeStand()
    with Watch(stand, 0.01, list) as watch:
        assert eventually(lambda: watch.samples)
        with watch.away():
            seen = len(watch.samples)
            time.sleep(0.03)
            assert len(watch.samples) == seen
        assert eventually(lambda: watch.samples[-1].life == 1)
    assert {sample.life for sample in watch.samples} == {0, 1}
    assert watch.samples[0].rss_bytes == stand.used.rss_bytes
    assert watch.samples[0].store_bytes == 900
