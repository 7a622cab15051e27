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
from radixtier.gate.soak_load import Known, SoakLoad, learn, learnt, scripts
from radixtier.gate.soak_watch import Watch
from radixtier.live.client import RequestFailed
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
    monkeypatch.setattr("radixtier.gate.soak_load.PAUSE_S", 0.01)


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

    def kill(dead: object = None) -> float:
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
    with pytest.raises(KeyboardInterrupt) as caught:
        run(stand)
    assert stand.faults[-1] == ""
    partial: Result = caught.value.result  # type: ignore[attr-defined]
    assert verdicts(partial)["ran to its end"] is Verdict.FAIL
    assert partial.figures["events"][0]["what"] == TITLES["burst"]
    assert "wrong answers" in verdicts(partial)


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
    assert {record.outcome for record in load.records.kept()} <= {"right", "cut"}


@pytest.mark.parametrize("kind", [*KINDS, KILL])
def test_an_event_that_is_not_possible_here_says_why(kind: str) -> None:
    stand = FakeStand()
    stand.unavailable = {"flush", "kill", "misbehave", "restart"}
    with (
        SoakLoad(stand.server, [], Known({(1,): {(2,)}}), LOAD) as load,
        Watch(stand, 10.0, load.records.recent) as watch,
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


def events_of(stand: FakeStand, load: SoakLoad, watch: Watch, made: Plan | None = None) -> Events:
    return Events(stand, made or small(), load, watch, time.perf_counter)


def happened(stand: FakeStand, kind: str, soak_load: Soak = LOAD) -> Event:
    """Let one event happen to a stand with a load of known answers."""
    conversations = scripts(LOAD, stand.plain, stand.number)
    known = learn(stand.plain, conversations, LOAD)
    stand.server.on_ask = lambda: time.sleep(0.001)
    with (
        SoakLoad(stand.server, conversations, known, soak_load) as load,
        Watch(stand, 10.0, load.records.recent) as watch,
    ):
        return events_of(stand, load, watch, replace(small(), soak=soak_load)).happen(kind)


@pytest.mark.parametrize("kind", ["error", "flip", "slow"])
def test_a_fault_that_never_reached_the_server_is_trouble(kind: str) -> None:
    stand = FakeStand()
    good = happened(stand, kind)
    assert (good.trouble, good.hit, good.unchecked) == ("", True, "") and good.recovered_s is not None
    assert stand.told is not None
    stand.told["engine"] = "threads"
    assert "did not reach" in happened(stand, kind).trouble
    stand.told = None
    found = happened(stand, kind)
    assert "not told" in found.trouble and not found.hit


def test_a_kill_hits_a_server_at_work_and_the_share_is_of_what_was_cold() -> None:
    event = happened(FakeStand(), KILL)
    assert (event.trouble, event.stored_share) == ("", 1.0)
    assert event.figures["requests_under_way"] > 0
    assert event.began_s is not None and event.began_s < event.at_s
    gone = FakeStand()
    gone.cold = False
    assert happened(gone, KILL).stored_share == 0.0


def test_a_kill_of_an_idle_server_is_trouble() -> None:
    stand = FakeStand()
    known = Known({(1,): {(2,)}})
    made = replace(small(), soak=replace(LOAD, burst_prompts=0))
    with (
        SoakLoad(stand.server, [], known, LOAD) as load,
        Watch(stand, 10.0, load.records.recent) as watch,
    ):
        assert "idle" in events_of(stand, load, watch, made).happen(KILL).trouble


def test_what_does_not_come_back_from_nvme_is_no_recovery() -> None:
    stand = FakeStand()
    stand.comes_back = False
    event = happened(stand, "burst")
    assert event.recovered_s is None and "came back from NVMe" in event.trouble


def test_without_a_control_endpoint_the_way_to_nvme_is_not_checked() -> None:
    stand = FakeStand()
    stand.unavailable = {"chill"}
    event = happened(stand, "burst")
    assert event.recovered_s is not None and event.unchecked == "no chill here"


def test_what_an_event_raises_is_its_trouble_and_the_soak_goes_on() -> None:
    stand = FakeStand()

    def flush(side: object) -> None:
        raise RequestFailed("503, busy")

    stand.flush = flush  # type: ignore[method-assign,assignment]
    result = run(stand)
    assert verdicts(result)["recovery: flush"] is Verdict.FAIL
    assert verdicts(result)["recovery: kill -9"] is Verdict.PASS
    assert {event["what"] for event in result.figures["events"]} == set(TITLES.values())


def test_new_prompts_that_fail_during_a_fault_are_trouble() -> None:
    stand = FakeStand()
    real = stand.misbehave

    def misbehave(faults: str) -> None:
        real(faults)
        stand.server.always_error = "no space" if faults else ""

    stand.misbehave = misbehave  # type: ignore[method-assign]
    assert happened(stand, "error").trouble


def test_a_users_server_learns_why_it_was_neither_hurt_nor_killed() -> None:
    stand = FakeStand(stock=False)
    for kind in ("error", KILL):
        assert "--launch" in happened(stand, kind).skipped
    assert not stand.faults and not stand.kills


def test_a_client_and_a_watch_that_die_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    stand.store_bytes = lambda: 1 // 0  # type: ignore[method-assign]
    after_learning(stand, lambda: (_ for _ in ()).throw(KeyError("7")))
    found = next(check for check in run(stand).checks if check.name == "load and samples")
    assert found.verdict is Verdict.FAIL
    assert "KeyError" in found.reason and "ZeroDivisionError" in found.reason


def test_nothing_is_learnt_from_what_is_under_test() -> None:
    stand = FakeStand()
    made = scripts(LOAD, stand.server, stand.number)
    real = stand.server.ask

    def ask(prompt, answer_tokens, **more):  # type: ignore[no-untyped-def]
        stand.chill([*stand.server.paths])
        return real(prompt, answer_tokens, **more)

    stand.server.ask = ask  # type: ignore[method-assign]
    known = learn(stand.server, made, LOAD)
    assert set(known.answers) == {script.prompts[0] for script in made}  # computed; what hangs below was read
    assert known.asked == 0 and known.left_out > 0
    assert [len(script.prompts) for script in learnt(made, known)] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="no answer could be learnt"):
        learn(stand.server, made, LOAD)
