"""Two servers in turns: who works when, what both are asked, what is made of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from load_fakes import FakeTarget

from radixtier.live.server import ServerFailed
from radixtier.load.compare import METRICS, Comparison, Side, Stage, compare, same_outputs, summary
from radixtier.load.launch import Command
from radixtier.load.play import Exchange, Played
from radixtier.load.progress import Progress, remaining
from radixtier.load.runs import Plan, known, load, until_interrupted, warm_up
from radixtier.load.tables import level_table, load_lines, ratio_lines, verdict
from radixtier.load.workloads.common import Length
from radixtier.load.workloads.multi_turn import MultiTurn

WORKLOAD = MultiTurn(clients=2, turns=2, first=Length(20, 20), request=Length(4, 4), output=Length(2, 2))


class FakeServer:
    """Knows whether it runs and works, and writes down what is done to it."""

    def __init__(self, name: str, log: list[str], fails: int = 0) -> None:
        self.url = name
        self.started = self.working = False
        self._name, self._log, self._fails = name, log, fails

    def start(self, wait: Any = None) -> None:
        self._log.append(f"start {self._name}")
        if self._fails == self._log.count(f"start {self._name}"):
            raise ServerFailed("did not start")
        self.started = self.working = True

    def running(self) -> bool:
        return self.started

    def resume(self) -> None:
        self.working = self.started

    def pause(self) -> None:
        self.working = False

    def stop(self) -> None:
        if self.started:
            self._log.append(f"stop {self._name}")
        self.started = self.working = False


class Watched(FakeTarget):
    """Sees who works while it is asked."""

    def __init__(self, name: str, log: list[str], servers: dict[str, FakeServer], interrupt_after: int = 0) -> None:
        super().__init__()
        self._name, self._log, self._servers, self._left = name, log, servers, interrupt_after

    def ask(self, prompt: Any, answer_tokens: int, **fields: Any) -> Any:
        assert [name for name, server in self._servers.items() if server.working] == [self._name]
        if fields.get("session") and (not self._log or self._log[-1] != f"ask {self._name}"):
            self._log.append(f"ask {self._name}")
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)
        return super().ask(prompt, answer_tokens, **fields)


def stage(apart: bool, fails: int = 0, interrupt_after: int = 0) -> tuple[Stage, list[str], dict[str, Watched]]:
    log: list[str] = []
    servers = {name: FakeServer(name, log, fails if name == "B" else 0) for name in "AB"}
    targets = {name: Watched(name, log, servers, interrupt_after if name == "B" else 0) for name in "AB"}
    sides = [Side(name, Command((), {}, True), server) for name, server in servers.items()]  # type: ignore[arg-type]
    reach: Any = targets.__getitem__
    return Stage((sides[0], sides[1]), reach, apart, Progress(1)), log, targets


def run(apart: bool, rounds: int, **fields: Any) -> tuple[Comparison, list[str], dict[str, Watched]]:
    made, log, targets = stage(apart, **fields)
    with made:
        result = compare(made, Plan(WORKLOAD, warm_up=1), (1, 2), rounds, Progress(1))
    return result, log, targets


def test_rounds_alternate_and_so_does_who_begins() -> None:
    result, log, _ = run(apart=False, rounds=3)
    turns = [line for line in log if line.startswith("ask")]
    # A B, B A, A B at either concurrency: who is asked twice in a row is listed once.
    assert turns == [f"ask {name}" for name in "ABABABAB"]
    assert log[:2] == ["start A", "start B"] and log[-2:] == ["stop A", "stop B"]
    assert [each["first"] for each in result.rounds[1]] == ["A", "B", "A"]
    assert not result.interrupted


def test_both_sides_get_the_same_prompts_and_every_round_its_own() -> None:
    result, _, targets = run(apart=False, rounds=2)
    a, b = (set(target.prompts) for target in targets.values())
    assert a == b
    # Two levels of two rounds of four requests, a warm-up, and the request that wakes a server.
    assert len(a) == 2 * 2 * 4 + 1 + 1
    assert [each["outputs"] for each in result.rounds[2]] == [{"compared": 4, "equal": 4}] * 2


def test_apart_only_one_runs_and_nobody_is_started_in_vain() -> None:
    _, log, _ = run(apart=True, rounds=2)
    assert [line for line in log if not line.startswith("ask")] == [
        "start A", "stop A", "start B", "stop B", "start A", "stop A", "start B", "stop B", "start A", "stop A",
    ]  # fmt: skip


def test_a_server_that_does_not_start_leaves_none_behind() -> None:
    made, log, _ = stage(apart=False, fails=1)
    with pytest.raises(ServerFailed, match="did not start"), made:
        pass
    assert log == ["start A", "start B", "stop A"]


def test_a_server_that_does_not_start_again_keeps_what_is_finished() -> None:
    # Apart, B is started in round 1 and, after A has played twice, in round 3.
    result, log, _ = run(apart=True, rounds=5, fails=2)
    assert isinstance(result.failure, ServerFailed) and not result.interrupted
    assert [len(rounds) for rounds in result.rounds.values()] == [2, 0]
    assert log.count("start B") == 2 and log[-1] == "start B"


def test_an_interrupt_keeps_finished_rounds_only() -> None:
    # A warm-up, a wake-up and four requests per round: the interrupt comes in the second round.
    result, log, targets = run(apart=False, rounds=5, interrupt_after=9)
    assert result.interrupted and len(result.rounds[1]) == 1 and result.rounds[2] == []
    assert log[-2:] == ["stop A", "stop B"]
    assert targets["B"].client.hung_up


def figure(value: float | None) -> dict[str, Any]:
    return {
        "ttft_s": {"p50": value, "p95": value},
        "itl_s": {"p50": value},
        "output_tokens_per_s": value or 0.0,
        "failed": 0 if value else 4,
        "requests": 4 if value else 0,
    }


def rounds(*pairs: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    outputs = {"compared": 4, "equal": 3}
    return [{"first": "A", "A": figure(a), "B": figure(b), "outputs": outputs} for a, b in pairs]


def test_ratios_are_b_to_a() -> None:
    found = summary(rounds(*[(2.0, 1.0)] * 6))
    assert found["ratios"] == {name: [0.5, 0.5, 0.5] for name in METRICS}
    assert found["medians"]["TTFT p50"] == {"A": 2.0, "B": 1.0}
    assert found["outputs"] == {"compared": 24, "equal": 18}
    text = "\n".join(ratio_lines(found, ("stock", "tier"), 8, 6))
    assert "tier / stock" in text and "0.500 to 0.500, lower" in text and "18 of 24 equal" in text
    assert "rounds to tell" not in text


def test_a_round_that_was_not_answered_is_in_no_ratio() -> None:
    found = summary(rounds((2.0, 1.0), (None, 1.0), (2.0, None)))
    assert found["ratios"]["TTFT p50"] == [0.5, 0.5, 0.5]
    assert found["failed"] == {"A": 4, "B": 4}
    assert found["counted"]["TTFT p50"] == 1
    lines = ratio_lines(found, ("A", "B"), 8, 3)
    assert sum("2 of 3 rounds left out: a side measured nothing" in line for line in lines) == len(METRICS)
    nothing = summary(rounds((None, 1.0)))
    assert set(nothing["ratios"].values()) == {None}
    text = "\n".join(ratio_lines(nothing, ("A", "B"), 8, 1))
    assert "not measured" in text and "failed: 4 of A, 0 of B" in text and "needs 6 rounds" in text


@pytest.mark.parametrize(
    ("ratio", "word"), [((0.9, 0.8, 1.0), "not different"), ((0.9, 0.8, 0.99), "lower"), ((1.2, 1.1, 1.3), "higher")]
)
def test_verdicts(ratio: tuple[float, float, float], word: str) -> None:
    assert verdict(ratio) == word


def test_outputs_are_compared_where_both_answered() -> None:
    def side(*outputs: Any) -> Played:
        target = FakeTarget()
        good = target.ask((1,), 2)
        found = [
            Exchange("a", at, type(good)(0.0, 1.0, 1.0, output=output or (), error="" if output else "no"))
            for at, output in enumerate(outputs)
        ]
        return Played(tuple(found), 1.0)

    assert same_outputs(side((1,), (2,), None, (4,)), side((1,), (9,), (3,))) == {"compared": 2, "equal": 1}


# ---- one load ---------------------------------------------------------------------------------------


def test_a_load_is_that_of_its_label() -> None:
    found = []
    for label in ("1", "1", "2"):
        target = FakeTarget()
        load(target, Plan(WORKLOAD), 1, label)  # type: ignore[arg-type]
        found.append(target.prompts)
    assert found[0] == found[1] != found[2]


def test_a_warm_up_has_as_many_requests_as_asked_for() -> None:
    for count in (0, 1, 5):
        target = FakeTarget()
        played = warm_up(target, Plan(WORKLOAD, warm_up=count), 2)  # type: ignore[arg-type]
        assert len(target.prompts) == count == len({prompt[:16] for prompt in target.prompts})
        assert not known(played)


def test_interrupts_end_what_is_under_way_and_the_next_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    now = [100.0]
    monkeypatch.setattr("radixtier.load.runs.time.monotonic", lambda: now[0])
    target: Any = FakeTarget()
    with until_interrupted(target) as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.is_set() and target.client.hung_up
        # The same Ctrl-C, sent to the process and to its group.
        signal.raise_signal(signal.SIGINT)
        now[0] += 2.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_tables_of_nothing_are_short() -> None:
    from radixtier.load.figures import figures

    empty = figures(Played((), 0.0))
    assert load_lines(empty, 3) == ["concurrency 3: 0 requests answered, 0 failed, 0.0 s"]
    assert len(level_table({1: empty, 2: empty})) == 3


def test_time_left() -> None:
    assert (remaining(10.0, 0.5), remaining(10.0, 1.0), remaining(600.0, 0.1)) == ("10 s", "0 s", "90 min")
