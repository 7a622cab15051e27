from __future__ import annotations

from dataclasses import replace

import pytest
from gate_fakes import FakeStand, virtual_time

from radixtier.gate import noreuse
from radixtier.gate.profiles import NoReuse, Plan, plan
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Verdict
from radixtier.load.paired import in_turns


def small() -> Plan:
    load = NoReuse(prompt_tokens=64, prompts=2, concurrency=2, answer_tokens=2, warm_turns=1, turns=4, most_turns=8)
    return replace(plan("long-context", True, cpu=True), no_reuse=load)


def measure(stand: FakeStand, monkeypatch: pytest.MonkeyPatch) -> tuple[Check, dict[str, object]]:
    virtual_time(monkeypatch, stand.clock)
    return noreuse.measure(stand, small(), Progress(None))


@pytest.mark.parametrize(
    ("tax", "verdict"), [(1.0, Verdict.PASS), (1.01, Verdict.PASS), (1.05, Verdict.FAIL), (0.9, Verdict.PASS)]
)
def test_the_tier_may_cost_two_percent(tax: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    stand.server.tax = tax
    check, figures = measure(stand, monkeypatch)
    assert check.verdict is verdict
    assert figures["turns"] == 4 and figures["bounds"] == "range of 2 pairs of turns"
    assert "range of 2 pairs of turns" in check.reason and "interval" not in check.reason
    assert figures["ratio"][0] == pytest.approx(1 / tax, rel=0.03)  # type: ignore[index]
    assert figures["cpu_ratio"] is None


def test_both_sides_get_the_same_prompts_and_warm_turns_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    measure(stand, monkeypatch)
    assert sorted(stand.server.asked) == sorted(stand.plain.asked)
    assert len(stand.server.asked) == (1 + 4) * (2 + 1)


def test_reuse_makes_it_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    stand.number = lambda: 5  # type: ignore[method-assign]
    check, _ = measure(stand, monkeypatch)
    assert check.verdict is Verdict.FAIL and "reused" in check.reason


def test_a_failed_request_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand()
    stand.server.always_error = "broken"
    check, _ = measure(stand, monkeypatch)
    assert check.verdict is Verdict.FAIL and "failed" in check.reason


def test_stocks_turns_may_have_been_taken_before(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = FakeStand(beside=False)
    assert measure(stand, monkeypatch)[0].verdict is Verdict.SKIPPED
    assert stand.stock is not None
    noreuse.keep_stock(stand, stand.stock, small())
    assert noreuse.measure(stand, small(), Progress(None))[0].verdict is Verdict.PASS
    stand.server.tax = 1.2
    assert noreuse.measure(stand, small(), Progress(None))[0].verdict is Verdict.FAIL


def test_without_stock_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(FakeStand(stock=False), monkeypatch)[0].verdict is Verdict.SKIPPED


def test_turns_go_on_while_the_interval_has_the_limit_inside() -> None:
    around = iter([(1.0, 1.0), (1.0, 1.0), (0.9, 1.0), (0.9, 1.0)] * 10)
    pairs, ratio = in_turns(lambda _: next(around), 4, 8, 0.98)
    assert len(pairs) == 8
    assert ratio.low < 0.98 <= ratio.high
    assert len(in_turns(lambda _: (1.0, 1.0), 4, 8, 0.98)[0]) == 4
    assert len(in_turns(lambda _: (0.5, 1.0), 4, 8, 0.98)[0]) == 4
