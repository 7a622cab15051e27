"""The desk between HTTP threads and the scheduler thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from control_rig import PATIENCE_S, Script, scheduler

from radixtier.control import Command, Desk, ExplainRequests, ReadState, Refusal
from radixtier.units import BadValue


def later(pool: ThreadPoolExecutor, desk: Desk, command: Command, timeout: float = PATIENCE_S) -> Future[Any]:
    """Ask from another thread, and go on when the command lies on the desk."""
    before = len(desk._waiting)
    future = pool.submit(desk.ask, command, timeout)
    until(lambda: len(desk._waiting) > before)
    return future


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.001)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never happened")


def test_commands_are_answered_in_their_order_and_a_few_per_tick() -> None:
    desk, script = Desk(), Script()
    assert desk.serve(script) == 0 and not desk.pending
    with ThreadPoolExecutor() as pool:
        asked = [later(pool, desk, ExplainRequests(str(i))) for i in range(5)]
        assert desk.pending
        assert desk.serve(script, most=2) == 2 and desk.pending
        assert desk.serve(script, most=9) == 3 and not desk.pending
        assert [future.result() for future in asked] == [{"asked": "ExplainRequests"}] * 5
    assert script.seen == [ExplainRequests(str(i)) for i in range(5)]


def test_a_full_desk_refuses() -> None:
    desk = Desk(room=1)
    with ThreadPoolExecutor() as pool:
        first = later(pool, desk, ReadState())
        with pytest.raises(Refusal, match="try again later") as refusal:
            desk.ask(ReadState(), PATIENCE_S)
        assert refusal.value.status == 503
        desk.serve(Script())
        assert first.result()
    with scheduler(desk, Script()):
        assert desk.ask(ReadState(), PATIENCE_S)


def test_a_command_that_nobody_waits_for_is_not_carried_out() -> None:
    desk, script = Desk(room=1), Script()
    for _ in range(3):
        with pytest.raises(Refusal, match="nothing was done") as refusal:
            desk.ask(ReadState(), 0.0)
        assert refusal.value.status == 504
    assert not desk.pending and desk.serve(script) == 0 and script.seen == []


def test_an_answer_that_comes_too_late_is_dropped() -> None:
    desk = Desk()
    with ThreadPoolExecutor() as pool:
        asked = later(pool, desk, ReadState(), timeout=1.0)

        def slow(command: Command) -> dict[str, Any]:
            assert isinstance(asked.exception(PATIENCE_S), Refusal)
            return {}

        assert desk.serve(slow) == 1
        with pytest.raises(Refusal, match="may have been carried out") as refusal:
            asked.result()
        assert refusal.value.status == 504
    with scheduler(desk, Script()):
        assert desk.ask(ReadState(), PATIENCE_S)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Refusal(404, "no such request"), 404, "no such request"),
        (BadValue("text: no tokenizer", "Send tokens"), 400, "text: no tokenizer. Send tokens."),
        (ZeroDivisionError("secret"), 500, "its log says why"),
    ],
)
def test_a_handler_that_raises_does_not_stop_the_scheduler(error: Exception, status: int, words: str) -> None:
    desk = Desk()

    def handle(command: Command) -> dict[str, Any]:
        raise error

    with ThreadPoolExecutor() as pool:
        asked = later(pool, desk, ReadState())
        assert desk.serve(handle) == 1
        with pytest.raises(Refusal) as refusal:
            asked.result()
    assert refusal.value.status == status and words in refusal.value.error and "secret" not in refusal.value.error


def test_a_closed_desk_refuses_what_waits_and_what_comes() -> None:
    desk, script = Desk(), Script()
    with ThreadPoolExecutor() as pool:
        asked = [later(pool, desk, ReadState()) for _ in range(3)]
        desk.close()
        for future in asked:
            with pytest.raises(Refusal, match="stops") as refusal:
                future.result()
            assert refusal.value.status == 503
    with pytest.raises(Refusal, match="stops"):
        desk.ask(ReadState(), PATIENCE_S)
    desk.close()
    assert desk.serve(script) == 0 and script.seen == [] and not desk.pending


def test_many_askers_each_get_their_own_answer() -> None:
    desk = Desk(room=1000)

    def handle(command: Command) -> dict[str, Any]:
        assert isinstance(command, ExplainRequests)
        return {"rid": command.rid}

    with scheduler(desk, handle), ThreadPoolExecutor(16) as pool:
        rids = [str(i) for i in range(500)]
        answers = list(pool.map(lambda rid: desk.ask(ExplainRequests(rid), PATIENCE_S), rids))
    assert answers == [{"rid": rid} for rid in rids]
