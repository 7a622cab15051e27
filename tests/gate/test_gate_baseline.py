from __future__ import annotations

from dataclasses import replace

import pytest
from gate_fakes import Clock, FakeStand, virtual_time

from radixtier.gate import baseline
from radixtier.gate.noreuse import NOTE
from radixtier.gate.profiles import NoReuse, Plan, plan
from radixtier.gate.progress import Progress
from radixtier.gate.result import Result, Verdict


def small(profile: str = "long-context") -> Plan:
    """A plan of a few hundred tokens."""
    made = plan(profile, True, cpu=True, levels=(1, 3))
    return replace(
        made,
        level_lengths=(),
        lengths=(64, 128),
        shared_tokens=min(made.shared_tokens, 32),
        think_s=0.0,
        no_reuse=NoReuse(prompt_tokens=64, prompts=2, concurrency=2, answer_tokens=2, warm_turns=1, turns=2),
    )


def run(stand: FakeStand, made: Plan, monkeypatch: pytest.MonkeyPatch) -> Result:
    virtual_time(monkeypatch, stand.clock)
    return baseline.run(stand, made, Progress(None))


def verdicts(result: Result) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in result.checks}


@pytest.mark.parametrize("profile", ["long-context", "chat", "agents"])
def test_stock_computes_every_first_prompt(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand, made = FakeStand(), small(profile)
    result = run(stand, made, monkeypatch)
    assert result.verdict is Verdict.PASS
    assert set(result.figures["levels"]) == {"1", "3"}
    assert result.figures["levels"]["3"]["requests"] == 3 * (1 + made.follow_ups)
    assert not stand.server.asked
    assert stand.flushed == 2
    assert stand.notes["baseline"] == result.figures["levels"]
    assert NOTE not in stand.notes


def test_a_failed_request_fails_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    stand.plain.errors = ["out of luck"]
    found = verdicts(run(stand, small(), monkeypatch))
    assert found["baseline requests, concurrency 1"] is Verdict.FAIL
    assert found["baseline requests, concurrency 3"] is Verdict.PASS


def test_cached_tokens_make_it_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand(stock=False)
    stand.number = lambda: 7  # type: ignore[method-assign]
    found = verdicts(run(stand, small(), monkeypatch))
    assert found["baseline is recompute, concurrency 1"] is Verdict.PASS
    assert found["baseline is recompute, concurrency 3"] is Verdict.FAIL


def test_without_stock_the_tiered_server_computes_new_prompts_and_is_not_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = FakeStand(stock=False)
    result = run(stand, small(), monkeypatch)
    assert result.verdict is Verdict.PASS
    assert result.figures["side"] == "tiered"
    assert stand.flushed == 0


def test_servers_that_do_not_fit_beside_each_other_leave_stocks_turns_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand(Clock(), beside=False)
    run(stand, small(), monkeypatch)
    assert [turn.failed for turn in stand.notes[NOTE]] == [0, 0]
    assert not stand.server.asked


def test_a_server_that_does_not_tell_what_was_cached_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    ask = stand.plain.ask
    monkeypatch.setattr(stand.plain, "ask", lambda *args, **more: replace(ask(*args, **more), cached=None))
    result = run(stand, small(), monkeypatch)
    assert verdicts(result)["baseline is recompute, concurrency 1"] is Verdict.SKIPPED
    assert result.verdict is Verdict.SKIPPED and "does not tell" in result.reasons[0]
