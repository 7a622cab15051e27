"""Who asks when: order, concurrency, histories, pauses, failures, stops."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_fakes import ANSWER, FakeTarget

from radixtier.load.answer import Answer
from radixtier.load.play import Conversation, Exchange, Order, Turn, play, played


def conversation(name: str, turns: int, answer: tuple[int, ...] | None = None, **fields: float) -> Conversation:
    number = sum(name.encode())
    made = [Turn((number, turn), 2, answer=answer, **fields) for turn in range(turns)]  # type: ignore[arg-type]
    return Conversation(name, tuple(made))


def order_of(target: FakeTarget) -> list[str | None]:
    return target.sessions


@pytest.mark.parametrize(
    ("order", "expected"),
    [("round-robin", ["a", "b", "c"] * 2), ("deep", ["a", "a", "b", "b", "c", "c"])],
)
def test_order(order: Order, expected: list[str]) -> None:
    target = FakeTarget()
    play(target, [conversation(name, 2) for name in "abc"], concurrency=1, order=order)
    assert order_of(target) == expected


def test_random_order_is_of_its_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        target = FakeTarget()
        play(target, [conversation(str(n), 3) for n in range(8)], concurrency=1, order="random", seed=seed)
        assert sorted(order_of(target), key=str) == sorted([str(n) for n in range(8)] * 3)
        orders.append(order_of(target))
    assert orders[0] == orders[1] != orders[2]


def test_history_is_all_that_was_said() -> None:
    target = FakeTarget()
    play(target, [conversation("a", 3)], concurrency=1)
    said = (ANSWER, ANSWER)
    assert target.prompts == [(97, 0), (97, 0, *said, 97, 1), (97, 0, *said, 97, 1, *said, 97, 2)]


def test_scripted_answers_stand_for_what_was_said() -> None:
    target = FakeTarget()
    play(target, [conversation("a", 2, answer=(5,))], concurrency=1)
    assert target.prompts == [(97, 0), (97, 0, 5, 97, 1)]


def test_a_prompt_that_is_made_is_the_whole_prompt() -> None:
    target = FakeTarget()
    turns = (Turn((1,), 2), Turn((), 2, prompt=lambda: (8, 9)), Turn((3,), 2))
    play(target, [Conversation("a", turns)], concurrency=1)
    assert target.prompts == [(1,), (8, 9), (8, 9, ANSWER, ANSWER, 3)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.integers(1, 6),
    st.sampled_from(["round-robin", "random", "deep"]),
    st.integers(0, 30),
)
def test_every_turn_once_and_never_too_many(turns: list[int], concurrency: int, order: Order, failing: int) -> None:
    target = FakeTarget(fail=lambda number: number == failing)
    conversations = [conversation(f"{number}", count) for number, count in enumerate(turns)]
    seen: list[Exchange] = []
    result = play(target, conversations, concurrency=concurrency, order=order, on_exchange=seen.append)
    assert target.most_running <= concurrency
    assert target.overlaps == 0
    assert list(result.exchanges) == seen
    by_name: dict[str, list[Exchange]] = {}
    for exchange in result.exchanges:
        by_name.setdefault(exchange.conversation, []).append(exchange)
    for number, count in enumerate(turns):
        mine = by_name.get(f"{number}", [])
        assert [each.turn for each in mine] == list(range(len(mine)))
        if len(mine) < count:
            assert mine[-1].answer.error and all(each.answer.ok for each in mine[:-1])
    assert sum(bool(answer.error) for answer in result.answers) == (failing < len(target.prompts))


def test_all_of_the_concurrency_is_used() -> None:
    hold = threading.Event()
    target = FakeTarget(hold=hold)
    runner = threading.Thread(
        target=play, args=(target, [conversation(str(n), 1) for n in range(9)]), kwargs={"concurrency": 4}
    )
    runner.start()
    end = time.monotonic() + 5
    while target.running < 4 and time.monotonic() < end:
        time.sleep(0.005)
    assert target.running == 4
    hold.set()
    runner.join(5)
    assert target.most_running == 4 and len(target.prompts) == 9


def test_think_time_lies_between_answer_and_question() -> None:
    target = FakeTarget()
    result = play(target, [conversation("a", 3, think_s=0.03)], concurrency=2)
    for before, after in pairwise(result.answers):
        assert after.started_s - (before.started_s + before.total_s) >= 0.03


def test_nobody_comes_before_the_time() -> None:
    target = FakeTarget()
    began = time.perf_counter()
    late = Conversation("late", (Turn((1,), 1, start_s=0.06),))
    result = play(target, [late, conversation("soon", 1)], concurrency=1)
    assert [each.conversation for each in result.exchanges] == ["soon", "late"]
    assert result.answers[1].started_s - began >= 0.06


def test_rate_holds_requests_back() -> None:
    target = FakeTarget()
    result = play(target, [conversation(str(n), 1) for n in range(12)], concurrency=12, rate=200.0, seed=3)
    starts = sorted(answer.started_s for answer in result.answers)
    # Twelve exponential pauses of 5 ms; what is behind is caught up by one of them at most.
    assert starts[-1] - starts[0] >= 0.01
    assert len(result.exchanges) == 12


def test_stop_is_obeyed_before_the_next_request() -> None:
    stop = threading.Event()
    target = FakeTarget()

    def on_exchange(exchange: Exchange) -> None:
        if len(target.prompts) >= 3:
            stop.set()

    result = play(
        target, [conversation(str(n), 4) for n in range(5)], concurrency=1, on_exchange=on_exchange, stop=stop
    )
    assert len(result.exchanges) == 3 == len(target.prompts)


def test_stop_ends_a_pause() -> None:
    stop = threading.Event()
    target = FakeTarget()
    result = play(
        target, [conversation("a", 2, think_s=3600.0)], concurrency=1, on_exchange=lambda _: stop.set(), stop=stop
    )
    assert len(result.exchanges) == 1


def test_what_a_listener_raises_ends_the_load() -> None:
    def on_exchange(exchange: Exchange) -> None:
        raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        play(FakeTarget(), [conversation(str(n), 3) for n in range(4)], concurrency=3, on_exchange=on_exchange)


def test_a_target_that_raises_ends_the_load() -> None:
    class Broken(FakeTarget):
        def ask(self, *_: object, **__: object) -> Answer:
            raise AssertionError("targets never raise")

    with pytest.raises(AssertionError, match="never raise"):
        play(Broken(), [conversation(str(n), 3) for n in range(4)], concurrency=3)


def test_nothing_to_play() -> None:
    result = play(FakeTarget(), [Conversation("a", ())], concurrency=2)
    assert result.exchanges == () and result.seconds == 0.0


def test_a_load_lasts_from_the_first_request_to_the_last_answer() -> None:
    exchanges = [Exchange("a", 0, Answer(10.0, 1.0, 5.0)), Exchange("b", 0, Answer(11.0, 1.0, 2.0))]
    assert played(exchanges).seconds == 5.0
